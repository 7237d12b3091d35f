//! Handles for programs that embed a training run.

pub use stovepipe_runtime::StopHandle;
use stovepipe_schedule::Action;

/// Tells how far a step is: sent after each action, on the thread that called the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The worker that finished an action.
    pub worker: usize,
    /// What it finished.
    pub action: Action,
    /// Actions finished in this step, by all workers.
    pub done: usize,
    /// Actions in this step.
    pub total: usize,
}
