//! Errors: what failed, where, and what to do.

use std::{error::Error as StdError, fmt, time::Duration};

use stovepipe_plan::{CutError, PlanError};
use stovepipe_schedule::{Action, Pass, ScheduleError};
use thiserror::Error;

use crate::{
    api::precision::PrecisionError,
    engine::panic::Panicked,
    measure::out_of_memory::advised,
    model::{
        layer::LayerError,
        unkeyed::UnkeyedError,
        wiring::{LayerName, WiringError},
    },
};

/// An error of Burn, of a driver, or of a user's function.
pub type BoxedError = Box<dyn StdError + Send + Sync>;

/// Why a pipeline cannot be built.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The model is empty.
    #[error("the model has no layers")]
    NoLayers,
    /// No device was given.
    #[error("a pipeline needs at least one stage: give it a device for each worker")]
    NoStages,
    /// There are more stages than layers.
    #[error("{stages} stages are more than the model's {layers} layers")]
    MoreStagesThanLayers {
        /// Requested stages.
        stages: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// The balance is for another number of stages.
    #[error("the balance {balance:?} is for {} stages, but there are {stages}", balance.len())]
    BalanceStages {
        /// Layers a stage, as given.
        balance: Vec<usize>,
        /// Stages of the pipeline.
        stages: usize,
    },
    /// The balance does not add up to the number of layers.
    #[error("the balance {balance:?} adds up to {sum} layers, but the model has {layers}")]
    BalanceSum {
        /// Layers a stage, as given.
        balance: Vec<usize>,
        /// Their sum.
        sum: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// The balance has a stage without layers.
    #[error("the balance gives stage {stage} no layer")]
    EmptyStage {
        /// The stage.
        stage: usize,
    },
    /// There is not one cost per layer.
    #[error("there are {costs} costs for {layers} layers")]
    CostCount {
        /// Costs given.
        costs: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// A cost is negative, NaN, infinite or too large.
    #[error("{layer} costs {cost}: a cost must be finite, at least 0 and not too large")]
    Cost {
        /// The layer.
        layer: LayerName,
        /// Its cost.
        cost: f64,
    },
    /// The model cannot be cut with these costs.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// A layer could not be measured.
    #[error(transparent)]
    Profile(#[from] ProfilerError),
    /// The measuring thread ended early.
    #[error("the layers could not be measured: the measuring thread ended early")]
    Unmeasured,
    /// Skips are not wired correctly.
    #[error(transparent)]
    Wiring(#[from] WiringError),
    /// A layer draws random numbers that cannot be drawn again.
    #[error(transparent)]
    Unkeyed(#[from] UnkeyedError),
    /// Two layers share running statistics, and each would update them.
    #[error(
        "{first} and {second} share running statistics: give each its own batch norm; parameters \
         may be shared"
    )]
    SharedStatistics {
        /// The first layer.
        first: LayerName,
        /// The second layer.
        second: LayerName,
    },
    /// A layer's `skips` or `name` panicked.
    #[error("a layer's `skips` or `name` {0}")]
    Panicked(#[source] Panicked),
    /// No cut has a predictable step.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Zero micro-batches.
    #[error("the number of micro-batches must be at least 1")]
    NoMicroBatches,
    /// Zero threads.
    #[error("the number of threads of a stage must be at least 1")]
    NoThreads,
    /// The scheduler has no schedule for these stages and micro-batches.
    #[error("no schedule: {0}")]
    Schedule(#[from] ScheduleError),
    /// The engine cannot run the schedule, or it is not the requested one.
    #[error(transparent)]
    WrongSchedule(#[from] WrongSchedule),
    /// A stage cannot use its device.
    #[error("stage {stage} cannot use its device {device}: {source}")]
    Device {
        /// The stage.
        stage: usize,
        /// The device.
        device: String,
        /// The reason.
        source: BoxedError,
    },
    /// A device cannot compute in the precision.
    #[error(transparent)]
    Precision(#[from] PrecisionError),
    /// A thread could not be started.
    #[error("could not start worker {worker}: {source}")]
    Worker {
        /// The worker.
        worker: usize,
        /// The reason.
        source: std::io::Error,
    },
    /// A thread that copies values between devices could not be started.
    #[error("could not start a thread that copies values between devices: {source}")]
    TransferThread {
        /// The reason.
        source: std::io::Error,
    },
    /// A device cannot be opened, or does not answer.
    #[error("device `{device}` cannot be used: {source}")]
    Unusable {
        /// Its name.
        device: String,
        /// The reason.
        source: BoxedError,
    },
    /// The link between two devices could not be measured.
    #[error("the link between two devices could not be measured: {source}")]
    Link {
        /// The reason.
        source: BoxedError,
    },
    /// The sample did not pass through the model.
    #[error("the sample does not pass through the model: {0}")]
    Sample(#[source] StepError),
}

/// A layer could not be measured.
#[derive(Debug, Error)]
#[error("{layer} could not be measured: {source}")]
pub struct ProfilerError {
    /// The layer.
    pub layer: LayerName,
    /// The reason.
    pub source: BoxedError,
}

/// Why a step failed. The model is as it was before the step.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StepError {
    /// The batch has no samples.
    #[error("the batch is empty")]
    EmptyBatch,
    /// The parts of the batch have different numbers of samples.
    #[error("the batch has {input} samples in its input, but {other} in its {part}")]
    UnevenBatch {
        /// Samples in the first tensor of the input.
        input: usize,
        /// Samples in the other part.
        other: usize,
        /// Its name.
        part: &'static str,
    },
    /// A flow's own `split` returned another number of parts.
    #[error("the {part} was split into {found} parts, but there are {expected} micro-batches")]
    BadSplit {
        /// The part of the batch.
        part: &'static str,
        /// Parts returned.
        found: usize,
        /// Micro-batches.
        expected: usize,
    },
    /// The weight of the batch is not a positive, finite number.
    #[error("the batch's weight is {weight}: the mean loss over it is undefined")]
    NoWeight {
        /// The weight.
        weight: f64,
    },
    /// The scheduler has no schedule for this number of micro-batches.
    #[error("no schedule: {0}")]
    Schedule(#[from] ScheduleError),
    /// The engine cannot run the schedule, or it is not the requested one.
    #[error(transparent)]
    WrongSchedule(#[from] WrongSchedule),
    /// The scheduler assigns stages to other workers than when the pipeline was built.
    #[error("the scheduler assigns stages to other workers for this number of micro-batches")]
    OtherWorkers,
    /// `change_stages` got a number of states that is not the number of stages.
    #[error("{states} states were given for {stages} stages")]
    WrongStates {
        /// States given.
        states: usize,
        /// Stages of the pipeline.
        stages: usize,
    },
    /// A stage failed.
    #[error(transparent)]
    Failed(Box<StageFailure>),
    /// The loss or a gradient is NaN or infinite.
    #[error("the {what} is not finite{}", place_of(place.as_deref()))]
    NotFinite {
        /// What is not finite.
        what: String,
        /// Where it began, found by a second run of the step; `None` if that run was finite.
        place: Option<Box<StageFailure>>,
    },
    /// A layer that was frozen when the pipeline was built draws random numbers that cannot be drawn
    /// again.
    #[error(transparent)]
    Unkeyed(#[from] UnkeyedError),
    /// A user's code outside the stages panicked.
    #[error("the {place} {source}")]
    Panicked {
        /// Which code.
        place: &'static str,
        /// The panic.
        source: Panicked,
    },
    /// A worker's thread ended.
    #[error("a worker's thread has ended: build the pipeline again")]
    Lost,
    /// No worker finished an action within the limit.
    #[error(
        "no worker finished an action for {:.1} s\n{flight}",
        limit.as_secs_f64()
    )]
    Stalled {
        /// The limit.
        limit: Duration,
        /// What each worker was doing.
        flight: FlightRecord,
    },
    /// A worker is still stuck in an earlier step.
    #[error("worker {worker} is stuck since an earlier step stalled: build the pipeline again")]
    Stuck {
        /// The worker.
        worker: usize,
    },
    /// A copy between two devices is still stuck in an earlier step.
    #[error("{0} are stuck since an earlier step stalled: build the pipeline again")]
    StuckTransfer(Transfer),
    /// The progress callback used its own pipeline.
    #[error("a progress callback cannot use its own pipeline: its step is still running")]
    InCallback,
    /// A stop was requested.
    #[error("stopped on request")]
    Stopped,
    /// A stage's device could not be read outside of a step.
    #[error("stage {stage} on {device}: {}", advised(source))]
    Device {
        /// The stage.
        stage: usize,
        /// Its device.
        device: String,
        /// The reason.
        source: BoxedError,
    },
    /// The function given to `change_stages` failed on a stage, for example an optimizer without memory.
    #[error(
        "stage {stage} on {device} could not be changed: {}. Its layers are dropped: build the \
         pipeline again",
        advised(source)
    )]
    ChangeFailed {
        /// The stage.
        stage: usize,
        /// Its device.
        device: String,
        /// The reason.
        source: BoxedError,
    },
    /// An earlier change of the layers failed, and they were dropped.
    #[error("the layers were dropped when a change of them failed: build the pipeline again")]
    LayersLost,
    /// The outputs of the micro-batches differ in kind or shape.
    #[error("the outputs of the micro-batches differ in kind or shape and cannot be joined")]
    UnlikeOutputs,
}

impl StepError {
    /// Says which code panicked.
    pub(crate) fn panicked(place: &'static str) -> impl FnOnce(Panicked) -> Self {
        move |source| Self::Panicked { place, source }
    }
}

fn place_of(place: Option<&StageFailure>) -> String {
    match place {
        Some(failure) => format!(": {failure}"),
        None => {
            ", but was finite when the step ran again to find the layer: does a layer draw its \
                 own random numbers?"
                .to_owned()
        }
    }
}

/// Why the engine cannot run a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WrongSchedule {
    /// The scheduler returned another schedule than the requested one, or one that does not train.
    #[error(
        "the scheduler was asked for a training schedule of {stages} stages and {micro_batches} \
         micro-batches, but made one of {found_stages} stages and {found_micro_batches} \
         micro-batches, or one without backward passes"
    )]
    Other {
        /// Requested stages.
        stages: usize,
        /// Requested micro-batches.
        micro_batches: usize,
        /// Stages of the schedule.
        found_stages: usize,
        /// Micro-batches of the schedule.
        found_micro_batches: usize,
    },
    /// There is not one device per worker.
    #[error(
        "the schedule has {workers} workers, but {devices} devices were given: give one for each"
    )]
    Workers {
        /// Workers of the schedule.
        workers: usize,
        /// Devices given.
        devices: usize,
    },
    /// The schedule changes weights within a step.
    #[error(
        "the schedule changes weights after each micro-batch (U), but this engine changes them once \
         after each step: use a schedule without updates, such as 1F1B"
    )]
    Asynchronous,
    /// A stage has several workers.
    #[error(
        "stage {stage} has {replicas} replicas, but this engine runs one: give the stage to one \
         worker, as 1F1B does, or cut it into several stages"
    )]
    Replicas {
        /// The stage.
        stage: usize,
        /// Its workers.
        replicas: usize,
    },
}

/// Where and why a stage failed.
#[derive(Debug)]
pub struct StageFailure {
    /// The stage.
    pub stage: usize,
    /// The layer's index and name, if a layer failed.
    pub layer: Option<(usize, String)>,
    /// What the stage was doing, with the micro-batch.
    pub action: Action,
    /// The stage's device.
    pub device: String,
    /// The reason.
    pub cause: FailureCause,
    /// What each worker did last.
    pub flight: FlightRecord,
}

/// Why a stage failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FailureCause {
    /// A layer got a value that it cannot take.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// A layer or the objective panicked.
    #[error(transparent)]
    Panicked(#[from] Panicked),
    /// A value is NaN or infinite.
    #[error("{0}")]
    NotFinite(&'static str),
    /// A layer did not send a skip that it declares.
    #[error("it declares that it sends the skip \"{0}\", but did not")]
    SkipNotSent(String),
    /// A layer did not take a skip that it declares.
    #[error("it declares that it takes the skip \"{0}\", but did not")]
    SkipNotTaken(String),
    /// A layer sent a skip that it does not declare, or sent it twice.
    #[error("it sent the skip \"{0}\" twice, or without declaring it")]
    SkipNotDeclared(String),
    /// A device failed.
    #[error(transparent)]
    Device(BoxedError),
    /// A copy from another device failed.
    #[error("{transfer} did not arrive: {source}")]
    Transfer {
        /// The copy.
        transfer: Box<Transfer>,
        /// The reason.
        source: BoxedError,
    },
    /// The engine broke a rule of its own.
    #[error("{0}: this is a bug in the engine")]
    Internal(&'static str),
}

impl StdError for StageFailure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.cause)
    }
}

impl fmt::Display for StageFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pass = match self.action.pass {
            Pass::Forward => "forward",
            Pass::Backward => "backward",
            Pass::InputGradient => "input gradient",
            Pass::WeightGradient => "weight gradient",
            Pass::Update => "update",
        };
        write!(f, "stage {} failed on {}", self.stage, self.device)?;
        match &self.layer {
            Some((index, name)) => write!(f, ", in layer {index} ({name})")?,
            None => write!(f, ", outside its layers")?,
        }
        let micro_batch = self.action.micro_batch;
        let cause = advised(&self.cause);
        write!(
            f,
            ", {pass} of micro-batch {micro_batch}: {cause}\n{}",
            self.flight
        )
    }
}

/// What each worker did last. Errors show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlightRecord {
    /// One record per worker.
    pub workers: Vec<WorkerRecord>,
    /// The copies between devices that were running.
    pub transfers: Vec<Transfer>,
}

/// A copy of a micro-batch's values from one stage's device to another's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// What is copied.
    pub kind: TransferKind,
    /// The micro-batch.
    pub micro_batch: usize,
    /// The sending and the receiving stage.
    pub stages: [usize; 2],
    /// Their devices.
    pub devices: [String; 2],
}

/// What stages send each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferKind {
    /// The output of a stage's last layer.
    Values,
    /// The gradients of `Values`.
    Gradients,
    /// Values that skip stages.
    Skips,
    /// The gradients of `Skips`.
    SkipGradients,
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            TransferKind::Values => "values",
            TransferKind::Gradients => "gradients",
            TransferKind::Skips => "skips",
            TransferKind::SkipGradients => "gradients of skips",
        };
        let ([from, to], [source, target]) = (self.stages, &self.devices);
        let micro_batch = self.micro_batch;
        write!(
            f,
            "the {kind} of micro-batch {micro_batch} from stage {from} on {source} to stage {to} on \
             {target}"
        )
    }
}

/// What one worker did last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerRecord {
    /// The last finished actions, the oldest first.
    pub finished: Vec<Action>,
    /// What it was doing.
    pub state: WorkerState,
}

/// What a worker is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WorkerState {
    /// It has not started.
    #[default]
    Idle,
    /// It waits for a message from another stage.
    Waiting {
        /// The action that needs the message.
        action: Action,
        /// The sending stage.
        on_stage: usize,
    },
    /// It runs an action.
    Running {
        /// The action.
        action: Action,
        /// The current layer's index and name.
        layer: Option<(usize, String)>,
    },
    /// It has finished all its actions.
    Done,
}

impl fmt::Display for FlightRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, worker) in self.workers.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "  worker {index}: {worker}")?;
        }
        for transfer in &self.transfers {
            write!(f, "\n  being copied: {transfer}")?;
        }
        Ok(())
    }
}

impl fmt::Display for WorkerRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            WorkerState::Idle => write!(f, "had not started")?,
            WorkerState::Waiting { action, on_stage } => {
                write!(f, "waited for stage {on_stage} to begin {action}")?;
            }
            WorkerState::Running { action, layer } => {
                write!(f, "was in {action}")?;
                if let Some((index, name)) = layer {
                    write!(f, ", layer {index} ({name})")?;
                }
            }
            WorkerState::Done => write!(f, "was done")?,
        }
        if !self.finished.is_empty() {
            write!(f, "; before that")?;
            for action in &self.finished {
                write!(f, " {action}")?;
            }
        }
        Ok(())
    }
}
