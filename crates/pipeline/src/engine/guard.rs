//! Runs a user's code so that its panic is an error.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

use crate::api::error::StepError;

/// Runs `code`, which is called `place` in the error if it panics.
pub(crate) fn guarded<R>(place: &'static str, code: impl FnOnce() -> R) -> Result<R, StepError> {
    caught(code).map_err(|message| StepError::Panicked { place, message })
}

/// Runs `code`; the error is what it said when it panicked.
pub fn caught<R>(code: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|panic| panic_message(&*panic).to_owned())
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("with no message")
}
