//! A request to stop, from anywhere.

use crate::sync::{Arc, AtomicBool, Ordering};

/// Stops a pipeline from another thread, such as a user interface or a signal handler.
///
/// The step under way ends at the next action of each worker and returns an error that says so; the
/// model is as it was before the step. Later steps return the same until [`reset`](Self::reset).
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
    /// A handle that has not been used.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks to stop.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Allows to go on.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Whether somebody asked to stop.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
