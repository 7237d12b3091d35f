//! Stops a step, and reports its progress.

pub use stovepipe_runtime::StopHandle;
use stovepipe_schedule::Action;

/// The progress of a step, reported after each action on the thread that called the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The worker that finished an action.
    pub worker: usize,
    /// The finished action.
    pub action: Action,
    /// Finished actions of all workers in this step.
    pub done: usize,
    /// All actions of this step.
    pub total: usize,
}
