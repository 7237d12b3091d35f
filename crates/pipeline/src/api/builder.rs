//! Builds a pipeline.

use std::{
    collections::{BTreeSet, HashMap},
    ops::Range,
    sync::Arc,
    time::Duration,
};

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
        core::{Engine, ProgressCallback, StagePlacement},
        panic::caught,
        schedules::{self, Schedules},
        skips::StageSkips,
        statistics::Cells,
        transfer::{TransferHook, TransferThreads},
        worker,
    },
    measure::{
        balance::Balance, device::NamedDevice, measured::Measured, probe, profile::Profiler,
    },
    model::{
        initialise::{initialise, initialise_in_place},
        layer::Layer,
        ties::Ties,
        unkeyed::{self, UnkeyedPolicy},
        wiring::{LayerName, Wiring},
    },
};

impl<L: Layer> Pipeline<L> {
    /// Starts to build a pipeline of `layers`.
    pub fn builder(layers: Vec<L>) -> PipelineBuilder<L> {
        PipelineBuilder::new(layers)
    }

    /// Starts to build a pipeline with one worker per device, cut by the time that the layers take for
    /// `sample`; for models without side inputs.
    ///
    /// Each kind of device is measured once, with one CPU thread unless the device says otherwise. The
    /// sample should have the size of a micro-batch. For other costs see [`Measured`] and [`Balance`].
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use stovepipe_pipeline::Pipeline;
    ///
    /// let device = Device::flex();
    /// let sample = Tensor::ones([8, 3], &device);
    /// let layers = Dense::layers(&[3, 3, 3, 3, 3]);
    /// let pipeline = Pipeline::auto(layers, [device.clone(), device], sample)?.build()?;
    /// assert_eq!(pipeline.stages().len(), 2);
    /// # Ok::<(), stovepipe_pipeline::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If there is no device, or the sample does not pass through the model.
    pub fn auto(
        layers: Vec<L>,
        devices: impl IntoIterator<Item = impl Into<NamedDevice>>,
        sample: L::Input,
    ) -> Result<PipelineBuilder<L>, BuildError>
    where
        L: Layer<Side = ()>,
    {
        let devices: Vec<NamedDevice> = devices.into_iter().map(Into::into).collect();
        let measured = Measured::on(&devices, |device| {
            Profiler::on(device).measure(&layers, sample.clone())
        })?;
        let builder = Self::builder(layers).devices(devices);
        Ok(builder.balance(Balance::Planned(measured)))
    }
}

/// Builds a [`Pipeline`]; see [`Pipeline::builder`].
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
    unkeyed_policy: UnkeyedPolicy,
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
            unkeyed_policy: UnkeyedPolicy::Refuse,
            sample: None,
            on_transfer: None,
        }
    }

    /// Sets the device of each worker, and so the number of workers. A worker has one stage, or as many
    /// as the [schedule](Self::schedule) gives it, all on its device. Workers can share a device: each
    /// has its own thread, and on a GPU its own stream.
    pub fn devices(mut self, devices: impl IntoIterator<Item = impl Into<NamedDevice>>) -> Self {
        self.devices = devices.into_iter().map(Into::into).collect();
        self
    }

    /// Sets where to cut the model; evenly by default.
    pub fn balance(mut self, balance: Balance) -> Self {
        self.balance = balance;
        self
    }

    /// Sets the scheduler; 1F1B by default. It also decides the number of [stages](Scheduler::stages).
    ///
    /// A fixed [`Schedule`](stovepipe_schedule::Schedule) has one number of micro-batches: a batch with
    /// fewer samples is an error. If its micro-batches do not
    /// [ascend](stovepipe_schedule::Schedule::is_ascending), gradients and running statistics are added
    /// in another order, and bits differ from those of other schedules.
    pub fn schedule(mut self, scheduler: impl Scheduler + 'static) -> Self {
        self.scheduler = Arc::new(scheduler);
        self
    }

    /// Sets the number of micro-batches; 4 by default. A mini-batch with fewer samples has one
    /// micro-batch per sample.
    pub fn micro_batches(mut self, micro_batches: usize) -> Self {
        self.micro_batches = micro_batches;
        self
    }

    /// Sets what is recomputed; all but the last micro-batch by default.
    pub fn recompute(mut self, recompute: Recompute) -> Self {
        self.recompute = recompute;
        self
    }

    /// Sets the number of CPU threads for a worker's kernels, unless its [device](NamedDevice::threads)
    /// has one; 1 by default.
    ///
    /// With one thread, results have the same bits for any number of stages. More threads may add large
    /// sums in another order.
    pub fn threads_per_stage(mut self, threads: usize) -> Self {
        self.threads_per_stage = threads;
        self
    }

    /// Sets the seed of lazy parameters, and of random numbers in training; 0 by default.
    ///
    /// Parameters are drawn on the CPU and moved, so a seed gives the same model on any device. Shared
    /// parameters are drawn on the device where they were built. Building seeds Burn's generator. On the
    /// CPU the whole process shares it, so do not draw from it on another thread at the same time.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets how long a step may run without any worker finishing an action; ten minutes by default,
    /// without a limit if `None`. The first kernels of a device may compile for minutes.
    pub fn stall_timeout(mut self, limit: Option<Duration>) -> Self {
        self.stall_timeout = limit;
        self
    }

    /// Sets the handle that stops this pipeline's steps.
    pub fn stop_handle(mut self, stop: StopHandle) -> Self {
        self.stop = stop;
        self
    }

    /// Calls `progress` after each action of a step, on the thread that called the step. It may stop the
    /// step, but not start another step of the same pipeline.
    pub fn on_progress(mut self, progress: impl Fn(&Progress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Sets whether a loss or gradient that is NaN or infinite is an error; true by default. The error
    /// names the layer where it began, which a second run of the step finds.
    pub fn check_finite(mut self, check: bool) -> Self {
        self.check_finite = check;
        self
    }

    /// Sets the type that stages compute in; f32 by default. Parameters and gradients stay in f32, for
    /// optimizers and files. In f16, a step whose gradients are not finite has none
    /// ([`Step::overflowed`](crate::Step::overflowed)), until the [scale of the loss](LossScaler) is below 1.
    ///
    /// ```
    /// use burn::tensor::{DType, Device, Int, Tensor};
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use stovepipe_pipeline::{CrossEntropy, Pipeline, Precision};
    ///
    /// let device = Device::flex();
    /// let builder = Pipeline::builder(Dense::layers(&[3, 2])).devices([device.clone()]);
    /// let pipeline = builder.precision(Precision::F16).build()?;
    ///
    /// let (x, classes) = (Tensor::ones([4, 3], &device), Tensor::<1, Int>::zeros([4], &device));
    /// let step = pipeline.train_step((x, classes), &CrossEntropy::new())?;
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

    /// Allows Burn's own `Dropout`, `GaussianNoise` and `RRelu`, with recompute
    /// [`Never`](Recompute::Never); false by default. They draw other numbers each time they run. So
    /// training does not give the same bits for other stages, schedules or runs:
    /// [`Pipeline::unkeyed`] lists these layers as warnings. The layers in [`nn`](crate::nn) have no such
    /// limit.
    pub fn allow_unkeyed(mut self, allow: bool) -> Self {
        self.unkeyed_policy = if allow {
            UnkeyedPolicy::Allow
        } else {
            UnkeyedPolicy::Refuse
        };
        self
    }

    /// Says that Burn's own `Dropout` and the like change nothing in this model, because their
    /// probability is 0, which the engine cannot see; false by default. They are then ignored.
    pub fn unkeyed_draws_nothing(mut self, draws_nothing: bool) -> Self {
        if draws_nothing {
            self.unkeyed_policy = UnkeyedPolicy::Ignore;
        }
        self
    }

    /// Makes [`build`](Self::build) pass a sample through the model, to find mistakes early. A batch of
    /// one is enough.
    pub fn sample(mut self, input: L::Input, side: L::Side) -> Self {
        self.sample = Some((input, side));
        self
    }

    /// For tests of transfers: treats every worker's device as different, and calls `hook` before each
    /// copy, on the thread that copies.
    #[doc(hidden)]
    pub fn on_transfer(mut self, hook: impl Fn(&Transfer) + Send + Sync + 'static) -> Self {
        self.on_transfer = Some(Arc::new(hook));
        self
    }

    /// The number of layers of each stage. Nothing is built.
    ///
    /// # Errors
    ///
    /// If the model cannot be cut that way, or there is no such schedule.
    pub fn cut(&self) -> Result<Vec<usize>, BuildError> {
        Ok(self.layout()?.cut)
    }

    /// The worker of each stage: the index of its device. Nothing is built.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use stovepipe_pipeline::Pipeline;
    /// use stovepipe_schedule::Interleaved;
    ///
    /// let builder = Pipeline::builder(Dense::layers(&[3; 6]))
    ///     .devices([Device::flex(), Device::flex()])
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
        Ok(self.layout()?.owners)
    }

    fn layout(&self) -> Result<StageLayout, BuildError> {
        let layers = self.layers.len();
        let stages = self.stages()?;
        let named = |error| self.with_name(error);
        self.balance.cut(layers, stages).map_err(named)?; // before the schedule, for a better error
        if self.micro_batches == 0 {
            return Err(BuildError::NoMicroBatches);
        }
        let schedule = self.scheduler.schedule(stages, self.micro_batches)?;
        let devices = self.devices.len();
        let owners = schedules::owners(&schedule, stages, self.micro_batches, devices)?;
        let cut = (self.balance).cut_scheduled(layers, &schedule, self.recompute);
        let cut = cut.map_err(named)?;
        Ok(StageLayout {
            cut,
            owners,
            schedule,
        })
    }

    /// Predicts times, bubble and the memory of each worker, from what each layer costs for a micro-batch
    /// and what the optimizer keeps.
    ///
    /// Measure the layers in the pipeline's [precision](crate::Profiler::precision).
    ///
    /// # Errors
    ///
    /// Those of [`cut`](Self::cut), or if `measured` is for another number of workers.
    pub fn forecast(
        &self,
        measured: &Measured,
        state: OptimizerState,
    ) -> Result<Forecast, BuildError> {
        let layout = self.layout()?;
        let setup = Setup {
            profiles: measured.profiles(),
            machine: &measured.machine(self.devices.len()),
            devices: &(0..self.devices.len()).collect::<Vec<_>>(),
            schedule: &layout.schedule,
            recompute: self.recompute,
            state,
        };
        let mut forecast = setup.forecast(&layout.cut)?;
        if self.precision.cast().is_some() {
            // A step computes on copies of half the size.
            for memory in &mut forecast.memory {
                memory.parameters += memory.parameters / 2;
            }
        }
        Ok(forecast)
    }

    /// The number of stages that the scheduler makes for the devices.
    fn stages(&self) -> Result<usize, BuildError> {
        let devices = self.devices.len();
        match self.scheduler.stages(devices) {
            // Its error says why.
            0 if devices > 0 => (self.scheduler)
                .schedule(devices, self.micro_batches.max(1))
                .map_err(BuildError::from)
                .and(Err(BuildError::NoStages)),
            stages if devices > 0 => Ok(stages),
            _ => Ok(0),
        }
    }

    /// Adds the name of the layer whose cost is wrong.
    fn with_name(&self, error: BuildError) -> BuildError {
        match error {
            BuildError::Cut(CutError::Cost { layer, cost }) => BuildError::Cost {
                layer: LayerName {
                    index: layer,
                    name: self.layers[layer].name(),
                },
                cost,
            },
            other => other,
        }
    }

    /// Builds the pipeline: checks it, moves each layer to its stage's device, initialises lazy parameters
    /// and starts the workers.
    ///
    /// A layer with lazy parameters that are not shared is allocated on its stage's device only.
    ///
    /// # Errors
    ///
    /// If the model cannot be cut that way, a number is zero, there is no such schedule, skips do not
    /// match, a layer draws numbers that it cannot draw again, a device cannot be used or cannot compute
    /// in the precision, the sample does not pass, or a thread cannot be started.
    pub fn build(self) -> Result<Pipeline<L>, BuildError> {
        let StageLayout { cut, owners, .. } = self.layout()?;
        let ties = Ties::of(&self.layers);
        let mut stages = self.place(&cut, &owners)?;
        let workers = self.start_workers(&owners)?;
        let transfers = self.start_transfers(&stages, &owners)?;
        // Moving a shared lazy parameter initialises it, which must use the seed.
        for (index, layer) in self.layers.iter().enumerate() {
            if ties.touch(layer) {
                initialise_in_place(layer, index, self.seed);
            }
        }
        let layers = move_layers(self.layers, self.seed, &stages);
        let layers: Vec<_> = ties.tie(layers.into_iter().map(L::train).collect());
        for stage in &mut stages {
            stage.cells = layers[stage.layers.clone()].iter().map(Cells::of).collect();
        }
        check_statistics(&stages)?;
        let unkeyed = unkeyed::check(&layers, self.unkeyed_policy, self.recompute)?;
        let engine = Engine {
            transfers,
            stages,
            schedules: Schedules {
                scheduler: self.scheduler,
                recompute: self.recompute,
                owners,
                workers: workers.len(),
                known: HashMap::new().into(),
            },
            workers,
            micro_batches: self.micro_batches,
            stall_timeout: self.stall_timeout,
            stop: self.stop,
            progress: self.progress,
            seed: self.seed,
            steps: 0.into(),
            training_progress: 1f64.to_bits().into(),
            check_finite: self.check_finite,
            precision: self.precision,
            loss_scaler: LossScaler::default().into(),
            unkeyed_policy: self.unkeyed_policy,
            unkeyed,
            ties,
            momenta: Arc::default(),
            turn: ().into(),
            in_callback: None.into(),
        };
        let pipeline = Pipeline::new(layers, engine);
        if let Some(sample) = self.sample {
            pipeline.infer(sample).map_err(BuildError::Sample)?;
        }
        Ok(pipeline)
    }

    /// The layers and the device of each stage.
    fn place(&self, cut: &[usize], owners: &[usize]) -> Result<Vec<StagePlacement>, BuildError> {
        let layers = &self.layers;
        let of_user = caught(|| {
            let uses: Vec<_> = layers.iter().map(L::skips).collect();
            let wiring = Wiring::new(&uses, &|index| layers[index].name())?;
            Ok::<_, BuildError>((wiring, layers.iter().map(L::name).collect::<Vec<_>>()))
        });
        let (wiring, names) = of_user.map_err(BuildError::Panicked)??;
        let mut start = 0;
        let mut next = |&count: &usize| -> Range<usize> {
            start += count;
            start - count..start
        };
        let ranges: Vec<_> = cut.iter().map(&mut next).collect();
        let skips = StageSkips::of_stages(&Arc::new(wiring), &ranges);
        let devices = of_stages(owners, &self.devices).into_iter();
        let placements =
            (ranges.into_iter().zip(devices).zip(skips)).map(|((range, device), skips)| {
                StagePlacement {
                    names: names[range.clone()].into(),
                    layers: range,
                    device: device.device.inner(),
                    device_name: device.name,
                    skips,
                    cells: Arc::default(), // found when the layers are moved
                }
            });
        Ok(placements.collect())
    }

    /// Checks the devices and starts a worker for each.
    fn start_workers(&self, owners: &[usize]) -> Result<Vec<worker::Worker>, BuildError> {
        let threads = self.devices.iter().map(|device| device.threads);
        let threads = threads.map(|threads| threads.unwrap_or(self.threads_per_stage));
        let threads: Vec<_> = threads.collect();
        if threads.contains(&0) {
            return Err(BuildError::NoThreads);
        }
        for (stage, &owner) in owners.iter().enumerate() {
            probe::use_device(&self.devices[owner]).map_err(|error| match error {
                BuildError::Unusable { device, source } => BuildError::Device {
                    stage,
                    device,
                    source,
                },
                error => error,
            })?;
        }
        for device in &self.devices {
            self.precision.check(device)?;
        }
        (threads.into_iter().enumerate())
            .map(|(worker, threads)| {
                worker::spawn(&format!("worker-{worker}"), threads)
                    .map_err(|source| BuildError::Worker { worker, source })
            })
            .collect()
    }

    fn start_transfers(
        &self,
        stages: &[StagePlacement],
        owners: &[usize],
    ) -> Result<TransferThreads, BuildError> {
        let skips = stages.iter().enumerate().flat_map(|(from, stage)| {
            (stage.skips.outgoing().into_iter()).map(move |(_, to)| (from, to))
        });
        let skips: BTreeSet<_> = skips.collect();
        let devices = of_stages(owners, &self.devices);
        TransferThreads::start(&devices, skips, owners, self.on_transfer.as_ref())
            .map_err(|source| BuildError::TransferThread { source })
    }
}

/// How a model is cut and which worker has which stage.
struct StageLayout {
    /// The number of layers of each stage.
    cut: Vec<usize>,
    /// The worker of each stage.
    owners: Vec<usize>,
    schedule: Schedule,
}

/// The device of each stage, given its worker and the device of each worker.
fn of_stages<T: Clone>(owners: &[usize], of_workers: &[T]) -> Vec<T> {
    let owners = owners.iter();
    owners.map(|&owner| of_workers[owner].clone()).collect()
}

/// Moves each layer to its stage's device, ready to train. One after another, so that the CPU holds the
/// values of one layer at a time.
fn move_layers<L: Layer>(layers: Vec<L>, seed: u64, stages: &[StagePlacement]) -> Vec<L> {
    let mut layers = layers.into_iter().enumerate();
    let mut placed = Vec::new();
    for stage in stages {
        for (index, layer) in layers.by_ref().take(stage.layers.len()) {
            placed.push(initialise(layer, index, seed).fork(&stage.device));
        }
    }
    placed
}

/// Checks that no two layers share running statistics.
fn check_statistics(stages: &[StagePlacement]) -> Result<(), BuildError> {
    let mut owners = HashMap::new();
    for stage in stages {
        let named = stage.layers.clone().zip(&*stage.names).zip(&*stage.cells);
        for ((index, name), cells) in named {
            let name = name.clone();
            let second = LayerName { index, name };
            for id in cells.ids() {
                if let Some(first) = owners.insert(id, second.clone()) {
                    return Err(BuildError::SharedStatistics { first, second });
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An integration test cannot see this: all CPU devices are equal.
    #[test]
    fn a_stage_is_on_its_workers_device() {
        let devices = ["left", "right"];
        assert_eq!(of_stages(&[0, 1], &devices), ["left", "right"]);
        let interleaved = ["left", "right", "left", "right"];
        assert_eq!(of_stages(&[0, 1, 0, 1], &devices), interleaved);
        let there_and_back = ["left", "right", "right", "left"];
        assert_eq!(of_stages(&[0, 1, 1, 0], &devices), there_and_back);
    }
}
