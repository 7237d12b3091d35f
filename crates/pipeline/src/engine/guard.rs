//! Runs a user's code so that its panic is an error.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

use crate::error::StepError;

/// Runs `code`, which is called `place` in the error if it panics.
pub(crate) fn guarded<R>(place: &'static str, code: impl FnOnce() -> R) -> Result<R, StepError> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|panic| StepError::Panicked {
        place,
        message: panic_message(&*panic).to_owned(),
    })
}

/// What a panic said.
#[must_use]
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("with no message")
}
