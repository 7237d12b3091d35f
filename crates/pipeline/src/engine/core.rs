//! What lives as long as a pipeline, beside its layers.

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    thread::{self, ThreadId},
    time::Duration,
};

use burn::tensor::Device;
use stovepipe_runtime::Worker;

use crate::{
    api::{
        control::{Progress, StopHandle},
        error::StepError,
        precision::{LossScaler, Precision},
    },
    engine::{
        panic::caught,
        schedules::Schedules,
        skips::StageSkips,
        statistics::{Cells, Momenta},
        transfer::TransferThreads,
    },
    model::{
        ties::Ties,
        unkeyed::{Unkeyed, UnkeyedPolicy},
    },
};

/// The layers of a stage and their device.
#[derive(Clone, Debug)]
pub(crate) struct StagePlacement {
    /// Its layers, by their index in the model.
    pub(crate) layers: Range<usize>,
    /// Their names, for errors.
    pub(crate) names: Arc<[String]>,
    pub(crate) device: Device,
    pub(crate) device_name: String,
    pub(crate) skips: StageSkips,
    /// The cells of each layer's running statistics.
    pub(crate) cells: Arc<[Cells]>,
}

pub(crate) type ProgressCallback = Box<dyn Fn(&Progress) + Send + Sync>;

/// All of a pipeline except its layers.
pub(crate) struct Engine {
    pub(crate) workers: Vec<Worker>,
    pub(crate) transfers: TransferThreads,
    pub(crate) stages: Vec<StagePlacement>,
    pub(crate) schedules: Schedules,
    pub(crate) micro_batches: usize,
    pub(crate) stall_timeout: Option<Duration>,
    pub(crate) stop: StopHandle,
    pub(crate) progress: Option<ProgressCallback>,
    /// The seed of random numbers.
    pub(crate) seed: u64,
    /// The number of successful training steps.
    pub(crate) steps: AtomicU64,
    /// The finished share of the training, as the bits of an `f64`.
    pub(crate) training_progress: AtomicU64,
    /// Whether a loss or gradient that is NaN or infinite is an error.
    pub(crate) check_finite: bool,
    pub(crate) precision: Precision,
    /// Used in f16 only.
    pub(crate) loss_scaler: Mutex<LossScaler>,
    pub(crate) unkeyed_policy: UnkeyedPolicy,
    /// Layers that draw random numbers which cannot be drawn again.
    pub(crate) unkeyed: Vec<Unkeyed>,
    pub(crate) ties: Ties,
    /// The momenta of batch norms that are known so far.
    pub(crate) momenta: Arc<Mutex<Momenta>>,
    /// Held during a step.
    pub(crate) turn: Mutex<()>,
    /// The thread that is in the progress callback.
    pub(crate) in_callback: Mutex<Option<ThreadId>>,
}

impl Engine {
    /// Waits for the previous step to end. A step holds the guard until its statistics are part of
    /// the model.
    pub(crate) fn begin_step(&self) -> Result<MutexGuard<'_, ()>, StepError> {
        if self.stop.is_stopped() {
            return Err(StepError::Stopped);
        }
        self.take_turn()
    }

    /// Waits until the workers are free, and checks that none is stuck.
    pub(crate) fn take_turn(&self) -> Result<MutexGuard<'_, ()>, StepError> {
        // The callback runs within a step: waiting there for its end would never return.
        if *self.lock_callback() == Some(thread::current().id()) {
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

    /// The scaler of the loss, in f16.
    pub(crate) fn loss_scaler(&self) -> Option<MutexGuard<'_, LossScaler>> {
        let scaler = || (self.loss_scaler.lock()).unwrap_or_else(PoisonError::into_inner);
        (self.precision == Precision::F16).then(scaler)
    }

    /// Calls the progress callback, if there is one.
    pub(crate) fn report(&self, progress: &Progress) -> Result<(), StepError> {
        let Some(callback) = &self.progress else {
            return Ok(());
        };
        *self.lock_callback() = Some(thread::current().id());
        let called = caught(|| callback(progress));
        *self.lock_callback() = None;
        called.map_err(StepError::panicked("progress callback"))
    }

    fn lock_callback(&self) -> MutexGuard<'_, Option<ThreadId>> {
        (self.in_callback.lock()).unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker of each stage.
    pub(crate) fn owners(&self) -> &[usize] {
        &self.schedules.owners
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("stages", &self.stages)
            .field("scheduler", &self.schedules.scheduler)
            .field("micro_batches", &self.micro_batches)
            .field("recompute", &self.schedules.recompute)
            .finish_non_exhaustive()
    }
}
