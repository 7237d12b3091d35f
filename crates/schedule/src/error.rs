//! Why a list of actions is no schedule.

use std::fmt;

use thiserror::Error;

use crate::{Action, ParseActionError};

/// Why a list of actions is no schedule.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// There is no worker at all.
    #[error("a schedule needs at least one worker")]
    NoWorkers,
    /// A scheduler was asked for zero stages.
    #[error("a schedule needs at least one stage")]
    NoStages,
    /// A scheduler was asked for zero micro-batches.
    #[error("a schedule needs at least one micro-batch")]
    NoMicroBatches,
    /// A worker has nothing to do.
    #[error("worker {worker} has no action")]
    IdleWorker {
        /// The worker without actions.
        worker: usize,
    },
    /// The stages are not numbered 0, 1, 2, … without a gap.
    #[error("no worker has stage {stage}, though a later stage exists")]
    MissingStage {
        /// The lowest stage that no worker has.
        stage: usize,
    },
    /// Two workers act for the same stage; its weights can only be on one of them.
    #[error("worker {worker} has {action}, but stage {} belongs to worker {owner}", action.stage)]
    SharedStage {
        /// The later of the two workers.
        worker: usize,
        /// Its first action for the stage.
        action: Action,
        /// The earlier of the two workers.
        owner: usize,
    },
    /// An action is listed twice.
    #[error("worker {worker} has {action} twice")]
    Repeated {
        /// The worker that repeats itself.
        worker: usize,
        /// The repeated action.
        action: Action,
    },
    /// A stage lacks an action that another stage or another micro-batch has.
    #[error("worker {worker} lacks {action}")]
    Missing {
        /// The worker that has the stage.
        worker: usize,
        /// The action that is not listed.
        action: Action,
    },
    /// A stage's forward passes, or its backward passes, do not ascend in micro-batch order.
    #[error("worker {worker} has {action} where {expected} is due: micro-batches must ascend")]
    OutOfOrder {
        /// The worker that has the stage.
        worker: usize,
        /// The action that comes too early.
        action: Action,
        /// The action that must come before it.
        expected: Action,
    },
    /// A backward pass is listed before the forward pass that it differentiates.
    #[error("worker {worker} has {action} before {}", Action::forward(action.stage, action.micro_batch))]
    BackwardFirst {
        /// The worker that has the stage.
        worker: usize,
        /// The backward action.
        action: Action,
    },
    /// Workers wait for one another for ever.
    #[error("deadlock: {}", join(waiting))]
    Deadlock {
        /// What each stuck worker waits for, in ascending order of workers.
        waiting: Vec<Waiting>,
    },
    /// A fixed schedule was asked for another number of stages or micro-batches than its own.
    #[error(
        "this schedule is for {stages} stages and {micro_batches} micro-batches, \
         not {asked_stages} and {asked_micro_batches}"
    )]
    Fixed {
        /// The schedule's own number of stages.
        stages: usize,
        /// The schedule's own number of micro-batches.
        micro_batches: usize,
        /// The number of stages it was asked for.
        asked_stages: usize,
        /// The number of micro-batches it was asked for.
        asked_micro_batches: usize,
    },
    /// A written schedule holds a word that is no action.
    #[error(transparent)]
    Parse(#[from] ParseActionError),
}

/// A worker stuck in a deadlock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// The stuck worker.
    pub worker: usize,
    /// The action that it cannot begin.
    pub action: Action,
    /// The action whose result it waits for.
    pub needs: Action,
}

impl fmt::Display for Waiting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            worker,
            action,
            needs,
        } = self;
        write!(formatter, "worker {worker} at {action} waits for {needs}")
    }
}

fn join(waiting: &[Waiting]) -> String {
    let parts: Vec<_> = waiting.iter().map(Waiting::to_string).collect();
    parts.join("; ")
}
