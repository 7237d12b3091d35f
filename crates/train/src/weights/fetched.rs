//! Reads tensors from devices to save them.

use std::path::Path;

use stovepipe_pipeline::caught;

use crate::error::TrainError;

/// Runs `save`, which writes tensors to a file or folder. Turns Burn's panic for a lost device into
/// an error.
pub(crate) fn fetched<R>(
    path: &Path,
    save: impl FnOnce() -> Result<R, TrainError>,
) -> Result<R, TrainError> {
    caught(save).unwrap_or_else(|panicked| {
        let (path, cause) = (path.to_owned(), panicked.message);
        Err(TrainError::NotFetched { path, cause })
    })
}
