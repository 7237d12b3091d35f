//! Builds a pipeline.

use std::{collections::HashMap, ops::Range, sync::Arc, time::Duration};

use stovepipe_plan::{CutError, Forecast, OptimizerState, Setup};
use stovepipe_schedule::{OneForwardOneBackward, Recompute, Schedule, Scheduler};

use crate::{
    api::{
        control::{Progress, StopHandle},
        error::{BuildError, Transfer},
        pipeline::Pipeline,
        precision::{LossScaler, Precision},
    },
    engine::{
        self, Engine, Placement, ProgressCallback, guard,
        skips::StageSkips,
        statistics::Cells,
        transfer::{TransferHook, TransferThreads},
        worker::{self, Worker},
    },
    measure::{balance::Balance, device::NamedDevice, measured::Measured, probe},
    model::{
        initialise::{initialise, initialise_in_place},
        layer::Layer,
        ties::Ties,
        unkeyed,
        wiring::Wiring,
    },
};

/// Says how a [`Pipeline`] is made; see [`Pipeline::builder`].
#[must_use = "a builder builds nothing until `build` is called"]
pub struct PipelineBuilder<L: Layer> {
    layers: Vec<L>,
    devices: Vec<NamedDevice>,
    balance: Balance,
    scheduler: Arc<dyn Scheduler>,
    micro_batches: usize,
    recompute: Recompute,
    threads_per_stage: usize,
    seed: u64,
    stall_timeout: Option<Duration>,
    stop: StopHandle,
    progress: Option<ProgressCallback>,
    check_finite: bool,
    precision: Precision,
    allow_unkeyed: bool,
    sample: Option<(L::Input, L::Side)>,
    on_transfer: Option<TransferHook>,
}

impl<L: Layer> PipelineBuilder<L> {
    pub(crate) fn new(layers: Vec<L>) -> Self {
        Self {
            layers,
            devices: Vec::new(),
            balance: Balance::Even,
            scheduler: Arc::new(OneForwardOneBackward),
            micro_batches: 4,
            recompute: Recompute::default(),
            threads_per_stage: 1,
            seed: 0,
            stall_timeout: Some(worker::STALL_TIMEOUT),
            stop: StopHandle::new(),
            progress: None,
            check_finite: true,
            precision: Precision::F32,
            allow_unkeyed: false,
            sample: None,
            on_transfer: None,
        }
    }

    /// The device of each worker, and so the number of workers. A worker has one stage, or as many as
    /// the [schedule](Self::schedule) gives it, all on its device. A device may be named several times:
    /// each worker has a thread, and on a GPU a stream, of its own.
    pub fn devices(mut self, devices: impl IntoIterator<Item = impl Into<NamedDevice>>) -> Self {
        self.devices = devices.into_iter().map(Into::into).collect();
        self
    }

    /// Where to cut the model; evenly by default.
    pub fn balance(mut self, balance: Balance) -> Self {
        self.balance = balance;
        self
    }

    /// Who does what when; 1F1B by default. It says, too, into how many
    /// [stages](Scheduler::stages) the model is cut.
    ///
    /// A [`Schedule`](stovepipe_schedule::Schedule) given here serves its own number of micro-batches
    /// alone: a batch of fewer samples is then an error. If its micro-batches do not
    /// [ascend](stovepipe_schedule::Schedule::is_ascending), gradients and running statistics are added up in another
    /// order, and bits differ from those of other schedules.
    pub fn schedule(mut self, scheduler: impl Scheduler + 'static) -> Self {
        self.scheduler = Arc::new(scheduler);
        self
    }

    /// The number of micro-batches that a mini-batch is cut into; 4 by default. A mini-batch of
    /// fewer samples is cut into one each.
    pub fn micro_batches(mut self, micro_batches: usize) -> Self {
        self.micro_batches = micro_batches;
        self
    }

    /// What is recomputed; all but the last micro-batch by default.
    pub fn recompute(mut self, recompute: Recompute) -> Self {
        self.recompute = recompute;
        self
    }

    /// The number of CPU threads that a worker's kernels may use, unless its
    /// [device](NamedDevice::threads) says another; 1 by default.
    ///
    /// With one thread, results are the same bit for bit for any number of stages. More threads
    /// may add up large sums in another order.
    pub fn threads_per_stage(mut self, threads: usize) -> Self {
        self.threads_per_stage = threads;
        self
    }

    /// The seed of parameters that have no value yet, and of what layers draw in training; 0 by default.
    ///
    /// Parameters are drawn on the CPU and moved, so that a seed means the same model on any devices; those that layers
    /// share are drawn where they were built. Building seeds Burn's generator with it; on the CPU that is one for the
    /// whole process, so do not draw from it on another thread meanwhile.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How long a step may go without any worker finishing an action before it is given up; ten
    /// minutes by default, `None` for ever. A device's first kernels may take minutes to compile.
    pub fn stall_timeout(mut self, limit: Option<Duration>) -> Self {
        self.stall_timeout = limit;
        self
    }

    /// Lets `stop` stop this pipeline's steps.
    pub fn stop_handle(mut self, stop: StopHandle) -> Self {
        self.stop = stop;
        self
    }

    /// Calls `progress` after each action of a step, on the thread that called the step. It may
    /// stop the step, but not begin another one of the same pipeline.
    pub fn on_progress(mut self, progress: impl Fn(&Progress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Whether a step whose loss or gradients are infinite or no numbers is an error that names the layer
    /// where that began; true by default. To find it, the step is run a second time.
    pub fn check_finite(mut self, check: bool) -> Self {
        self.check_finite = check;
        self
    }

    /// What stages compute in; f32 by default. Parameters and gradients are in f32 whatever it is, for optimizers
    /// and files. In f16, a step whose gradients are not finite has none and says so
    /// ([`Step::overflowed`](crate::Step::overflowed)), until the [scale of the loss](LossScaler) is less than 1.
    ///
    /// ```
    /// # use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{DType, Device, Int, Tensor}};
    /// # use stovepipe_pipeline::{Context, CrossEntropy, Layer, LayerError, Pipeline};
    /// # #[derive(Module, Debug)]
    /// # struct Dense { linear: Linear }
    /// # impl Layer for Dense {
    /// #     type Input = Tensor<2>; type Flow = Tensor<2>; type Output = Tensor<2>; type Side = ();
    /// #     fn enter(input: Tensor<2>) -> Tensor<2> { input }
    /// #     fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, LayerError> {
    /// #         Ok(self.linear.forward(x))
    /// #     }
    /// #     fn leave(flow: Tensor<2>) -> Result<Tensor<2>, LayerError> { Ok(flow) }
    /// # }
    /// use stovepipe_pipeline::Precision;
    ///
    /// let device = Device::flex();
    /// let layers = vec![Dense { linear: LinearConfig::new(3, 2).init(&device) }];
    /// let builder = Pipeline::builder(layers).devices([device.clone()]);
    /// let pipeline = builder.precision(Precision::F16).build()?;
    ///
    /// let (x, classes) = (Tensor::ones([4, 3], &device), Tensor::<1, Int>::zeros([4], &device));
    /// let step = pipeline.train_step(x, classes, &CrossEntropy::new())?;
    /// assert!(!step.overflowed);
    /// let weight = &pipeline.layers()[0].linear.weight;
    /// let gradient = step.gradients.get::<2>(weight.id).unwrap();
    /// assert_eq!([weight.val().dtype(), gradient.dtype()], [DType::F32; 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Lets Burn's own `Dropout`, `GaussianNoise` and `RRelu` pass, which draw other numbers when a layer is
    /// recomputed; false by default. It is right for those that change nothing, such as a dropout with
    /// probability 0: that is not to be seen from outside. Where they drop, use [`nn`](crate::model::nn)
    /// instead.
    pub fn allow_unkeyed(mut self, allow: bool) -> Self {
        self.allow_unkeyed = allow;
        self
    }

    /// Has [`build`](Self::build) pass a sample through the model, so that a mistake in its wiring
    /// is found there. One sample is enough.
    pub fn sample(mut self, input: L::Input, side: L::Side) -> Self {
        self.sample = Some((input, side));
        self
    }

    /// For tests of transfers: has every worker taken to lie on a device of its own, and calls `hook`
    /// before what one sends another is copied, on the thread that does so.
    #[doc(hidden)]
    pub fn on_transfer(mut self, hook: impl Fn(&Transfer) + Send + Sync + 'static) -> Self {
        self.on_transfer = Some(Arc::new(hook));
        self
    }

    /// The number of layers of each stage. Nothing is built.
    ///
    /// # Errors
    ///
    /// If the model cannot be cut that way, or the schedule is not to be had.
    pub fn cut(&self) -> Result<Vec<usize>, BuildError> {
        Ok(self.plan()?.cut)
    }

    /// The worker of each stage, and so the place of its device among those given. Nothing is built.
    ///
    /// ```
    /// # use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
    /// # use stovepipe_pipeline::{Context, Layer, LayerError, Pipeline};
    /// # #[derive(Module, Debug)]
    /// # struct Dense { linear: Linear }
    /// # impl Layer for Dense {
    /// #     type Input = Tensor<2>; type Flow = Tensor<2>; type Output = Tensor<2>; type Side = ();
    /// #     fn enter(input: Tensor<2>) -> Tensor<2> { input }
    /// #     fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, LayerError> {
    /// #         Ok(self.linear.forward(x))
    /// #     }
    /// #     fn leave(flow: Tensor<2>) -> Result<Tensor<2>, LayerError> { Ok(flow) }
    /// # }
    /// use stovepipe_schedule::Interleaved;
    ///
    /// let device = Device::flex();
    /// let layer = || Dense { linear: LinearConfig::new(3, 3).init(&device) };
    /// let builder = Pipeline::builder((0..5).map(|_| layer()).collect())
    ///     .devices([device.clone(), device.clone()])
    ///     .schedule(Interleaved { chunks: 2 });
    /// assert_eq!(builder.workers()?, [0, 1, 0, 1]);
    /// assert_eq!(builder.cut()?, [2, 1, 1, 1]);
    /// # Ok::<(), stovepipe_pipeline::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`cut`](Self::cut).
    pub fn workers(&self) -> Result<Vec<usize>, BuildError> {
        Ok(self.plan()?.owners)
    }

    fn plan(&self) -> Result<Plan, BuildError> {
        let layers = self.layers.len();
        let stages = self.stages()?;
        let named = |error| self.with_name(error);
        self.balance.cut(layers, stages).map_err(named)?; // before a schedule is asked for
        if self.micro_batches == 0 {
            return Err(BuildError::NoMicroBatches);
        }
        let schedule = self.scheduler.schedule(stages, self.micro_batches)?;
        let devices = self.devices.len();
        let owners = engine::owners(&schedule, stages, self.micro_batches, devices)?;
        let cut = (self.balance).cut_scheduled(layers, &schedule, self.recompute);
        let cut = cut.map_err(named)?;
        Ok(Plan {
            cut,
            owners,
            schedule,
        })
    }

    /// What can be said beforehand of the pipeline that these settings make, given what each layer
    /// costs for a micro-batch, and what the optimizer keeps: times, bubble, and memory of each worker.
    ///
    /// Layers are to be measured in the [precision](crate::Profiler::precision) that the pipeline will have.
    ///
    /// # Errors
    ///
    /// Those of [`cut`](Self::cut), and if it was measured for another number of workers.
    pub fn forecast(
        &self,
        measured: &Measured,
        state: OptimizerState,
    ) -> Result<Forecast, BuildError> {
        let plan = self.plan()?;
        let setup = Setup {
            profiles: measured.profiles(),
            machine: &measured.machine(self.devices.len()),
            devices: &(0..self.devices.len()).collect::<Vec<_>>(),
            schedule: &plan.schedule,
            recompute: self.recompute,
            state,
        };
        let mut forecast = setup.forecast(&plan.cut)?;
        if self.precision.cast().is_some() {
            // A step computes on copies of half the size.
            for memory in &mut forecast.memory {
                memory.parameters += memory.parameters / 2;
            }
        }
        Ok(forecast)
    }

    /// The number of stages that the scheduler wants for the devices.
    fn stages(&self) -> Result<usize, BuildError> {
        let devices = self.devices.len();
        match self.scheduler.stages(devices) {
            // The scheduler knows best why.
            0 if devices > 0 => (self.scheduler)
                .schedule(devices, self.micro_batches.max(1))
                .map_err(BuildError::from)
                .and(Err(BuildError::NoStages)),
            stages if devices > 0 => Ok(stages),
            _ => Ok(0),
        }
    }

    /// Names the layer whose cost is none.
    fn with_name(&self, error: BuildError) -> BuildError {
        match error {
            BuildError::Cut(CutError::Cost { layer, cost }) => BuildError::Cost {
                layer,
                name: self.layers[layer].name(),
                cost,
            },
            other => other,
        }
    }

    /// Builds the pipeline: checks it, puts each layer on its stage's device, gives parameters
    /// without a value theirs, and starts the workers.
    ///
    /// A layer whose parameters are lazy, and that nothing else shares, is allocated on its
    /// stage's device alone.
    ///
    /// # Errors
    ///
    /// If the model cannot be cut that way, a number is zero, the schedule is not to be had, skips are
    /// not wired well, a layer draws numbers that it cannot draw again, a device cannot compute in the precision, the
    /// sample does not pass, or a thread cannot be started.
    pub fn build(self) -> Result<Pipeline<L>, BuildError> {
        let Plan { cut, owners, .. } = self.plan()?;
        let threads = self.devices.iter().map(|device| device.threads);
        let threads: Vec<_> = threads
            .map(|threads| threads.unwrap_or(self.threads_per_stage))
            .collect();
        if threads.contains(&0) {
            return Err(BuildError::NoThreads);
        }
        let ties = Ties::of(&self.layers);
        let devices = of_stages(&owners, &self.devices);
        let mut stages = guarded(|| {
            let wiring = Wiring::of(&self.layers)?;
            Ok(placements(&self.layers, &cut, devices, &Arc::new(wiring)))
        })?;
        check_devices(&owners, &self.devices)?;
        for device in &self.devices {
            self.precision.check(device)?;
        }
        let workers = (threads.into_iter().enumerate())
            .map(|(worker, threads)| spawn(worker, threads))
            .collect::<Result<_, _>>()?;
        let transfers = TransferThreads::between(&stages, &owners, self.on_transfer.as_ref())
            .map_err(|source| BuildError::TransferThread { source })?;
        // To move a lazy parameter that is shared gives it its value, which must be the seed's.
        for (index, layer) in self.layers.iter().enumerate() {
            if ties.touch(layer) {
                initialise_in_place(layer, index, self.seed);
            }
        }
        let layers = place(self.layers, self.seed, &stages);
        let layers: Vec<_> = ties.tie(layers.into_iter().map(L::train).collect());
        for stage in &mut stages {
            stage.cells = layers[stage.layers.clone()].iter().map(Cells::of).collect();
        }
        check_statistics(&stages)?;
        if !self.allow_unkeyed {
            unkeyed::check(&layers)?;
        }

        let engine = Engine {
            workers,
            transfers,
            owners,
            stages,
            scheduler: self.scheduler,
            micro_batches: self.micro_batches,
            recompute: self.recompute,
            stall_timeout: self.stall_timeout,
            stop: self.stop,
            progress: self.progress,
            seed: self.seed,
            steps: 0.into(),
            training_progress: 1f64.to_bits().into(),
            check_finite: self.check_finite,
            precision: self.precision,
            loss_scaler: LossScaler::default().into(),
            allow_unkeyed: self.allow_unkeyed,
            ties,
            momenta: Arc::default(),
            plans: HashMap::new().into(),
            turn: ().into(),
            in_callback: None.into(),
        };
        let pipeline = Pipeline::new(layers, engine);
        if let Some((input, side)) = self.sample {
            pipeline
                .infer_with(input, side)
                .map_err(BuildError::Sample)?;
        }
        Ok(pipeline)
    }
}

/// How a model is cut and placed.
struct Plan {
    /// The layers of each stage.
    cut: Vec<usize>,
    /// The worker of each stage.
    owners: Vec<usize>,
    schedule: Schedule,
}

/// Uses the device of each stage once.
fn check_devices(owners: &[usize], devices: &[NamedDevice]) -> Result<(), BuildError> {
    for (stage, &owner) in owners.iter().enumerate() {
        let device = &devices[owner];
        let refused = |cause| BuildError::Device {
            stage,
            device: device.name.clone(),
            cause,
        };
        probe::call(device).map_err(|error| match error {
            BuildError::Unusable { cause, .. } => refused(cause),
            error => error,
        })?;
    }
    Ok(())
}

fn spawn(worker: usize, threads: usize) -> Result<Worker, BuildError> {
    worker::spawn(&format!("worker-{worker}"), threads)
        .map_err(|source| BuildError::Worker { worker, source })
}

/// The device of each stage, given its worker and the device of each worker.
fn of_stages<T: Clone>(owners: &[usize], of_workers: &[T]) -> Vec<T> {
    let owners = owners.iter();
    owners.map(|&owner| of_workers[owner].clone()).collect()
}

fn placements<L: Layer>(
    layers: &[L],
    cut: &[usize],
    devices: Vec<NamedDevice>,
    wiring: &Arc<Wiring>,
) -> Vec<Placement> {
    let mut start = 0;
    let mut next = |&count: &usize| -> Range<usize> {
        start += count;
        start - count..start
    };
    let ranges: Vec<_> = cut.iter().map(&mut next).collect();
    let skips = StageSkips::of_stages(wiring, &ranges);
    (ranges.into_iter().zip(devices).zip(skips))
        .map(|((range, device), skips)| Placement {
            names: layers[range.clone()].iter().map(L::name).collect(),
            layers: range,
            device: device.device.inner(),
            device_name: device.name,
            skips,
            cells: Arc::default(), // found when the layers are placed
        })
        .collect()
}

/// Puts each layer on its stage's device, ready to train. One after the other, so that the CPU holds the
/// values of no more than one.
fn place<L: Layer>(layers: Vec<L>, seed: u64, stages: &[Placement]) -> Vec<L> {
    let mut layers = layers.into_iter().enumerate();
    let mut placed = Vec::new();
    for stage in stages {
        for (index, layer) in layers.by_ref().take(stage.layers.len()) {
            placed.push(initialise(layer, index, seed).fork(&stage.device));
        }
    }
    placed
}

/// Makes sure that no two layers count in the same running statistics.
fn check_statistics(stages: &[Placement]) -> Result<(), BuildError> {
    let mut owners = HashMap::new();
    for stage in stages {
        let named = stage.layers.clone().zip(&*stage.names).zip(&*stage.cells);
        for ((index, name), cells) in named {
            for id in cells.ids() {
                if let Some((first, first_name)) = owners.insert(id, (index, name)) {
                    return Err(BuildError::SharedStatistics {
                        first,
                        first_name: String::clone(first_name),
                        second: index,
                        second_name: name.clone(),
                    });
                }
            }
        }
    }
    Ok(())
}

/// Runs what asks the user's layers for something.
fn guarded<R>(code: impl FnOnce() -> Result<R, BuildError>) -> Result<R, BuildError> {
    let caught = guard::caught(code);
    caught.unwrap_or_else(|message| Err(BuildError::Panicked { message }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Devices of one kind are all alike to Burn where there is a CPU alone, and so would be to a test
    /// from outside.
    #[test]
    fn a_stage_lies_where_its_worker_does() {
        let devices = ["left", "right"];
        assert_eq!(of_stages(&[0, 1], &devices), ["left", "right"]);
        let interleaved = ["left", "right", "left", "right"];
        assert_eq!(of_stages(&[0, 1, 0, 1], &devices), interleaved);
        let there_and_back = ["left", "right", "right", "left"];
        assert_eq!(of_stages(&[0, 1, 1, 0], &devices), there_and_back);
    }
}
