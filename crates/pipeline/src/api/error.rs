//! What can go wrong, and where it did.

use std::{fmt, time::Duration};

use stovepipe_plan::{CutError, PlanError};
use stovepipe_schedule::{Action, Pass, ScheduleError};
use thiserror::Error;

use crate::{
    api::precision::PrecisionError,
    measure::out_of_memory::advised,
    model::{unkeyed::Unkeyed, wiring::WiringError},
};

/// A pipeline that cannot be built.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    // The model and its cut.
    /// The model is empty.
    #[error("the model has no layers")]
    NoLayers,
    /// No device was given.
    #[error("a pipeline needs at least one stage: give it a device for each worker")]
    NoStages,
    /// A stage would have no layer.
    #[error("{stages} stages are more than the model's {layers} layers")]
    MoreStagesThanLayers {
        /// Stages asked for.
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
    /// The balance leaves layers over, or wants more than there are.
    #[error("the balance {balance:?} adds up to {sum} layers, but the model has {layers}")]
    BalanceSum {
        /// Layers a stage, as given.
        balance: Vec<usize>,
        /// Their sum.
        sum: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// A stage was given no layer.
    #[error("the balance gives stage {stage} no layer")]
    EmptyStage {
        /// The stage.
        stage: usize,
    },
    /// The costs are those of another model.
    #[error("there are {costs} costs for {layers} layers")]
    CostCount {
        /// Costs given.
        costs: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// A cost is negative, infinite or no number.
    #[error(
        "layer {layer} ({name}) costs {cost}, which is no finite number of at least 0, or too large"
    )]
    Cost {
        /// The layer.
        layer: usize,
        /// Its name.
        name: String,
        /// Its cost.
        cost: f64,
    },
    /// The model cannot be cut by these costs.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// A layer could not be measured.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The thread that measured ended early.
    #[error("the layers could not be measured: the thread that did so ended early")]
    Unmeasured,
    /// A mistake in the wiring of skips.
    #[error(transparent)]
    Wiring(#[from] WiringError),
    /// A layer draws random numbers that cannot be drawn again.
    #[error(transparent)]
    Unkeyed(#[from] Unkeyed),
    /// Two layers share running statistics, which each would count for itself.
    #[error(
        "layer {first} ({first_name}) and layer {second} ({second_name}) share running statistics: \
         give each a batch norm of its own, parameters may be shared"
    )]
    SharedStatistics {
        /// Index of the first layer that holds them.
        first: usize,
        /// Its name.
        first_name: String,
        /// Index of the second.
        second: usize,
        /// Its name.
        second_name: String,
    },
    /// A layer's `skips` or `name` panicked.
    #[error("a layer's `skips` or `name` panicked: {message}")]
    Panicked {
        /// What it said.
        message: String,
    },

    /// There is no cut with a foreseeable step.
    #[error(transparent)]
    Plan(#[from] PlanError),

    // The run of a step.
    /// Zero micro-batches.
    #[error("the number of micro-batches must be at least 1")]
    NoMicroBatches,
    /// Zero threads.
    #[error("the number of threads of a stage must be at least 1")]
    NoThreads,
    /// The scheduler has no schedule for these numbers.
    #[error("no schedule: {0}")]
    Schedule(#[from] ScheduleError),
    /// The schedule cannot be run, or is not the one asked for.
    #[error(transparent)]
    WrongSchedule(#[from] WrongSchedule),
    /// A device cannot be used.
    #[error("stage {stage} cannot use its device {device}: {cause}")]
    Device {
        /// The stage.
        stage: usize,
        /// The device.
        device: String,
        /// What the device said.
        cause: String,
    },
    /// A device cannot compute in the precision.
    #[error(transparent)]
    Precision(#[from] PrecisionError),
    /// A thread could not be started.
    #[error("could not start worker {worker}: {source}")]
    Worker {
        /// The worker.
        worker: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// A thread that takes values from device to device could not be started.
    #[error("could not start a thread that takes values from device to device: {source}")]
    TransferThread {
        /// What the system said.
        source: std::io::Error,
    },
    /// A device cannot be opened, or does not answer.
    #[error("device `{device}` cannot be used: {cause}")]
    Unusable {
        /// Its name.
        device: String,
        /// What it said.
        cause: String,
    },
    /// What lies between two devices could not be measured.
    #[error("the link between two devices could not be measured: {cause}")]
    Link {
        /// What a device said.
        cause: String,
    },
    /// The sample did not get through the model.
    #[error("the sample does not pass through the model: {0}")]
    Sample(#[source] StepError),
}

/// The sample did not pass through a layer while it was measured.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("layer {layer} ({name}) could not be measured: {cause}")]
pub struct ProfileError {
    /// The layer.
    pub layer: usize,
    /// Its name.
    pub name: String,
    /// What it said.
    pub cause: String,
}

impl ProfileError {
    pub(crate) fn new<L: crate::Layer>(layers: &[L], layer: usize, cause: String) -> Self {
        let name = layers.get(layer).map(L::name).unwrap_or_default();
        Self { layer, name, cause }
    }
}

/// A step that did not end well. The model is as it was before the step.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StepError {
    // What the step was given.
    /// There is nothing in the batch.
    #[error("the batch is empty")]
    EmptyBatch,
    /// The parts of the batch disagree on how many samples it has.
    #[error("the batch has {input} samples in its input, but {other} in its {part}")]
    UnevenBatch {
        /// Samples in the first tensor of the input.
        input: usize,
        /// Samples in the other part.
        other: usize,
        /// Which part that is.
        part: &'static str,
    },
    /// A flow's own `split` returned another number of parts.
    #[error("the {part} was cut into {found} parts where {expected} micro-batches were asked for")]
    BadSplit {
        /// Which part of the batch that is.
        part: &'static str,
        /// Parts it was cut into.
        found: usize,
        /// Micro-batches.
        expected: usize,
    },
    /// The objective gave the batch no weight, or none that one can divide by.
    #[error("the batch's weight is {weight}: the mean loss over it is undefined")]
    NoWeight {
        /// The weight.
        weight: f64,
    },
    /// The scheduler has no schedule for this number of micro-batches.
    #[error("no schedule: {0}")]
    Schedule(#[from] ScheduleError),
    /// The schedule cannot be run, or is not the one asked for.
    #[error(transparent)]
    WrongSchedule(#[from] WrongSchedule),
    /// The scheduler gives stages to other workers than it did when the pipeline was built.
    #[error("the scheduler gives stages to other workers for this number of micro-batches")]
    OtherWorkers,
    /// `change_stages` was given a number of states that is not the number of stages.
    #[error("{states} states were given for {stages} stages")]
    WrongStates {
        /// States given.
        states: usize,
        /// Stages of the pipeline.
        stages: usize,
    },

    // What happened in it.
    /// A layer failed.
    #[error("{0}")]
    Failed(Box<StageFailure>),
    /// The loss or a gradient is infinite or no number.
    #[error("the {what} is not finite{}", place_of(place.as_deref()))]
    NotFinite {
        /// What is not finite.
        what: String,
        /// Where that began: what a second run of the step stumbled over. `None` if all was well in it.
        place: Option<Box<StageFailure>>,
    },
    /// A layer that was frozen when the pipeline was built draws random numbers that cannot be drawn
    /// again.
    #[error(transparent)]
    Unkeyed(#[from] Unkeyed),
    /// Code of the user's that runs outside the stages panicked.
    #[error("the {place} panicked: {message}")]
    Panicked {
        /// Which code.
        place: &'static str,
        /// What it said.
        message: String,
    },
    /// A worker ended without a word.
    #[error("a worker is gone; build the pipeline anew")]
    Lost,
    /// Nothing moved for longer than the pipeline's limit.
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
    #[error(
        "worker {worker} has been stuck since an earlier step stalled; build the pipeline anew"
    )]
    Stuck {
        /// The worker.
        worker: usize,
    },
    /// A message is still stuck between two devices in an earlier step.
    #[error("{0} are stuck since an earlier step stalled; build the pipeline anew")]
    StuckTransfer(Transfer),
    /// The progress callback used the pipeline whose step it was told about.
    #[error("a progress callback cannot use its own pipeline: the step is still under way")]
    InCallback,
    /// Somebody asked the pipeline to stop.
    #[error("stopped on request")]
    Stopped,
    /// A stage's device could not be read outside of a step.
    #[error("stage {stage} on {device}: {}", advised(cause))]
    Device {
        /// The stage.
        stage: usize,
        /// Its device.
        device: String,
        /// What the device said.
        cause: String,
    },
    /// The function given to `change_stages` failed on a stage, as an optimizer does on a device that is lost or full.
    #[error(
        "stage {stage} on {device} could not be changed: {}. The layers are lost: build the pipeline anew",
        advised(cause)
    )]
    ChangeFailed {
        /// The stage.
        stage: usize,
        /// Its device.
        device: String,
        /// What went wrong.
        cause: String,
    },
    /// The layers went with a change that failed.
    #[error("the layers were lost when an earlier change of them failed: build the pipeline anew")]
    LayersLost,
    /// The outputs of the micro-batches are of different kinds.
    #[error("the outputs of the micro-batches differ in kind or shape and cannot be joined")]
    UnlikeOutputs,
}

fn place_of(place: Option<&StageFailure>) -> String {
    match place {
        Some(failure) => format!(": {failure}"),
        None => ", and was when the step was run again to see where that began: does a layer draw \
                 random numbers of its own?"
            .to_owned(),
    }
}

/// A schedule that the engine cannot run, or not as it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WrongSchedule {
    /// A scheduler made a schedule that is not the one it was asked for, or does not train.
    #[error(
        "asked for a training schedule of {stages} stages and {micro_batches} micro-batches, the \
         scheduler made one of {found_stages} stages and {found_micro_batches} micro-batches, or \
         one without backward passes"
    )]
    Other {
        /// Stages asked for.
        stages: usize,
        /// Micro-batches asked for.
        micro_batches: usize,
        /// Stages that it has.
        found_stages: usize,
        /// Micro-batches that it has.
        found_micro_batches: usize,
    },
    /// There is not one device for each worker.
    #[error(
        "the schedule has {workers} workers, but {devices} devices were given: give one for each"
    )]
    Workers {
        /// Workers of the schedule.
        workers: usize,
        /// Devices given.
        devices: usize,
    },
    /// Weights would change in the midst of a step.
    #[error(
        "the schedule changes weights after each micro-batch (U), and this engine once after each \
         step: use a schedule without updates, such as 1F1B"
    )]
    Asynchronous,
    /// A stage has several workers.
    #[error(
        "stage {stage} has {replicas} replicas, and this engine runs one: give the stage to one \
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
    /// The layer's index and name, where it was a layer that failed.
    pub layer: Option<(usize, String)>,
    /// What the stage was doing, with the micro-batch.
    pub action: Action,
    /// The stage's device.
    pub device: String,
    /// What went wrong.
    pub cause: String,
    /// What each worker did last.
    pub flight: FlightRecord,
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

/// What each worker did last: kept all the time, shown when something goes wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlightRecord {
    /// One record a worker.
    pub workers: Vec<WorkerRecord>,
    /// What was on its way from device to device.
    pub transfers: Vec<Transfer>,
}

/// What a stage sends one on another device for a micro-batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// What it is.
    pub kind: TransferKind,
    /// The micro-batch.
    pub micro_batch: usize,
    /// The stage that sends it, and the one that receives it.
    pub stages: [usize; 2],
    /// Their devices.
    pub devices: [String; 2],
}

/// What stages send each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferKind {
    /// What the last layer of a stage made.
    Values,
    /// Its gradients.
    Gradients,
    /// What layers sent past their neighbours.
    Skips,
    /// Its gradients.
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
    /// The last actions that it finished, the oldest first.
    pub finished: Vec<Action>,
    /// What it was doing then.
    pub state: WorkerState,
}

/// What a worker is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WorkerState {
    /// It has not begun.
    #[default]
    Idle,
    /// It waits for what another stage sends.
    Waiting {
        /// What it will do with it.
        action: Action,
        /// The stage that it waits for.
        on_stage: usize,
    },
    /// It runs an action.
    Running {
        /// The action.
        action: Action,
        /// The layer's index and name, where it is in one.
        layer: Option<(usize, String)>,
    },
    /// It has done all its actions.
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
            write!(f, "\n  on their way: {transfer}")?;
        }
        Ok(())
    }
}

impl fmt::Display for WorkerRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            WorkerState::Idle => write!(f, "had not begun")?,
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
