//! Why there is no plan.

use stovepipe_schedule::{CostError, ScheduleError, SegmentsError, count, format_bytes};
use thiserror::Error;

use crate::{CutError, SkipError};

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum PlanError {
    /// The profile has no layers, or a cost is out of range.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// Something is missing: devices, numbers of workers, schedules and so on.
    #[error("there is nothing to plan for: no {0}")]
    Nothing(&'static str),
    /// There are more workers than layers.
    #[error(
        "{} are more than the model's {}: plan for fewer",
        count(*workers, "worker"), count(*layers, "layer")
    )]
    TooManyWorkers { workers: usize, layers: usize },
    /// There are more workers than devices.
    #[error(
        "{} are more than the machine's {}",
        count(*workers, "worker"), count(*devices, "device")
    )]
    TooFewDevices { workers: usize, devices: usize },
    /// The profiles are not those of one model on the machine's devices.
    #[error(
        "{} are not those of one model on {}: give one for all of them, or one for each, with the same layers",
        count(*profiles, "profile"), count(*devices, "device")
    )]
    Profiles { profiles: usize, devices: usize },
    /// There are more micro-batches than samples, or none.
    #[error(
        "a mini-batch of {} cannot be cut into {}",
        count(*mini_batch, "sample"), count(*micro_batches, "micro-batch")
    )]
    MicroBatches {
        mini_batch: usize,
        micro_batches: usize,
    },
    /// The layers of each stage are not those of the model.
    #[error(
        "{balance:?} layers are not a cut of {} into {}",
        count(*layers, "layer"), count(*stages, "stage")
    )]
    Balance {
        balance: Vec<usize>,
        stages: usize,
        layers: usize,
    },
    /// Replicas recompute the same layers. They are chosen for all stages of a worker at once.
    #[error(
        "layers to recompute are not chosen where workers share some of their stages, but not all: name them, \
         as in 0-3,7-9"
    )]
    ReplicasByLayer,
    /// Nothing fits the devices.
    #[error(
        "no pipeline fits: the one that comes closest needs {} on worker {worker}, whose \
         device has {}; more or larger devices, smaller mini-batches or another optimizer would help",
        format_bytes(*needs), format_bytes(*has)
    )]
    TooLarge { worker: usize, needs: u64, has: u64 },
    /// The model does not have the layers that are to be recomputed.
    #[error(transparent)]
    Segments(#[from] SegmentsError),
    /// The profile has a skip that does not go to later layers.
    #[error(transparent)]
    Skip(#[from] SkipError),
    /// A cost is out of range.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// The rule has no schedule for these numbers.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}
