//! What lives as long as a pipeline, beside its layers.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64},
    },
    thread::{self, ThreadId},
    time::Duration,
};

use burn::tensor::Device;
use stovepipe_collective::AllReduce;
use stovepipe_runtime::{CancelHandle, StopHandle, Worker};
use stovepipe_schedule::WeightPolicy;

use crate::{
    api::{
        batch::Progress,
        error::{BoxedError, StepError},
        precision::{LossScaler, Precision},
    },
    engine::{
        panic::caught,
        processes::Processes,
        reduction::Reducers,
        schedules::Schedules,
        seats::{Seat, Seats},
        shared::Shared,
        stage::StagePlacement,
        statistics::Momenta,
        transfer::TransferThreads,
    },
    measure::device::NamedDevice,
    model::{
        ties::Ties,
        unkeyed::{Unkeyed, UnkeyedPolicy},
    },
};

pub(crate) type ProgressCallback = Box<dyn Fn(&Progress) + Send + Sync>;

/// All of a pipeline except its layers.
pub(crate) struct Engine {
    /// This process's workers.
    pub(crate) workers: Vec<Worker>,
    pub(crate) processes: Arc<Processes>,
    pub(crate) transfers: TransferThreads,
    pub(crate) reducers: Reducers,
    pub(crate) stages: Vec<StagePlacement>,
    /// The device of each worker.
    pub(crate) devices: Vec<NamedDevice>,
    pub(crate) schedules: Schedules,
    pub(crate) micro_batches: usize,
    pub(crate) stall_timeout: Option<Duration>,
    pub(crate) stop: StopHandle,
    /// Ends a run of a schedule from outside, for example when another process failed.
    pub(crate) cancel: CancelHandle<BoxedError>,
    pub(crate) progress: Option<ProgressCallback>,
    pub(crate) seed: u64,
    pub(crate) steps: AtomicU64,
    /// The bits of an `f64`.
    pub(crate) training_progress: AtomicU64,
    pub(crate) check_finite: bool,
    /// Whether steps sum what their passes compute.
    pub(crate) sums_passes: AtomicBool,
    /// Of gradients of replicas in several processes.
    pub(crate) all_reduce: AllReduce,
    pub(crate) precision: Precision,
    /// Used in f16 only.
    pub(crate) loss_scaler: Mutex<LossScaler>,
    pub(crate) unkeyed_policy: UnkeyedPolicy,
    pub(crate) unkeyed: Vec<Unkeyed>,
    /// Among the layers of this process.
    pub(crate) ties: Ties,
    /// The places of all ties: what processes must have the same of.
    pub(crate) tied_places: String,
    /// `None` if no parameter has places in several processes.
    pub(crate) shared: Option<Arc<Shared>>,
    /// Whether any parameter has several places.
    pub(crate) has_ties: bool,
    /// Whether the schedule is one for windows.
    pub(crate) is_asynchronous: bool,
    /// Of windows.
    pub(crate) weight_policy: WeightPolicy,
    /// By stage: whether replicas in several processes have devices of unlike kinds.
    pub(crate) unlike: Vec<bool>,
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
        let mut workers = self.processes.own_workers().zip(&self.workers);
        if let Some((worker, _)) = workers.find(|(_, worker)| worker.is_stuck()) {
            return Err(StepError::Stuck { worker });
        }
        if self.reducers.are_stuck() {
            return Err(StepError::StuckReduction);
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

    /// This process's first seat of a stage: its device has the layers, if there is one.
    pub(crate) fn home(&self, stage: usize) -> Option<Seat> {
        self.processes.home(self.seats().of_stage(stage))
    }

    /// Whether this process has a layer.
    pub(crate) fn is_own_layer(&self, layer: usize) -> bool {
        let own = |stage: &StagePlacement| stage.layers.contains(&layer);
        (self.stages.iter().position(own)).is_some_and(|stage| self.home(stage).is_some())
    }

    /// A device of this process.
    pub(crate) fn own_device(&self) -> &Device {
        let mut stages = 0..self.stages.len();
        let own = stages.find(|&stage| self.home(stage).is_some());
        &self.stages[own.unwrap_or_default()].device
    }

    /// A seat's stage, on the seat's device.
    pub(crate) fn placement(&self, seat: Seat) -> StagePlacement {
        let device = &self.devices[seat.worker];
        StagePlacement {
            device: device.device.clone().inner(),
            device_name: device.name.clone(),
            ..self.stages[seat.stage].clone()
        }
    }

    pub(crate) fn seats(&self) -> &Seats {
        &self.schedules.seats
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    };

    use burn::{
        module::Module,
        nn::{BatchNorm, BatchNormConfig},
        tensor::{Device, Int, Tensor},
    };
    use stovepipe_derive::layer;

    use super::*;
    use crate::{CrossEntropy, Pipeline, PipelineBuilder};

    #[derive(Module, Debug)]
    struct Norm {
        norm: BatchNorm,
    }

    #[layer]
    impl Norm {
        fn forward(&self, x: Tensor<2>) -> Tensor<2> {
            self.norm.forward(x).tanh()
        }
    }

    fn builder() -> PipelineBuilder<Norm> {
        let device = Device::flex();
        let norm = || BatchNormConfig::new(3).init(&device);
        let layers = [(); 4].map(|()| Norm { norm: norm() });
        let builder = Pipeline::builder(layers.into()).micro_batches(4);
        builder.devices([device.clone(), device.clone()])
    }

    /// A step's loss and gradients.
    fn step(pipeline: &Pipeline<Norm>) -> Result<Vec<u32>, StepError> {
        let device = Device::flex();
        let x = Tensor::<1, Int>::arange(0..24, &device).float().sin();
        let classes = Tensor::<1, Int>::from_ints([0, 1, 2, 0, 1, 2, 0, 1], &device);
        let step = pipeline.train_step((x.reshape([8, 3]), classes), &CrossEntropy::new())?;
        let gradient = |layer: &Norm| step.gradients.get::<1>(layer.norm.gamma.id).unwrap();
        let gradients = pipeline.layers().iter().map(gradient).flat_map(bits);
        Ok([(step.loss as f32).to_bits()]
            .into_iter()
            .chain(gradients)
            .collect())
    }

    fn bits(tensor: Tensor<1>) -> Vec<u32> {
        let values = tensor.into_data().try_to_vec::<f32>().unwrap();
        values.into_iter().map(f32::to_bits).collect()
    }

    fn statistics(pipeline: &Pipeline<Norm>) -> Vec<u32> {
        let of = |norm: &BatchNorm| [&norm.running_mean, &norm.running_var].map(|s| s.value());
        let layers = pipeline.layers().iter();
        layers
            .flat_map(|layer| of(&layer.norm))
            .flat_map(bits)
            .collect()
    }

    fn is_cancelled(result: Result<Vec<u32>, StepError>, reason: &str) -> bool {
        let expected = format!("the step was cancelled: {reason}");
        matches!(result, Err(StepError::Cancelled(_)))
            && result.is_err_and(|error| error.to_string() == expected)
    }

    /// After each of its actions, also the last.
    #[test]
    fn another_thread_cancels_a_step_and_the_next_one_is_undisturbed() {
        let undisturbed = builder().build().unwrap();
        let untouched = statistics(&undisturbed);
        let expected = step(&undisturbed).unwrap();
        for at in 1..=16 {
            let meet = Arc::new(Barrier::new(2));
            let (met, first) = (meet.clone(), AtomicBool::new(true));
            let pipeline = builder()
                .on_progress(move |progress| {
                    assert_eq!(progress.total, 16);
                    if progress.done == at && first.swap(false, Ordering::AcqRel) {
                        met.wait(); // now it is cancelled
                        met.wait();
                    }
                })
                .build()
                .unwrap();
            let cancel = pipeline.engine.cancel.clone();
            let result = thread::scope(|scope| {
                scope.spawn(|| {
                    meet.wait();
                    cancel.cancel(0, "rank 1 on host b failed".into());
                    meet.wait();
                });
                step(&pipeline)
            });
            assert!(is_cancelled(result, "rank 1 on host b failed"));
            assert_eq!(
                (pipeline.steps(), statistics(&pipeline)),
                (0, untouched.clone())
            );

            // Too late for step 0, and too early for step 2.
            cancel.cancel(0, "late".into());
            cancel.cancel(2, "early".into());
            assert_eq!(step(&pipeline).unwrap(), expected);
            assert_eq!(statistics(&pipeline), statistics(&undisturbed));
            assert!(is_cancelled(step(&pipeline), "early"));
        }
    }
}
