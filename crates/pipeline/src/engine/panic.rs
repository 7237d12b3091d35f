//! Turns a panic into an error.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

use thiserror::Error;

/// A panic in code that the engine called, such as a layer's or an objective's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("panicked: {message}")]
pub struct Panicked {
    /// The message of the panic.
    pub message: String,
}

impl Panicked {
    pub(crate) fn new(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let message = text.unwrap_or("with no message").to_owned();
        Self { message }
    }
}

/// Runs `code`; a panic is an error.
///
/// # Errors
///
/// If `code` panics.
pub fn caught<R>(code: impl FnOnce() -> R) -> Result<R, Panicked> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|panic| Panicked::new(&*panic))
}
