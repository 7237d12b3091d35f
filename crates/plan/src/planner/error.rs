//! Why there is no plan.

use stovepipe_schedule::{CostError, ScheduleError};
use thiserror::Error;

use crate::CutError;

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
    #[error("{workers} workers are more than the model's {layers} layers: plan for fewer")]
    TooManyWorkers { workers: usize, layers: usize },
    /// There are more workers than devices.
    #[error("{workers} workers are more than the machine's {devices} devices")]
    TooFewDevices { workers: usize, devices: usize },
    /// The profiles are not those of one model on the machine's devices.
    #[error(
        "{profiles} profiles are not those of one model on {devices} devices: give one for all of them, or one \
         for each, with the same layers"
    )]
    Profiles { profiles: usize, devices: usize },
    /// There are more micro-batches than samples, or none.
    #[error(
        "a mini-batch of {mini_batch} samples cannot be cut into {micro_batches} micro-batches"
    )]
    MicroBatches {
        mini_batch: usize,
        micro_batches: usize,
    },
    /// The layers of each stage are not those of the model.
    #[error("{balance:?} layers are not a cut of {layers} layers into {stages} stages")]
    Balance {
        balance: Vec<usize>,
        stages: usize,
        layers: usize,
    },
    /// Nothing fits the devices.
    #[error(
        "no pipeline fits: the one that comes closest needs {needs} bytes on worker {worker}, whose \
         device has {has}; more or larger devices, smaller mini-batches or another optimizer would help"
    )]
    TooLarge { worker: usize, needs: u64, has: u64 },
    /// A cost is out of range.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// The rule has no schedule for these numbers.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}
