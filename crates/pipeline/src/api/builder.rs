//! Builds a pipeline.

use std::{
    any::type_name,
    collections::{BTreeSet, HashMap},
    ops::Range,
    sync::{Arc, mpsc},
    time::Duration,
};

use burn::tensor::Device;
use stovepipe_collective::{AllReduce, CollectiveError};
use stovepipe_comm::Communicator;
use stovepipe_plan::{BUCKET, CutError, Forecast, OptimizerState, PlanError, Setup};
use stovepipe_runtime::{CancelHandle, StopHandle};
use stovepipe_schedule::{
    Costs, OneForwardOneBackward, Recompute, Schedule, Scheduler, WeightPolicy,
};

use crate::{
    api::{
        batch::Progress,
        error::{BoxedError, BuildError, Transfer},
        pipeline::Pipeline,
        precision::{LossScaler, Precision},
        tasks::ranges,
    },
    engine::{
        core::{Engine, ProgressCallback},
        panic::caught,
        processes::Processes,
        reduction::Reducers,
        schedules::{self, Schedules},
        seats::{Seat, Seats},
        shared::Shared,
        skips::StageSkips,
        stage::StagePlacement,
        statistics::Cells,
        transfer::{TransferHook, TransferThreads},
        worker,
    },
    measure::{
        balance::Balance, device::NamedDevice, measured::Measured, probe, profile::Profiler,
    },
    model::{
        flow::Flow,
        initialise::{initialise, initialise_in_place, initialise_place, release},
        layer::Layer,
        ties::{Place, Ties},
        unkeyed::{self, UnkeyedPolicy},
        wiring::{LayerName, Wiring},
    },
};

/// The updates of a window for which a model is cut: few, because many cuts are tried.
const UPDATES: usize = 4;
/// The updates of a window whose cost is predicted.
const WINDOW: usize = 32;

impl<L: Layer> Pipeline<L> {
    /// Starts to build a pipeline of `layers`.
    pub fn builder(layers: Vec<L>) -> PipelineBuilder<L> {
        PipelineBuilder {
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
            communicator: None,
            bucket: BUCKET as usize,
            weight_policy: WeightPolicy::default(),
            all_reduce: AllReduce::default(),
            on_transfer: None,
        }
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
        let workers = devices.iter().filter(|device| device.is_cpu()).count();
        let measured = Measured::on(&devices, |device| {
            let profiler = Profiler::on(device).side_by_side(workers);
            profiler.measure(&layers, sample.clone())
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
    communicator: Option<Arc<Communicator>>,
    bucket: usize,
    weight_policy: WeightPolicy,
    all_reduce: AllReduce,
    on_transfer: Option<TransferHook>,
}

impl<L: Layer> PipelineBuilder<L> {
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
    /// A fixed [`Schedule`] has one number of micro-batches: a batch with fewer samples is an error. If its
    /// micro-batches do not [ascend](Schedule::is_ascending), gradients and running statistics are added in
    /// another order, and bits differ from those of other schedules.
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
    /// has one; 1 by default. More threads may add large sums in another order, which gives other bits.
    pub fn threads_per_stage(mut self, threads: usize) -> Self {
        self.threads_per_stage = threads;
        self
    }

    /// Sets the seed of lazy parameters, and of random numbers in training; 0 by default.
    ///
    /// Parameters are drawn on the CPU and moved, so a seed gives the same model on any device. Shared
    /// parameters are drawn on the device where they were built. Building seeds Burn's generator, which the
    /// whole process shares on the CPU: do not draw from it on another thread at the same time.
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
    /// let (x, classes) = (Tensor::ones([4, 3], &device), Tensor::<1, Int>::zeros([4], &device));
    /// let step = pipeline.train_step((x, classes), &CrossEntropy::new())?;
    /// let weight = &pipeline.layers()[0].linear.weight;
    /// assert_eq!(step.gradients.get::<2>(weight.id).unwrap().dtype(), DType::F32);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Allows Burn's own `Dropout`, `GaussianNoise` and `RRelu`, with recompute
    /// [`Never`](Recompute::Never); false by default. They draw other numbers each time they run, so bits
    /// differ: [`Pipeline::unkeyed`] lists them as warnings. The layers in [`nn`](crate::nn) do not.
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

    /// Lets several processes run the pipeline together. Each builds it with the same settings and the same
    /// layers, and makes the same calls. A device named `1/cpu` is one of the process with rank 1; only
    /// there its stages are initialised and run. Losses, scores and timelines are those of all processes,
    /// and outputs of [`infer`](Pipeline::infer) reach all. Gradients, statistics and
    /// [kept outputs](crate::Batch::keep_outputs) stay in their stage's process.
    ///
    /// ```
    /// use std::thread::spawn;
    ///
    /// use burn::tensor::{Device, Tensor};
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use stovepipe_pipeline::{NamedDevice, Pipeline};
    ///
    /// // Threads take the place of processes here.
    /// let ranks = stovepipe_comm::local(2, None)?.into_iter().map(|communicator| {
    ///     spawn(|| -> Result<_, Box<dyn std::error::Error + Send + Sync>> {
    ///         let devices: [NamedDevice; 2] = ["0/cpu".parse()?, "1/cpu".parse()?];
    ///         let pipeline = Pipeline::builder(Dense::layers(&[3, 3, 2]))
    ///             .devices(devices)
    ///             .communicator(communicator)
    ///             .build()?;
    ///         Ok(pipeline.infer(Tensor::ones([4, 3], &Device::flex()))?.into_data())
    ///     })
    /// });
    /// let outputs: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join()).collect();
    /// let outputs: Vec<_> = outputs.into_iter().map(|output| output.unwrap().unwrap()).collect();
    /// assert_eq!(outputs[0], outputs[1]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn communicator(mut self, communicator: impl Into<Arc<Communicator>>) -> Self {
        self.communicator = Some(communicator.into());
        self
    }

    /// Sets which version of the weights micro-batches use in a [window](Pipeline::train_window); by default
    /// the newest that a stage has.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use stovepipe_pipeline::Pipeline;
    /// use stovepipe_schedule::{PipeDream, WeightPolicy};
    ///
    /// let builder = Pipeline::builder(Dense::layers(&[3, 2])).devices([Device::flex()]);
    /// let builder = builder.schedule(PipeDream::default()).micro_batches(1);
    /// assert!(builder.weight_policy(WeightPolicy::VerticalSync).build().is_ok());
    /// ```
    pub fn weight_policy(mut self, policy: WeightPolicy) -> Self {
        self.weight_policy = policy;
        self
    }

    /// Sets the size of a bucket, in bytes of gradients; 25 MiB by default. Replicas of a stage in several
    /// processes add their gradients bucket by bucket, while backward passes go on. A bucket has as many
    /// layers as fit, and at least one; the first one has 1 MiB. The size changes no bit.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use stovepipe_pipeline::Pipeline;
    ///
    /// let builder = Pipeline::builder(Dense::layers(&[3, 2])).devices([Device::flex()]);
    /// assert!(builder.bucket(100 << 20).build().is_ok());
    /// ```
    pub fn bucket(mut self, bytes: usize) -> Self {
        self.bucket = bytes.max(1);
        self
    }

    /// Sets what adds up the gradients of replicas in several processes; the ring by default, which has the
    /// same bits everywhere. With [`AllReduce::Mpi`], `MPI_Iallreduce` does, bucket by bucket, in an order of
    /// its own: gradients are equal to 1e-5, not in their bits, and the size of a bucket matters. MPI
    /// cannot be interrupted: a step that fails meanwhile ends the job.
    ///
    /// Each replica of a stage must then be in a process of its own, and MPI must connect these. So it is an
    /// error here:
    ///
    /// ```
    /// use burn::tensor::Device;
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use stovepipe_pipeline::{AllReduce, Pipeline};
    /// use stovepipe_schedule::{DataParallel, OneForwardOneBackward};
    ///
    /// let replicated = Pipeline::builder(Dense::layers(&[3, 2]))
    ///     .devices([Device::flex(), Device::flex()])
    ///     .schedule(DataParallel::equal(OneForwardOneBackward, 2))
    ///     .all_reduce(AllReduce::Mpi);
    /// let error = replicated.build().unwrap_err().to_string();
    /// assert!(error.starts_with("MPI cannot add up the gradients of stage 0's replicas: "));
    /// ```
    pub fn all_reduce(mut self, by: AllReduce) -> Self {
        self.all_reduce = by;
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

    /// The worker of each stage: the index of its device, and of the first replica's if there are several.
    /// Nothing is built.
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
        Ok((self.layout()?.seats.owners())
            .map(|seat| seat.worker)
            .collect())
    }

    fn layout(&self) -> Result<StageLayout, BuildError> {
        let layers = self.layers.len();
        let stages = self.stages()?;
        let named = |error| self.with_name(error);
        self.balance.cut(layers, stages).map_err(named)?; // before the schedule, for a better error
        if self.micro_batches == 0 {
            return Err(BuildError::NoMicroBatches);
        }
        if let Recompute::Segments(segments) = &self.recompute {
            segments.check(layers)?;
        }
        let (mut schedule, seats) = self.seats(stages)?;
        if schedule.is_asynchronous()
            && let Ok(window) = self.window(stages, UPDATES)
        {
            schedule = window;
        }
        let options = (&self.recompute, self.weight_policy, self.bucket);
        let cut = self.balance.cut_scheduled(layers, &schedule, options);
        Ok(StageLayout {
            cut: cut.map_err(named)?,
            seats,
            schedule,
        })
    }

    /// The schedule of a mini-batch, and where its stages run.
    fn seats(&self, stages: usize) -> Result<(Schedule, Seats), BuildError> {
        let schedule = self.scheduler.schedule(stages, self.micro_batches)?;
        let devices = self.devices.len();
        let seats = schedules::seats(&schedule, stages, self.micro_batches, devices)?;
        Ok((schedule, seats))
    }

    fn window(&self, stages: usize, updates: usize) -> Result<Schedule, BuildError> {
        let micro_batches = self.micro_batches.saturating_mul(updates);
        Ok(self.scheduler.schedule(stages, micro_batches)?)
    }

    /// Predicts times, bubble and the memory of each worker, from what each layer costs for a micro-batch
    /// and what the optimizer keeps. Under an asynchronous schedule, the time is that of an update, in a
    /// window of 32.
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
        self.set_up(measured, state, |setup, cut| setup.forecast(cut))
    }

    /// Like [`forecast`](Self::forecast), with the layers to recompute that fit with the fastest step, instead
    /// of what was [asked for](Self::recompute). With [`Balance::Planned`], they are chosen together with the
    /// cut.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use stovepipe_pipeline::{Measured, Pipeline, Recompute, measure::OptimizerState};
    ///
    /// let sample = Tensor::ones([8, 3], &Device::flex());
    /// let builder = Pipeline::auto(Dense::layers(&[3, 3, 3]), [Device::flex()], sample.clone())?;
    /// let profile = stovepipe_pipeline::Profiler::new(&Device::flex()).measure(&Dense::layers(&[3, 3, 3]), sample)?;
    /// let forecast = builder.choose_layers(&Measured::from(profile), OptimizerState::new(2))?;
    /// assert_eq!(forecast.recompute, Recompute::Never); // no limit on memory is known
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`forecast`](Self::forecast), or if workers share some of their stages, but not all.
    pub fn choose_layers(
        &self,
        measured: &Measured,
        state: OptimizerState,
    ) -> Result<Forecast, BuildError> {
        let is_planned = matches!(self.balance, Balance::Planned(_));
        self.set_up(measured, state, |setup, cut| {
            let chosen = setup.choose_layers((!is_planned).then_some(cut))?;
            let recompute = &chosen.recompute;
            Setup {
                recompute,
                ..*setup
            }
            .forecast(&chosen.balance)
        })
    }

    /// What a [forecast](Self::forecast) simulates: a schedule and its costs. So a timeline or the memory over
    /// time can be predicted.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use stovepipe_pipeline::{Measured, Pipeline, Profiler, measure::OptimizerState};
    ///
    /// let (layers, sample) = (Dense::layers(&[3, 3, 3]), Tensor::ones([8, 3], &Device::flex()));
    /// let measured = Measured::from(Profiler::new(&Device::flex()).measure(&layers, sample)?);
    /// let builder = Pipeline::builder(layers).devices([Device::flex(), Device::flex()]);
    /// let (schedule, costs) = builder.costs(&measured, OptimizerState::new(2))?;
    /// assert_eq!(schedule.simulate(&costs)?.memory().len(), 2); // for each worker
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`forecast`](Self::forecast).
    pub fn costs(
        &self,
        measured: &Measured,
        state: OptimizerState,
    ) -> Result<(Schedule, Costs), BuildError> {
        self.set_up(measured, state, |setup, cut| {
            Ok((setup.schedule.clone(), setup.costs(cut)?))
        })
    }

    fn set_up<R>(
        &self,
        measured: &Measured,
        state: OptimizerState,
        work: impl Fn(&Setup, &[usize]) -> Result<R, PlanError>,
    ) -> Result<R, BuildError> {
        let mut layout = self.layout()?;
        if layout.schedule.is_asynchronous() {
            layout.schedule = self.window(layout.schedule.stages(), WINDOW)?;
        }
        let mut machine = measured.machine(self.devices.len());
        for (spec, device) in machine.devices.iter_mut().zip(&self.devices) {
            spec.name.clone_from(&device.name);
        }
        let setup = Setup {
            profiles: measured.profiles(),
            machine: &machine,
            devices: &(0..self.devices.len()).collect::<Vec<_>>(),
            schedule: &layout.schedule,
            recompute: &self.recompute,
            weights: self.weight_policy,
            state,
            bucket: self.bucket as u64,
        };
        Ok(work(&setup, &layout.cut)?)
    }

    /// The number of stages that the scheduler makes for the devices.
    fn stages(&self) -> Result<usize, BuildError> {
        let devices = self.devices.len();
        match self.scheduler.stages(devices) {
            _ if devices == 0 => Ok(0),
            0 => {
                // Its error says why.
                (self.scheduler).schedule(devices, self.micro_batches.max(1))?;
                Err(BuildError::NoStages)
            }
            stages => Ok(stages),
        }
    }

    /// Adds the name of the layer whose cost is wrong.
    fn with_name(&self, error: BuildError) -> BuildError {
        match error {
            BuildError::Cut(CutError::Cost { layer: index, cost }) => {
                let name = self.layers[index].name();
                let layer = LayerName { index, name };
                BuildError::Cost { layer, cost }
            }
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
    pub fn build(mut self) -> Result<Pipeline<L>, BuildError> {
        let of_workers = self.devices.iter().map(|device| device.process).collect();
        let (comm, cancel) = (self.communicator.take(), CancelHandle::new());
        let processes = Arc::new(Processes::new(of_workers, comm, &cancel)?);
        let sample = self.sample.take();
        let kinds = self.kinds(&processes)?;
        let built = self.build_own(&processes, &kinds, cancel);
        let pipeline = processes.meet(built, Pipeline::terms)?;
        let engine = &pipeline.engine;
        engine.reducers.set_all_reduce(engine.all_reduce)?;
        if pipeline.engine.shared.is_some() {
            pipeline.meet(Ok::<_, BuildError>(()), |()| (Vec::new(), ()))?;
        }
        if let Some(sample) = sample {
            pipeline.infer(sample).map_err(BuildError::Sample)?;
        }
        Ok(pipeline)
    }

    /// Builds this process's part.
    fn build_own(
        self,
        processes: &Arc<Processes>,
        kinds: &[String],
        cancel: CancelHandle<BoxedError>,
    ) -> Result<Pipeline<L>, BuildError> {
        let StageLayout {
            cut,
            seats,
            schedule,
        } = self.layout()?;
        let ties = Ties::of(&self.layers);
        if processes.are_several() && !<L::Flow as Flow>::PACKS {
            return Err(BuildError::FlowNotPacked(type_name::<L::Flow>()));
        }
        let mut stages = self.place(&cut, &seats, processes)?;
        if let Some(layers) = ties.shared_statistics {
            let [first, second] = layers.map(|index| LayerName {
                index,
                name: self.layers[index].name(),
            });
            return Err(BuildError::SharedStatistics { first, second });
        }
        self.check_all_reduce(&seats, processes)?;
        let workers = self.start_workers(&seats, processes)?;
        let transfers = self.start_transfers(&stages, (&seats, processes))?;
        let reducers = Reducers::start(&seats, processes, self.bucket);
        let reducers = reducers.map_err(BuildError::TransferThread)?;
        let of_stage = |stage: usize| processes.home(seats.of_stage(stage)).is_some();
        let is_own: Vec<_> = (0..seats.stages()).map(of_stage).collect();
        let stage_of = |layer| stages.partition_point(|stage| stage.layers.end <= layer);
        let processes_of = |layer: usize| {
            let seats = seats.of_stage(stage_of(layer)).iter();
            seats.map(|seat| processes.of(seat.worker)).collect()
        };
        let of_unlike = |stage| has_unlike_replicas(seats.of_stage(stage), kinds);
        let unlike: Vec<_> = (0..seats.stages()).map(of_unlike).collect();
        let is_unlike = |layer| unlike[stage_of(layer)];
        let shared =
            (processes.post()).and_then(|post| Shared::new(&ties, (processes_of, is_unlike), post));
        let is_own_layer = |layer| is_own[stage_of(layer)];
        let own_ties = ties.within(is_own_layer);
        let of_others = initialise_shared(&self.layers, self.seed, &ties, is_own_layer);
        let by_number: HashMap<_, _> = processes.own_workers().zip(&workers).collect();
        let worker_of = |stage: usize| {
            let home = processes.home(seats.of_stage(stage))?;
            by_number.get(&home.worker).copied()
        };
        let layers = prepare_layers(
            self.layers,
            self.seed,
            &stages,
            (worker_of, self.stall_timeout),
        )?;
        let layers = own_ties.tie(release(layers, &of_others));
        for (stage, _) in stages.iter_mut().zip(is_own).filter(|(_, is_own)| *is_own) {
            stage.cells = layers[stage.layers.clone()].iter().map(Cells::of).collect();
        }
        check_statistics(&stages)?;
        let unkeyed = unkeyed::check(&layers, self.unkeyed_policy, &self.recompute)?;
        let engine = Engine {
            processes: processes.clone(),
            transfers,
            reducers,
            schedules: Schedules {
                scheduler: self.scheduler,
                recompute: self.recompute,
                layers: stages.iter().map(|stage| stage.layers.clone()).collect(),
                seats,
                workers: self.devices.len(),
                known: HashMap::new().into(),
            },
            stages,
            devices: self.devices,
            workers,
            micro_batches: self.micro_batches,
            stall_timeout: self.stall_timeout,
            stop: self.stop,
            cancel,
            progress: self.progress,
            seed: self.seed,
            steps: 0.into(),
            training_progress: 1f64.to_bits().into(),
            check_finite: self.check_finite,
            sums_passes: false.into(),
            all_reduce: self.all_reduce,
            precision: self.precision,
            loss_scaler: LossScaler::default().into(),
            unkeyed_policy: self.unkeyed_policy,
            unkeyed,
            tied_places: format!("{:?}", ties.places()),
            ties: own_ties,
            shared: shared.map(Arc::new),
            unlike,
            has_ties: !ties.places().is_empty(),
            weight_policy: self.weight_policy,
            is_asynchronous: schedule.is_asynchronous(),
            momenta: Arc::default(),
            turn: ().into(),
            in_callback: None.into(),
        };
        Ok(Pipeline::new(layers, engine))
    }

    /// The layers and the device of each stage.
    fn place(
        &self,
        cut: &[usize],
        seats: &Seats,
        processes: &Processes,
    ) -> Result<Vec<StagePlacement>, BuildError> {
        let layers = &self.layers;
        let of_user = caught(|| {
            let uses: Vec<_> = layers.iter().map(L::skips).collect();
            let wiring = Wiring::new(&uses, &|index| layers[index].name())?;
            Ok::<_, BuildError>((wiring, layers.iter().map(L::name).collect::<Vec<_>>()))
        });
        let (wiring, names) = of_user.map_err(BuildError::Panicked)??;
        let ranges: Vec<_> = ranges(cut).collect();
        let skips = StageSkips::of_stages(&Arc::new(wiring), &ranges);
        let devices = of_stages(seats, processes, &self.devices).into_iter();
        let placement =
            |(index, ((layers, device), skips)): (_, ((Range<usize>, NamedDevice), _))| {
                StagePlacement {
                    index,
                    names: names[layers.clone()].into(),
                    layers,
                    device: device.device.inner(),
                    device_name: device.name,
                    skips,
                    cells: Arc::default(), // found when the layers are moved
                }
            };
        let placements = ranges.into_iter().zip(devices).zip(skips);
        Ok(placements.enumerate().map(placement).collect())
    }

    /// The kind of each worker's device, if other processes have replicas of its stages: only its own process
    /// knows the hardware.
    fn kinds(&self, processes: &Processes) -> Result<Vec<String>, BuildError> {
        if !processes.are_several() {
            return Ok(Vec::new());
        }
        // If there is no schedule, the build fails later.
        let seats = self.stages().and_then(|stages| self.seats(stages));
        let of_stages = seats
            .iter()
            .flat_map(|(_, seats)| (0..seats.stages()).map(|stage| seats.of_stage(stage)));
        let replicated: BTreeSet<_> = of_stages
            .filter(|seats| processes.of_seats(seats).len() > 1)
            .flat_map(|seats| seats.iter().map(|seat| seat.worker))
            .collect();
        let kind = |worker: usize| match replicated.contains(&worker) {
            true => probe::kind(&self.devices[worker]),
            false => String::new(),
        };
        let own: Vec<_> = processes.own_workers().map(kind).collect();
        let all = processes.share(own)?;
        let mut all: Vec<_> = all.into_iter().map(Vec::into_iter).collect();
        let of_worker = |device: &NamedDevice| all[device.process].next().unwrap_or_default();
        Ok(self.devices.iter().map(of_worker).collect())
    }

    /// Checks that the stages' replicas can be added up as asked.
    fn check_all_reduce(&self, seats: &Seats, processes: &Processes) -> Result<(), BuildError> {
        let replicated = (0..seats.stages()).filter(|&stage| seats.of_stage(stage).len() > 1);
        for stage in replicated.filter(|_| self.all_reduce == AllReduce::Mpi) {
            let checked = check_mpi(seats.of_stage(stage), processes);
            checked.map_err(|source| BuildError::AllReduce { stage, source })?;
        }
        Ok(())
    }

    /// Checks the devices and starts a worker for each.
    fn start_workers(
        &self,
        seats: &Seats,
        processes: &Processes,
    ) -> Result<Vec<worker::Worker>, BuildError> {
        let threads = |device: &NamedDevice| device.threads.unwrap_or(self.threads_per_stage);
        let threads: Vec<_> = self.devices.iter().map(threads).collect();
        for &threads in &threads {
            probe::check_threads(threads)?;
        }
        let own = seats.all().filter(|seat| processes.is_own(seat.worker));
        for Seat { stage, worker, .. } in own {
            self.devices[worker].here()?;
            probe::use_device(&self.devices[worker]).map_err(|error| match error {
                BuildError::Unusable { device, source } => BuildError::Device {
                    stage,
                    device,
                    source,
                },
                error => error,
            })?;
        }
        let own = || processes.own_workers();
        own().try_for_each(|worker| self.precision.check(&self.devices[worker]))?;
        let spawn = |worker| {
            worker::spawn(&format!("worker-{worker}"), threads[worker])
                .map_err(|source| BuildError::Worker { worker, source })
        };
        own().map(spawn).collect()
    }

    fn start_transfers(
        &self,
        stages: &[StagePlacement],
        seats_of: (&Seats, &Processes),
    ) -> Result<TransferThreads, BuildError> {
        let skips = stages.iter().enumerate().flat_map(|(from, stage)| {
            (stage.skips.outgoing().into_iter()).map(move |(_, to)| (from, to))
        });
        let skips: BTreeSet<_> = skips.collect();
        TransferThreads::start(&self.devices, skips, seats_of, self.on_transfer.as_ref())
            .map_err(BuildError::TransferThread)
    }
}

/// Whether MPI can add up the gradients of these replicas.
fn check_mpi(seats: &[Seat], processes: &Processes) -> Result<(), CollectiveError> {
    if !processes.comm().is_some_and(|comm| comm.can_all_reduce()) {
        return Err(CollectiveError::NoMpi);
    }
    let process = |seat: &Seat| processes.of(seat.worker);
    let mut all = seats.iter().enumerate();
    let again = all.find(|(at, own)| {
        seats[..*at]
            .iter()
            .any(|seat| process(seat) == process(own))
    });
    again.map_or(Ok(()), |(_, seat)| {
        Err(CollectiveError::SeveralPlaces(process(seat)))
    })
}

/// How a model is cut and which worker has which stage.
struct StageLayout {
    /// The number of layers of each stage.
    cut: Vec<usize>,
    seats: Seats,
    schedule: Schedule,
}

/// The device of each stage, given the device of each worker: that of this process's first seat, if it has
/// one.
fn of_stages<T: Clone>(seats: &Seats, processes: &Processes, of_workers: &[T]) -> Vec<T> {
    let of_stage = |stage: usize| {
        let seats = seats.of_stage(stage);
        let seat = processes.home(seats).unwrap_or(seats[0]);
        of_workers[seat.worker].clone()
    };
    (0..seats.stages()).map(of_stage).collect()
}

/// Whether a stage has replicas whose updates would give other bits. Only processes have kinds.
fn has_unlike_replicas(seats: &[Seat], kinds: &[String]) -> bool {
    let mut kinds = seats.iter().filter_map(|seat| kinds.get(seat.worker));
    let first = kinds.next();
    kinds.any(|kind| Some(kind) != first)
}

/// Draws the lazy parameters that layers share: moving them would initialise them without the seed. Returns
/// the places in other processes' layers, which need no value then.
fn initialise_shared<L: Layer>(
    layers: &[L],
    seed: u64,
    ties: &Ties,
    is_own: impl Fn(usize) -> bool,
) -> Vec<Place> {
    let is_shared_here = |places: &&Vec<Place>| places.iter().any(|(layer, _)| is_own(*layer));
    let shared_here = || ties.places().iter().filter(is_shared_here);
    for places in shared_here().filter(|places| !is_own(places[0].0)) {
        initialise_place(layers, places[0]);
    }
    for (index, layer) in layers.iter().enumerate() {
        if is_own(index) && ties.touch(layer) {
            initialise_in_place(layer, index, seed);
        }
    }
    let places = shared_here().flatten();
    let of_others = places.filter(|(layer, _)| !is_own(*layer));
    of_others.copied().collect()
}

/// Moves each layer of this process to its stage's device, ready to train. One after another, so that the
/// CPU holds the values of one layer at a time. Others stay as they are.
///
/// A GPU's are moved by the worker: memory there belongs to the thread that asked for it. For each kernel that reads
/// another thread's, CubeCL 0.11 makes two events, and launches no more while ten or so of these kernels are not over.
fn prepare_layers<'a, L: Layer>(
    layers: Vec<L>,
    seed: u64,
    stages: &[StagePlacement],
    (worker_of, stall_timeout): (
        impl Fn(usize) -> Option<&'a worker::Worker>,
        Option<Duration>,
    ),
) -> Result<Vec<L>, BuildError> {
    let mut layers = layers.into_iter().enumerate();
    let mut prepared = Vec::new();
    for stage in stages {
        let worker = worker_of(stage.index);
        let failed = |source| BuildError::Device {
            stage: stage.index,
            device: stage.device_name.clone(),
            source,
        };
        for (index, layer) in layers.by_ref().take(stage.layers.len()) {
            let device = stage.device.clone();
            let is_cpu = device == Device::flex();
            let prepare = move |layer: L| initialise(layer, index, seed).fork(&device).train();
            prepared.push(match worker {
                None => layer,
                Some(_) if is_cpu => {
                    caught(|| prepare(layer)).map_err(|error| failed(error.into()))?
                }
                Some(worker) => {
                    let (send, receive) = mpsc::channel();
                    worker::run_for(
                        worker,
                        stage.device.clone(),
                        move || Ok(prepare(layer)),
                        move |found| {
                            let _ = send.send(found);
                        },
                    );
                    worker.settle(stall_timeout);
                    let found = receive.try_recv().map_err(|_| failed("no answer".into()))?;
                    found.map_err(failed)?
                }
            });
        }
    }
    Ok(prepared)
}

/// Checks that no two layers share running statistics.
fn check_statistics(stages: &[StagePlacement]) -> Result<(), BuildError> {
    let mut owners = HashMap::new();
    for stage in stages {
        let named = stage.layers.clone().zip(stage.names.iter().cloned());
        for ((index, name), cells) in named.zip(&*stage.cells) {
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
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// An integration test cannot see this: all CPU devices are equal.
    #[test]
    fn a_stage_is_on_its_workers_device() {
        let devices = ["left", "right"];
        let one_each = |workers: &[usize]| Seats::new(workers.chunks(1));
        let alone = Processes::new(vec![0; 2], None, &CancelHandle::new()).unwrap();
        let of_stages = |workers: &[usize]| of_stages(&one_each(workers), &alone, &devices);
        assert_eq!(of_stages(&[0, 1]), ["left", "right"]);
        assert_eq!(of_stages(&[0, 1, 0, 1]), ["left", "right", "left", "right"]);
        assert_eq!(of_stages(&[0, 1, 1, 0]), ["left", "right", "right", "left"]);
    }
}
