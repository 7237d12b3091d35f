//! Errors: what failed, where, and what to do.

use std::{error::Error as StdError, fmt, time::Duration};

use serde::{Deserialize, Serialize};
use stovepipe_collective::CollectiveError;
use stovepipe_comm::{Peer, ProcessError};
use stovepipe_plan::{CutError, PlanError};
use stovepipe_schedule::{Action, ScheduleError, SegmentsError, SpanKind, count};
use thiserror::Error;

use crate::{
    api::precision::PrecisionError,
    engine::panic::Panicked,
    measure::{
        device::{DeviceError, MOST_THREADS},
        out_of_memory::advised,
    },
    model::{
        layer::LayerError,
        packed::PackError,
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
    #[error("{} are more than the model's {}", count(*stages, "stage"), count(*layers, "layer"))]
    MoreStagesThanLayers {
        /// Requested stages.
        stages: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// The balance is for another number of stages.
    #[error(
        "the balance {balance:?} is for {}, but there are {stages}",
        count(balance.len(), "stage")
    )]
    BalanceStages {
        /// Layers a stage, as given.
        balance: Vec<usize>,
        /// Stages of the pipeline.
        stages: usize,
    },
    /// The balance does not add up to the number of layers.
    #[error(
        "the balance {balance:?} adds up to {}, but the model has {layers}",
        count(*sum, "layer")
    )]
    BalanceSum {
        /// Layers a stage, as given.
        balance: Vec<usize>,
        /// Their sum.
        sum: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// The balance has a stage without layers.
    #[error("the balance gives stage {0} no layer")]
    EmptyStage(usize),
    /// There is not one cost per layer.
    #[error("the number of costs is {costs}, not that of the layers, {layers}")]
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
    /// The model does not have the layers that are to be recomputed.
    #[error(transparent)]
    Segments(#[from] SegmentsError),
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
    /// Zero threads, or more than [`MOST_THREADS`].
    #[error("a stage can have from 1 to {MOST_THREADS} threads, not {0}")]
    Threads(usize),
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
    #[error("could not start a thread that copies values between devices: {0}")]
    TransferThread(#[source] std::io::Error),
    /// A device is of a process that the communicator does not have.
    #[error(
        "worker {worker} is on a device of process {process}, but there {}: give the builder a \
         communicator of more ranks, or take other devices",
        if *size == 1 { "is one process".to_owned() } else { format!("are {size}") }
    )]
    NoProcess {
        /// The worker.
        worker: usize,
        /// The process.
        process: usize,
        /// The number of processes.
        size: usize,
    },
    /// A process has no device, so that it would only wait.
    #[error("process {process} has no device: name one as {process}/cpu, or start fewer processes")]
    IdleProcess {
        /// The process.
        process: usize,
    },
    /// What layers send each other cannot be sent to another process.
    #[error(
        "{0} cannot be sent to another process: derive `Flow`, or write `pack` and `unpack` for it"
    )]
    FlowNotPacked(&'static str),
    /// MPI cannot add up the gradients of a stage's replicas.
    #[error("MPI cannot add up the gradients of stage {stage}'s replicas: {source}")]
    AllReduce {
        /// The stage.
        stage: usize,
        /// Why.
        source: CollectiveError,
    },
    /// The processes of the pipeline do not get on.
    #[error(transparent)]
    Processes(#[from] ProcessError),
    /// A name is not that of a device of this process.
    #[error(transparent)]
    DeviceName(#[from] DeviceError),
    /// A device cannot be opened, or does not answer.
    #[error("device `{device}` cannot be used: {source}")]
    Unusable {
        /// Its name.
        device: String,
        /// The reason.
        source: BoxedError,
    },
    /// The link between two devices could not be measured.
    #[error("the link between two devices could not be measured: {0}")]
    Link(#[source] BoxedError),
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
    #[error("the batch has {} in its input, but {other} in its {part}", count(*input, "sample"))]
    UnevenBatch {
        /// Samples in the first tensor of the input.
        input: usize,
        /// Samples in the other part.
        other: usize,
        /// Its name.
        part: &'static str,
    },
    /// A flow's own `split` returned another number of parts.
    #[error("the {part} was split into {}, not into {}", count(*found, "part"), count(*expected, "micro-batch"))]
    BadSplit {
        /// The part of the batch.
        part: &'static str,
        /// Parts returned.
        found: usize,
        /// Micro-batches.
        expected: usize,
    },
    /// The weight of the batch is not a positive, finite number.
    #[error("the batch's weight is {0}: the mean loss over it is undefined")]
    NoWeight(f64),
    /// The scheduler has no schedule for this number of micro-batches.
    #[error("no schedule: {0}")]
    Schedule(#[from] ScheduleError),
    /// The engine cannot run the schedule, or it is not the requested one.
    #[error(transparent)]
    WrongSchedule(#[from] WrongSchedule),
    /// A window cannot be trained.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// The scheduler assigns stages to other workers than when the pipeline was built.
    #[error("the scheduler assigns stages to other workers for this number of micro-batches")]
    OtherWorkers,
    /// `change_stages` got a number of states that is not the number of stages.
    #[error("{} given for {}", count(*states, "state"), count(*stages, "stage"))]
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
    /// The sum of the gradients of replicas is still stuck in an earlier step.
    #[error(
        "the gradients of replicas are stuck since an earlier step stalled: build the pipeline again"
    )]
    StuckReduction,
    /// Two processes have a stage, but not the same values of it.
    #[error(
        "the replicas of stage {stage} have become different: {tensor} of {} is not that of {}. Resume \
         from an earlier checkpoint; if it happens again, one of the devices may be faulty",
        replicas[1], replicas[0]
    )]
    ReplicasDiffer {
        /// The stage.
        stage: usize,
        /// The tensor, as in the model's file.
        tensor: String,
        /// Two processes that have the stage.
        replicas: [Peer; 2],
    },
    /// The progress callback used its own pipeline.
    #[error("a progress callback cannot use its own pipeline: its step is still running")]
    InCallback,
    /// A stop was requested.
    #[error("stopped on request")]
    Stopped,
    /// The step was cancelled from outside: another process failed, for example.
    #[error("the step was cancelled: {0}")]
    Cancelled(#[source] BoxedError),
    /// The processes of the pipeline do not get on.
    #[error(transparent)]
    Processes(#[from] ProcessError),
    /// A stage's device failed outside of a step: a value could not be read, or not be copied there.
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

/// Without enough micro-batches, replicas are left out.
fn too_few(workers: usize, devices: usize) -> &'static str {
    match workers < devices {
        true => ", and no fewer micro-batches than replicas",
        false => "",
    }
}

fn place_of(place: Option<&StageFailure>) -> String {
    let unknown = ", but was finite when the step ran again to find the layer: does a layer draw its \
                   own random numbers?";
    place.map_or(unknown.to_owned(), |failure| format!(": {failure}"))
}

/// Why the engine cannot run a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WrongSchedule {
    /// The scheduler returned another schedule than the requested one, or one that does not train.
    #[error(
        "the scheduler was asked for a training schedule of {} and {}, but made one of {} and {}, or \
         one without backward passes",
        count(requested[0], "stage"), count(requested[1], "micro-batch"),
        count(found[0], "stage"), count(found[1], "micro-batch")
    )]
    Other {
        /// Requested stages and micro-batches.
        requested: [usize; 2],
        /// Those of the schedule.
        found: [usize; 2],
    },
    /// There is not one device per worker.
    #[error(
        "the schedule has {}, but the number of devices is {devices}: give one for each{}",
        count(*workers, "worker"), too_few(*workers, *devices)
    )]
    Workers {
        /// Workers of the schedule.
        workers: usize,
        /// Devices given.
        devices: usize,
    },
    /// The schedule changes weights before its end.
    #[error(
        "the schedule changes weights before its end (U): train windows with it, or use a schedule \
         without updates, such as 1F1B"
    )]
    Asynchronous,
    /// The schedule does not change weights.
    #[error("a window needs a schedule that changes weights (U), such as PipeDream's")]
    Synchronous,
    /// The schedule changes weights in another rhythm.
    #[error(
        "the schedule changes weights after every {} (U), but a mini-batch has {}",
        count(*every, "micro-batch"), count(*micro_batches, "micro-batch")
    )]
    Updates {
        /// Micro-batches of an update.
        every: usize,
        /// Micro-batches of a mini-batch.
        micro_batches: usize,
    },
}

/// Why a window of mini-batches cannot be trained.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WindowError {
    /// It has no mini-batches.
    #[error("the window has no mini-batches")]
    Empty,
    /// A step that overflows would have to be skipped, but later ones have begun.
    #[error("f16 cannot train without a flush: use bf16 or f32")]
    F16,
    /// Layers share a parameter, which two stages would change at different times.
    #[error("layers share a parameter: without a flush each stage would change its own copy")]
    SharedParameters,
    /// Replicas in several processes have devices of unlike kinds, which one of them updates.
    #[error("replicas in several processes need devices of one kind without a flush")]
    UnlikeReplicas,
    /// Weights are not stashed, but activations are kept, which are of older ones.
    #[error("weights that are not stashed need Recompute::Always")]
    KeptActivations,
    /// The iterator ended before its length.
    #[error("the window's batches ended after {found} of {expected}")]
    Ended {
        /// Mini-batches that came.
        found: usize,
        /// The length that the iterator gave.
        expected: usize,
    },
    /// A mini-batch is too small.
    #[error(
        "a mini-batch of the window has {}, for {}: each needs one",
        count(*samples, "sample"), count(*micro_batches, "micro-batch")
    )]
    FewSamples {
        /// Its samples.
        samples: usize,
        /// The pipeline's micro-batches.
        micro_batches: usize,
    },
}

/// Where and why a stage failed.
#[derive(Debug, Error)]
#[error(
    "stage {stage} failed on {device}, {}, {} of micro-batch {}: {}\n{flight}",
    in_layer(layer.as_ref()), SpanKind::from(action.pass), action.micro_batch, advised(cause)
)]
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
    #[source]
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
    /// A message of another process cannot be read.
    #[error(transparent)]
    Unpacked(#[from] PackError),
    /// Another process could not send what this one waits for.
    #[error(transparent)]
    OtherProcess(ProcessError),
    /// Its gradients could not be added to those of the stage's other replicas.
    #[error("the gradients could not be added to those of other replicas: {0}")]
    Reduction(#[from] CollectiveError),
    /// Its gradients could not be kept where they were to be.
    #[error("its gradients could not be kept off the device: {0}")]
    GradientStore(BoxedError),
    /// The engine broke a rule of its own.
    #[error("{0}: this is a bug in the engine")]
    Internal(&'static str),
}

fn in_layer(layer: Option<&(usize, String)>) -> String {
    match layer {
        Some((index, name)) => format!("in layer {index} ({name})"),
        None => "outside its layers".to_owned(),
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    /// It belongs to another process, which knows.
    Elsewhere,
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
    /// It waits until the gradients of a stage are added to those of its other replicas.
    Reducing {
        /// The stage.
        stage: usize,
    },
    /// It has finished all its actions.
    Done,
}

/// Of a flight record.
const MOST_SHOWN: usize = 8;

impl fmt::Display for FlightRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let workers = self.workers.iter().enumerate();
        let workers = workers.map(|(index, worker)| format!("worker {index}: {worker}"));
        let transfers = self.transfers.iter();
        let transfers = transfers.map(|transfer| format!("being copied: {transfer}"));
        // A line, however many workers there are.
        let mut parts: Vec<_> = workers.chain(transfers).collect();
        let more = parts.len().saturating_sub(MOST_SHOWN);
        if more > 0 {
            parts.truncate(MOST_SHOWN);
            parts.push(format!("and {more} more"));
        }
        write!(f, "  {}", parts.join(" · "))
    }
}

impl fmt::Display for WorkerRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            WorkerState::Idle => write!(f, "had not started")?,
            WorkerState::Elsewhere => write!(f, "is in another process")?,
            WorkerState::Waiting { action, on_stage } => {
                write!(f, "waited for stage {on_stage} to begin {action}")?;
            }
            WorkerState::Running { action, layer } => {
                write!(f, "was in {action}")?;
                if let Some((index, name)) = layer {
                    write!(f, ", layer {index} ({name})")?;
                }
            }
            WorkerState::Reducing { stage } => {
                write!(
                    f,
                    "waited for the gradients of other replicas of stage {stage}"
                )?;
            }
            WorkerState::Done => write!(f, "was done")?,
        }
        if !self.finished.is_empty() {
            write!(f, "; before that")?;
        }
        (self.finished.iter()).try_for_each(|action| write!(f, " {action}"))
    }
}
