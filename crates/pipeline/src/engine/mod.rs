//! Runs schedules: workers, and what they do in a step.
//!
//! ```text
//! step      one step from the caller's side: hand out, gather, explain
//!  └ stage  one stage from a worker's side: its passes                    one a stage
//!     ├ tape     layers forward and backward, the graph cut at each
//!     ├ late     backward passes in halves
//!     ├ copies   the copies of layers that keep the model as it was
//!     ├ statistics  running statistics, counted once a mini-batch
//!     ├ links    what neighbouring stages send each other
//!     ├ skips    what stages send past their neighbours
//!     └ record   what happened when
//! worker    a worker's thread, a member of a CPU pool of its own
//! carrier   threads that take what stages send each other from device to device
//! values    what is done to a flow: move, cut from its graph, seed, join
//! finite    whether its numbers are numbers
//! guard     a user's panic made an error
//! ```

pub(crate) mod copies;
pub(crate) mod deferred;
pub(crate) mod finite;
pub(crate) mod guard;
pub(crate) mod links;
pub(crate) mod record;
pub(crate) mod skips;
pub(crate) mod stage;
pub(crate) mod statistics;
pub(crate) mod step;
pub(crate) mod tape;
pub(crate) mod transfer;
pub(crate) mod values;
pub(crate) mod worker;

use std::{
    collections::HashMap,
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    thread::{self, ThreadId},
    time::Duration,
};

use burn::tensor::Device;
use stovepipe_schedule::{Recompute, Schedule, Scheduler};

use crate::{
    api::{
        control::{Progress, StopHandle},
        error::{StepError, WrongSchedule},
        precision::{LossScaler, Precision},
    },
    engine::{
        skips::StageSkips,
        statistics::{Cells, Momenta},
        transfer::TransferThreads,
    },
    model::ties::Ties,
};
use worker::Worker;

/// Where a stage lies.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    /// Its layers, by their place in the model.
    pub(crate) layers: Range<usize>,
    /// Their names, for errors.
    pub(crate) names: Arc<[String]>,
    pub(crate) device: Device,
    /// What it is called.
    pub(crate) device_name: String,
    pub(crate) skips: StageSkips,
    /// The cells of each layer's running statistics.
    pub(crate) cells: Arc<[Cells]>,
}

pub(crate) type ProgressCallback = Box<dyn Fn(&Progress) + Send + Sync>;

/// All of a pipeline but its layers.
pub(crate) struct Engine {
    pub(crate) workers: Vec<Worker>,
    /// What goes between workers on different devices.
    pub(crate) transfers: TransferThreads,
    pub(crate) stages: Vec<Placement>,
    /// The worker of each stage.
    pub(crate) owners: Vec<usize>,
    pub(crate) scheduler: Arc<dyn Scheduler>,
    pub(crate) micro_batches: usize,
    pub(crate) recompute: Recompute,
    pub(crate) stall_timeout: Option<Duration>,
    pub(crate) stop: StopHandle,
    pub(crate) progress: Option<ProgressCallback>,
    /// Plans that were needed so far, by micro-batches: a small batch has fewer.
    pub(crate) plans: Mutex<HashMap<usize, Arc<Plan>>>,
    /// The seed of random numbers.
    pub(crate) seed: u64,
    /// Training steps that have succeeded.
    pub(crate) steps: AtomicU64,
    /// The bits of the share of the training that is behind.
    pub(crate) training_progress: AtomicU64,
    /// Whether a step whose loss or gradients are not finite is an error.
    pub(crate) check_finite: bool,
    /// What stages compute in.
    pub(crate) precision: Precision,
    /// The scale of the loss, if it is scaled.
    pub(crate) loss_scaler: Mutex<LossScaler>,
    /// Whether layers may draw random numbers that cannot be drawn again.
    pub(crate) allow_unkeyed: bool,
    /// Parameters that several layers share.
    pub(crate) ties: Ties,
    /// What is known of the momenta of batch norms.
    pub(crate) momenta: Arc<Mutex<Momenta>>,
    /// Held by the step under way.
    pub(crate) turn: Mutex<()>,
    /// The thread that is in the progress callback.
    pub(crate) in_callback: Mutex<Option<ThreadId>>,
}

impl Engine {
    /// Waits for its turn to step, unless it was asked to stop. A step keeps its turn until its
    /// statistics are part of the model: the next one begins with them.
    pub(crate) fn begin_step(&self) -> Result<MutexGuard<'_, ()>, StepError> {
        match self.stop.is_stopped() {
            true => Err(StepError::Stopped),
            false => self.take_turn(),
        }
    }

    /// Waits until the workers are free, and makes sure that none is stuck.
    pub(crate) fn take_turn(&self) -> Result<MutexGuard<'_, ()>, StepError> {
        // The callback runs within a step: to wait for its end there would be to wait for ever.
        let in_callback = *self
            .in_callback
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if in_callback == Some(thread::current().id()) {
            return Err(StepError::InCallback);
        }
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(worker) = self.workers.iter().position(Worker::is_stuck) {
            return Err(StepError::Stuck { worker });
        }
        match self.transfers.stuck() {
            Some(transfer) => Err(StepError::StuckTransfer(transfer)),
            None => Ok(turn),
        }
    }

    /// What a change made of a stage, if all its layers came back; nothing came back from a worker that is gone or hangs.
    pub(crate) fn changed<L, S>(
        &self,
        stage: usize,
        outcome: Option<Result<(Vec<L>, S), String>>,
    ) -> Result<(Vec<L>, S), StepError> {
        let placement = &self.stages[stage];
        let cause = match outcome {
            Some(Ok(changed)) if changed.0.len() == placement.layers.len() => return Ok(changed),
            Some(Ok((layers, _))) => format!(
                "{} layers came back of {}",
                layers.len(),
                placement.layers.len()
            ),
            Some(Err(cause)) => cause,
            None => match self.stall_timeout {
                Some(limit) => format!("no answer for {:.1} s", limit.as_secs_f64()),
                None => "its worker is gone".to_owned(),
            },
        };
        Err(StepError::ChangeFailed {
            stage,
            device: placement.device_name.clone(),
            cause,
        })
    }

    /// The scaler of the loss, if it is scaled.
    pub(crate) fn loss_scaler(&self) -> Option<MutexGuard<'_, LossScaler>> {
        let scaler = || (self.loss_scaler.lock()).unwrap_or_else(PoisonError::into_inner);
        (self.precision == Precision::F16).then(scaler)
    }

    /// Calls the progress callback, if there is one.
    fn tell(&self, progress: &Progress) -> Result<(), StepError> {
        let Some(callback) = &self.progress else {
            return Ok(());
        };
        let set = |thread| {
            *self
                .in_callback
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = thread;
        };
        set(Some(thread::current().id()));
        let told = guard::guarded("progress callback", || callback(progress));
        set(None);
        told
    }

    /// How to train on a number of micro-batches.
    pub(crate) fn plan(&self, micro_batches: usize) -> Result<Arc<Plan>, StepError> {
        let mut known = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = known.get(&micro_batches) {
            return Ok(plan.clone());
        }
        let schedule = self.scheduler.schedule(self.stages.len(), micro_batches)?;
        let owners = owners(
            &schedule,
            self.stages.len(),
            micro_batches,
            self.workers.len(),
        )?;
        if owners != self.owners {
            return Err(StepError::OtherWorkers);
        }
        let recorded = (0..self.stages.len())
            .map(|stage| self.recompute.kept(&schedule, stage))
            .collect();
        let plan = Arc::new(Plan { schedule, recorded });
        known.insert(micro_batches, plan.clone());
        Ok(plan)
    }
}

/// Makes sure that a pipeline of so many devices could run a schedule.
///
/// ```
/// use stovepipe_pipeline::{check_schedule, error::WrongSchedule};
/// use stovepipe_schedule::{Interleaved, PipeDream, Scheduler};
///
/// let schedule = Interleaved { chunks: 2 }.schedule(4, 8)?;
/// assert_eq!(check_schedule(&schedule, 2), Ok(()));
/// assert_eq!(
///     check_schedule(&PipeDream::default().schedule(2, 8)?, 2),
///     Err(WrongSchedule::Asynchronous)
/// );
/// # Ok::<(), stovepipe_schedule::ScheduleError>(())
/// ```
///
/// # Errors
///
/// Why it could not.
pub fn check_schedule(schedule: &Schedule, devices: usize) -> Result<(), WrongSchedule> {
    let (stages, micro_batches) = (schedule.stages(), schedule.micro_batches());
    owners(schedule, stages, micro_batches, devices).map(|_| ())
}

/// The worker of each stage. A scheduler may be anybody's: makes sure that the schedule is the one
/// that was asked for, trains, and is none of those that the engine does not run.
pub(crate) fn owners(
    schedule: &Schedule,
    stages: usize,
    micro_batches: usize,
    devices: usize,
) -> Result<Vec<usize>, WrongSchedule> {
    let (found_stages, found_micro_batches) = (schedule.stages(), schedule.micro_batches());
    let fits = (found_stages, found_micro_batches) == (stages, micro_batches);
    if !(fits && schedule.is_training()) {
        return Err(WrongSchedule::Other {
            stages,
            micro_batches,
            found_stages,
            found_micro_batches,
        });
    }
    if schedule.is_asynchronous() {
        return Err(WrongSchedule::Asynchronous);
    }
    let workers = schedule.workers().len();
    let owners = (0..stages)
        .map(|stage| owner(schedule, stage))
        .collect::<Result<_, _>>()?;
    match workers == devices {
        true => Ok(owners),
        false => Err(WrongSchedule::Workers { workers, devices }),
    }
}

/// The only worker of a stage.
fn owner(schedule: &Schedule, stage: usize) -> Result<usize, WrongSchedule> {
    match *schedule.replicas(stage) {
        [worker] => Ok(worker),
        ref replicas => Err(WrongSchedule::Replicas {
            stage,
            replicas: replicas.len(),
        }),
    }
}

/// A schedule, and which micro-batches each stage records in their forward pass.
pub(crate) struct Plan {
    pub(crate) schedule: Schedule,
    pub(crate) recorded: Vec<Vec<bool>>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("stages", &self.stages)
            .field("scheduler", &self.scheduler)
            .field("micro_batches", &self.micro_batches)
            .field("recompute", &self.recompute)
            .finish_non_exhaustive()
    }
}
