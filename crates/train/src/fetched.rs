//! What devices hold, on its way to a file.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use stovepipe_pipeline::panic_message;

use crate::error::TrainError;

/// Runs what reads tensors and writes them to a file or folder. A device that is lost panics in Burn, and is an error
/// here.
pub(crate) fn fetched<R>(
    path: &Path,
    save: impl FnOnce() -> Result<R, TrainError>,
) -> Result<R, TrainError> {
    let saved = catch_unwind(AssertUnwindSafe(save));
    saved.unwrap_or_else(|panic| {
        Err(TrainError::NotFetched {
            path: path.to_owned(),
            cause: panic_message(&*panic).to_owned(),
        })
    })
}
