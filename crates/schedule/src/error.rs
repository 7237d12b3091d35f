//! Why a list of actions is no schedule.

use std::fmt;

use thiserror::Error;

use crate::{Action, ParseActionError};

/// Why a list of actions is no schedule.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ScheduleError {
    // what a scheduler is asked for
    /// A scheduler was asked for zero stages.
    #[error("a schedule needs at least one stage")]
    NoStages,
    /// A scheduler was asked for zero micro-batches.
    #[error("a schedule needs at least one micro-batch")]
    NoMicroBatches,
    /// An interleaved schedule with zero stages a worker.
    #[error("an interleaved schedule needs at least one chunk a worker")]
    NoChunks,
    /// The replicas given are not those of the stages asked for.
    #[error("replicas are given for {replicas} stages, but there are {stages}")]
    ReplicaCount {
        /// Numbers given.
        replicas: usize,
        /// Stages asked for.
        stages: usize,
    },
    /// A stage on no worker at all.
    #[error("stage {stage} has 0 replicas, but needs at least one")]
    NoReplicas {
        /// The stage.
        stage: usize,
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

    // what workers and stages there are
    /// There is no worker at all.
    #[error("a schedule needs at least one worker")]
    NoWorkers,
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
    /// An action is on another worker than it should be. All that a stage does for a micro-batch is
    /// on one worker, and workers that share a stage take its micro-batches in turn.
    #[error("worker {worker} has {action}, which belongs to worker {owner}")]
    WrongWorker {
        /// The worker that has it.
        worker: usize,
        /// The action.
        action: Action,
        /// The worker that should have it, by the actions before.
        owner: usize,
    },

    // which actions there are
    /// An action is listed twice.
    #[error("worker {worker} has {action} twice")]
    Repeated {
        /// The worker that repeats itself.
        worker: usize,
        /// The repeated action.
        action: Action,
    },
    /// A stage lacks an action that another stage or another micro-batch has, or its other half.
    #[error("worker {worker} lacks {action}")]
    Missing {
        /// The worker that has the stage.
        worker: usize,
        /// The action that is not listed.
        action: Action,
    },
    /// A micro-batch has a whole backward pass and a half.
    #[error("worker {worker} has {action}, though its backward pass is listed as a whole, too")]
    WholeAndHalf {
        /// The worker that has the stage.
        worker: usize,
        /// The half, or the update before any.
        action: Action,
    },

    // their order
    /// An action is listed before another one of the same worker whose result it needs.
    #[error("worker {worker} has {action} before {needs}")]
    TooEarly {
        /// The worker that has both.
        worker: usize,
        /// The action that comes too early.
        action: Action,
        /// The action that must come before it.
        needs: Action,
    },
    /// Workers wait for one another for ever.
    #[error("deadlock: {}", join(waiting))]
    Deadlock {
        /// What each stuck worker waits for, in ascending order of workers.
        waiting: Vec<Waiting>,
    },

    // what they need; see `Schedule::check`
    /// A worker would hold the activations of too many micro-batches.
    #[error("worker {worker} at {action} holds {held} micro-batches, but may hold {most}")]
    Activations {
        /// The worker.
        worker: usize,
        /// The forward pass that is too much.
        action: Action,
        /// Micro-batches held with it, counted for each stage.
        held: usize,
        /// The limit.
        most: usize,
    },
    /// A worker would keep too many versions of a stage's weights.
    #[error(
        "worker {worker} at {action} keeps {versions} versions of its weights, but may keep {most}"
    )]
    WeightVersions {
        /// The worker.
        worker: usize,
        /// The forward pass that needs one more.
        action: Action,
        /// Versions kept with it.
        versions: usize,
        /// The limit.
        most: usize,
    },
    /// A stage would need weights that it has not come to yet, to use the version that the first
    /// stage used.
    #[error(
        "worker {worker} at {action} needs version {version} of its weights, \
         which the first stage used, but has come to version {latest} only"
    )]
    FutureWeights {
        /// The worker.
        worker: usize,
        /// The forward pass.
        action: Action,
        /// The version that the first stage used, counted from 0.
        version: usize,
        /// The latest version that the worker has.
        latest: usize,
    },

    // what is written
    /// A written schedule holds a word that is no action.
    #[error(transparent)]
    Parse(#[from] ParseActionError),
    /// A line of a file is wrong.
    #[error("line {line}: {reason}")]
    Line {
        /// The line, counted from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
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

/// A large deadlock is told by its first workers.
fn join(waiting: &[Waiting]) -> String {
    const SHOWN: usize = 8;
    let mut parts: Vec<_> = waiting.iter().take(SHOWN).map(Waiting::to_string).collect();
    if waiting.len() > SHOWN {
        parts.push(format!("and {} more", waiting.len() - SHOWN));
    }
    parts.join("; ")
}
