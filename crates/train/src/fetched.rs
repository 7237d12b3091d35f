//! What devices hold, on its way to a file.

use std::path::Path;

use stovepipe_pipeline::caught;

use crate::error::TrainError;

/// Runs what reads tensors and writes them to a file or folder. A device that is lost panics in Burn, and is an error
/// here.
pub(crate) fn fetched<R>(
    path: &Path,
    save: impl FnOnce() -> Result<R, TrainError>,
) -> Result<R, TrainError> {
    caught(save).unwrap_or_else(|cause| {
        let path = path.to_owned();
        Err(TrainError::NotFetched { path, cause })
    })
}
