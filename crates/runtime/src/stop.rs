//! A request to stop, from anywhere.

use crate::sync::{Arc, AtomicBool, Ordering};

/// Stops a pipeline from another thread, such as a user interface or a signal handler.
///
/// Each worker of the current step stops before its next action, and the step returns an error. The
/// model stays as it was before the step. Later steps fail too, until [`reset`](Self::reset).
///
/// ```
/// use stovepipe_runtime::StopHandle;
///
/// let stop = StopHandle::new();
/// stop.clone().stop(); // clones are the same handle
/// assert!(stop.is_stopped());
/// ```
#[derive(Clone, Debug, Default)]
pub struct StopHandle(Arc<AtomicBool>);

impl StopHandle {
    /// A handle that does not ask to stop yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks to stop.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Allows steps again.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Whether a stop was requested.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
