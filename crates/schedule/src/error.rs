//! Why a list of actions is not a schedule.

use thiserror::Error;

use crate::{Action, ParseActionError, count};

/// Why a list of actions is not a schedule.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
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
    /// Replicas were given for another number of stages.
    #[error("replicas are given for {}, but there are {stages}", count(*replicas, "stage"))]
    ReplicaCount { replicas: usize, stages: usize },
    /// A stage has no worker.
    #[error("stage {stage} has 0 replicas, but needs at least one")]
    NoReplicas { stage: usize },
    /// An update has fewer micro-batches than a stage has replicas.
    #[error(
        "stage {stage} has {}, but an update has {}: each replica needs one",
        count(*replicas, "replica"), count(*every, "micro-batch")
    )]
    ReplicasOfUpdate {
        stage: usize,
        replicas: usize,
        every: usize,
    },
    /// A scheduler was asked for updates of zero micro-batches, or for a number of micro-batches that
    /// are not whole updates.
    #[error("{} cannot be divided into updates of {every}", count(*micro_batches, "micro-batch"))]
    UpdateSize { micro_batches: usize, every: usize },
    /// A replica has no micro-batches.
    #[error("replica {replica} has a share of 0, but needs at least 1")]
    NoShare { replica: usize },
    /// A fixed schedule was asked for another number of stages or micro-batches.
    #[error(
        "this schedule is for {} and {}, not {} and {}",
        count(own.0, "stage"), count(own.1, "micro-batch"), asked.0, asked.1
    )]
    Fixed {
        own: (usize, usize),
        asked: (usize, usize),
    },

    // workers and stages
    /// There is no worker.
    #[error("a schedule needs at least one worker")]
    NoWorkers,
    /// A worker has no action.
    #[error("worker {worker} has no action")]
    IdleWorker { worker: usize },
    /// The stages are not numbered 0, 1, 2, … without a gap. `stage` is the first that is missing.
    #[error("no worker has stage {stage}, though a later stage exists")]
    MissingStage { stage: usize },
    /// An action is on the wrong worker. All passes of a stage for a micro-batch are on one worker, and
    /// its updates are on the workers that have passes.
    #[error("worker {worker} has {action}, which belongs to worker {owner}")]
    WrongWorker {
        worker: usize,
        action: Action,
        owner: usize,
    },

    // actions
    /// An action is listed twice.
    #[error("worker {worker} has {action} twice")]
    Repeated { worker: usize, action: Action },
    /// A stage lacks an action that another stage or another micro-batch has, or its other half.
    #[error("worker {worker} lacks {action}")]
    Missing { worker: usize, action: Action },
    /// A micro-batch has a whole backward pass and a half.
    #[error("worker {worker} has {action}, though its backward pass is listed as a whole, too")]
    WholeAndHalf { worker: usize, action: Action },

    // order
    /// An action is listed before another one of the same worker that must come first: one whose result
    /// it needs, or the update before its own.
    #[error("worker {worker} has {action} before {needs}")]
    TooEarly {
        worker: usize,
        action: Action,
        needs: Action,
    },
    /// The first update follows `every` micro-batches, but another one does not follow a multiple.
    #[error(
        "worker {worker} has {action}, but updates come every {every} micro-batches: after {}, {}, …",
        every - 1, 2 * every - 1
    )]
    OddUpdate {
        worker: usize,
        action: Action,
        every: usize,
    },
    /// The last micro-batches have no update.
    #[error(
        "micro-batch {} has no update: updates come every {every} micro-batches, and there are \
         {micro_batches}",
        micro_batches - 1
    )]
    NoLastUpdate { micro_batches: usize, every: usize },
    /// A replica has nothing to add to an update.
    #[error("worker {worker} has {action}, but no micro-batch of that update")]
    NothingToAdd { worker: usize, action: Action },
    /// Workers wait for each other forever. They are in ascending order.
    #[error("deadlock: {}", first_few(waiting.iter()))]
    Deadlock { waiting: Vec<Waiting> },

    // limits, see `Schedule::check`
    /// A worker would hold the activations of too many micro-batches, counted for each stage.
    #[error("worker {worker} at {action} holds {}, but may hold {most}", count(*held, "micro-batch"))]
    Activations {
        worker: usize,
        action: Action,
        held: usize,
        most: usize,
    },
    /// A worker would keep too many versions of a stage's weights.
    #[error(
        "worker {worker} at {action} keeps {versions} versions of its weights, but may keep {most}"
    )]
    WeightVersions {
        worker: usize,
        action: Action,
        versions: usize,
        most: usize,
    },
    /// With vertical sync, a stage would need a version of its weights that it does not have yet.
    #[error(
        "worker {worker} at {action} needs version {version} of its weights, \
         which the first stage used, but has only reached version {latest}"
    )]
    FutureWeights {
        worker: usize,
        action: Action,
        version: usize,
        latest: usize,
    },

    // text
    /// A word is not an action.
    #[error(transparent)]
    Parse(#[from] ParseActionError),
    /// A line of a file, counted from 1, is wrong.
    #[error("line {line}: {source}")]
    Line { line: u64, source: LineError },
}

/// Why a line of a file is not a row of a schedule.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum LineError {
    /// A cell is not an action.
    #[error(transparent)]
    Action(#[from] ParseActionError),
    /// The line is not CSV.
    #[error("{0}")]
    Csv(String),
}

/// A worker stuck in a deadlock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("worker {worker} at {action} waits for {needs}")]
pub struct Waiting {
    /// The stuck worker.
    pub worker: usize,
    /// The action that it cannot begin.
    pub action: Action,
    /// The action whose result it waits for; at an update, what another replica still has to do first.
    pub needs: Action,
}

/// The first entries of a list that may be long.
pub(crate) fn first_few(items: impl ExactSizeIterator<Item: ToString>) -> String {
    const SHOWN: usize = 8;
    let more = items.len().saturating_sub(SHOWN);
    let mut parts: Vec<_> = items.take(SHOWN).map(|item| item.to_string()).collect();
    if more > 0 {
        parts.push(format!("and {more} more"));
    }
    parts.join("; ")
}
