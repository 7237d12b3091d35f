//! Measures what each layer of a model costs.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use burn::{
    module::{ModuleMapper, Param},
    optim::GradientsAccumulator,
    tensor::{Bool, Device, Int, Tensor, TensorData},
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use stovepipe_plan::{LayerProfile, Profile};

use crate::{
    api::{
        batch::{self, Inputs},
        error::{BoxedError, BuildError, ProfilerError, StepError},
        precision::Precision,
    },
    engine::{
        copies,
        panic::caught,
        skips::{SkipGradients, SkipValues, StageSkips},
        tape::{self, BackwardScope, Head, LossAndScores, PassContext, Recorded, StageValues},
        values::{self, FlowGradients},
        worker,
    },
    measure::{
        device::NamedDevice,
        fingerprint::{Fingerprint, layer_text},
        probe::{self, median},
    },
    model::{
        flow::{Flow, FlowMapper, every_kind},
        flows,
        keyed_rng::StepKey,
        layer::Layer,
        parameters::count_parameters,
        wiring::{LayerName, Wiring},
    },
};

/// The number of timed runs of a layer: as many as fit into [`TIMING`].
const RUNS: std::ops::RangeInclusive<usize> = 5..=25;
const TIMING: Duration = Duration::from_millis(100);
/// The number of timed runs of parts that only some schedules use.
const MORE_RUNS: usize = 5;
/// After this time one run is enough: long runs vary little.
const LONG: Duration = Duration::from_secs(2);

/// Measures what each layer of a model costs: the [`Profile`] that cuts and plans are made from.
///
/// Use a sample of the size of a micro-batch. The model does not change: one layer at a time is measured on
/// a copy, in which lazy parameters get values. Of equal layers, one is measured: same name, same settings
/// as far as `Debug` shows them, same shapes of parameters and inputs, and no skips.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// # use stovepipe_pipeline::doc_example::Dense;
/// use stovepipe_pipeline::Profiler;
///
/// let device = Device::flex();
/// let layers = Dense::layers(&[4, 8, 2]);
/// let profile = Profiler::new(&device).measure(&layers, Tensor::ones([16, 4], &device))?;
/// assert_eq!(profile.samples, 16);
/// assert_eq!(profile.layers[0].parameters, 4 * (4 * 8 + 8)); // bytes
/// assert_eq!(profile.layers[0].output, 4 * (16 * 8));
/// # Ok::<(), stovepipe_pipeline::BuildError>(())
/// ```
#[derive(Clone)]
#[must_use = "a profiler measures nothing until `measure` is called"]
pub struct Profiler {
    device: Device,
    threads: usize,
    precision: Precision,
    allocated: Option<fn() -> usize>,
    progress: Option<Arc<dyn Fn(usize) + Send + Sync>>,
    stall_timeout: Option<Duration>,
}

/// What the measuring worker reports.
enum Report {
    /// The number of layers measured so far.
    Layers(usize),
    End(Result<Profile, ProfilerError>),
}

impl Profiler {
    /// Measures on a device, with one CPU thread.
    pub fn new(device: &Device) -> Self {
        Self {
            device: device.clone().inner(),
            threads: 1,
            precision: Precision::F32,
            allocated: None,
            progress: None,
            stall_timeout: Some(worker::STALL_TIMEOUT),
        }
    }

    /// Measures on a device with its number of threads, or one.
    pub fn on(device: &NamedDevice) -> Self {
        Self::new(&device.device).threads(device.threads.unwrap_or(1))
    }

    /// Sets the number of CPU threads for kernels.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Sets the type that layers compute in, as for the pipeline; f32 by default.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Also measures what layers keep in memory from forward to backward. `allocated` returns the bytes
    /// that the process has allocated, for example from a counting allocator. A GPU reports its own.
    pub fn counting(mut self, allocated: fn() -> usize) -> Self {
        self.allocated = Some(allocated);
        self
    }

    /// Calls `progress` after each layer, with the number of measured layers.
    pub fn on_progress(mut self, progress: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(progress));
        self
    }

    /// Sets how long measuring a layer may take, with compiling its kernels: a lost device may never
    /// answer. Ten minutes by default, without a limit if `None`.
    pub fn stall_timeout(mut self, limit: Option<Duration>) -> Self {
        self.stall_timeout = limit;
        self
    }

    /// A text of all that a measurement depends on beside the sample, the device and the program: layers
    /// with equal texts cost the same. So measurements can be kept.
    ///
    /// ```
    /// # use burn::tensor::Device;
    /// # use stovepipe_pipeline::{Profiler, doc_example::Dense};
    /// let profiler = Profiler::new(&Device::flex());
    /// let of = |sizes: &[usize]| profiler.fingerprint(&Dense::layers(sizes));
    /// assert_eq!(of(&[4, 8, 2]), of(&[4, 8, 2]));
    /// assert_ne!(of(&[4, 8, 2]), of(&[4, 9, 2]));
    /// ```
    #[must_use]
    pub fn fingerprint<L: Layer>(&self, layers: &[L]) -> String {
        let skips = |layer: &L| format!("{:?}", layer.skips());
        let layers = layers.iter().map(|layer| layer_text(layer) + &skips(layer));
        let (precision, threads) = (self.precision, self.threads);
        format!("{threads} {precision} {}", layers.collect::<String>())
    }

    /// Measures each layer. `sample` is the model's input, or `(input, side)`.
    ///
    /// # Errors
    ///
    /// If the sample does not pass through a layer, forward and backward, a layer takes too
    /// [long](Self::stall_timeout), the device cannot compute in the precision, or a thread cannot be
    /// started.
    pub fn measure<L: Layer>(
        &self,
        layers: &[L],
        sample: impl Into<Inputs<L::Input, L::Side>>,
    ) -> Result<Profile, BuildError> {
        probe::check_threads(self.threads)?;
        let sample = sample.into();
        let uses: Vec<_> = layers.iter().map(L::skips).collect();
        let wiring = Arc::new(Wiring::new(&uses, &|index| layers[index].name())?);
        let device = self.device.clone().into();
        probe::use_device(&device)?;
        self.precision.check(&device)?;
        // On a worker like those that will run the stages.
        let worker = worker::spawn_alone("profile", self.threads)?;
        let (sender, reports) = unbounded();
        let (own_layers, profiler) = (layers.to_vec(), self.reporting(sender.clone()));
        worker.run(move || {
            let end = profiler.measure_here(&own_layers, &wiring, sample);
            let _ = sender.send(Report::End(end));
        });
        let profile = self.wait(&reports, layers);
        if profile.is_err() {
            worker.settle(Some(worker::GRACE)); // gives it up if it hangs
        }
        profile
    }

    /// A copy that also sends its progress to `reports`.
    fn reporting(&self, reports: Sender<Report>) -> Self {
        let progress = self.progress.clone();
        self.clone().on_progress(move |measured| {
            if let Some(progress) = &progress {
                progress(measured);
            }
            let _ = reports.send(Report::Layers(measured));
        })
    }

    /// Waits for the end, with a time limit for each layer.
    fn wait<L: Layer>(
        &self,
        reports: &Receiver<Report>,
        layers: &[L],
    ) -> Result<Profile, BuildError> {
        let mut measured = 0;
        loop {
            let report = match self.stall_timeout {
                Some(limit) => reports.recv_timeout(limit),
                None => reports.recv().map_err(RecvTimeoutError::from),
            };
            match report {
                Ok(Report::Layers(count)) => measured = count,
                Ok(Report::End(profile)) => return Ok(profile?),
                Err(RecvTimeoutError::Timeout) => {
                    let limit = self.stall_timeout.unwrap_or_default().as_secs_f64();
                    let device = NamedDevice::from(self.device.clone());
                    let cause = format!("{device} did not answer for {limit:.1} s");
                    return Err(failed(layers, measured)(cause).into());
                }
                Err(RecvTimeoutError::Disconnected) => return Err(BuildError::Unmeasured),
            }
        }
    }

    /// Measures on this thread.
    fn measure_here<L: Layer>(
        &self,
        layers: &[L],
        wiring: &Arc<Wiring>,
        Inputs { input, side }: Inputs<L::Input, L::Side>,
    ) -> Result<Profile, ProfilerError> {
        let samples = batch::samples(&input).map_err(failed::<_, StepError>(layers, 0))?;
        let entered = caught(|| {
            let (input, side) = (self.cast(input), self.cast(side));
            let side = flows::attach(flows::to_device(side, &self.device), false);
            (flows::to_device(L::enter(input), &self.device), side)
        });
        let entered = entered.map_err(StepError::panicked("enter"));
        let (flow, side) = entered.map_err(failed(layers, 0))?;
        Ok(Profile {
            samples,
            input: bytes(flow.clone()) as u64,
            layers: self.measure_layers(layers, wiring, flow, (&side, samples))?,
        })
    }

    fn measure_layers<L: Layer>(
        &self,
        layers: &[L],
        wiring: &Arc<Wiring>,
        flow: L::Flow,
        (side, samples): (&L::Side, usize),
    ) -> Result<Vec<LayerProfile>, ProfilerError> {
        let mut profiles = Vec::with_capacity(layers.len());
        let alone: Vec<_> = (0..layers.len()).map(|layer| layer..layer + 1).collect();
        let alone = StageSkips::of_stages(wiring, &alone);
        let mut input = StageValues {
            flow,
            skips: SkipValues::new(),
        };
        let mut measured_before: Vec<(Fingerprint, LayerProfile, L::Flow)> = Vec::new();
        for (index, (layer, skips)) in layers.iter().zip(&alone).enumerate() {
            let panicked = StepError::panicked("layer");
            let fingerprint = caught(|| Fingerprint::of(layer, &input.flow)).map_err(panicked);
            let fingerprint = fingerprint.map_err(failed(layers, index))?;
            let mut known = measured_before.iter();
            let known = known.find(|known| fingerprint.as_ref() == Some(&known.0));
            if let Some((_, profile, flow)) = known {
                profiles.push(profile.clone());
                input.flow = flow.clone();
                self.report(profiles.len());
                continue;
            }
            let bench = LayerBench {
                layer: copies::cast(stand_in(layer, &self.device), self.precision.cast()),
                pass: PassContext {
                    side,
                    rng: Some((StepKey::APART, 0..samples)),
                    skips,
                    first: index,
                    trainable_from: 0,
                    inspect: false,
                    loss_scale: None,
                },
                profiler: self,
            };
            let panicked = StepError::panicked("layer");
            let measured = caught(|| bench.measure(&input)).map_err(panicked);
            let measured = measured.map_err(failed(layers, index))?;
            let (profile, output) = measured.map_err(failed(layers, index))?;
            let profile = LayerProfile {
                name: layer.name(),
                parameters: (size_of::<f32>() * count_parameters(layer)) as u64,
                output: bytes(output.flow.clone()) as u64,
                ..profile
            };
            profiles.push(profile.clone());
            let known = fingerprint.map(|known| (known, profile, output.flow.clone()));
            measured_before.extend(known);
            input.flow = output.flow;
            input.skips.extend(output.skips);
            self.report(profiles.len());
        }
        Ok(profiles)
    }

    fn cast<F: Flow>(&self, flow: F) -> F {
        values::cast(flow, self.precision.cast())
    }

    fn report(&self, measured: usize) {
        if let Some(progress) = &self.progress {
            progress(measured);
        }
    }
}

/// Says which layer could not be measured.
fn failed<L: Layer, E: Into<BoxedError>>(
    layers: &[L],
    layer: usize,
) -> impl FnOnce(E) -> ProfilerError {
    let name = layers.get(layer).map(L::name).unwrap_or_default();
    let layer = LayerName { index: layer, name };
    move |source| ProfilerError {
        layer,
        source: source.into(),
    }
}

/// A copy of a layer that is measured.
struct LayerBench<'a, L: Layer> {
    layer: L,
    pass: PassContext<'a, L>,
    profiler: &'a Profiler,
}

/// The times of one run of a layer.
struct LayerTiming<L: Layer> {
    forward: Duration,
    backward: Duration,
    /// Of deferred weight gradients.
    deferred: Duration,
    kept: Option<usize>,
    output: StageValues<L>,
}

impl<L: Layer> LayerBench<'_, L> {
    /// The medians, and the output.
    fn measure(
        &self,
        input: &StageValues<L>,
    ) -> Result<(LayerProfile, StageValues<L>), BoxedError> {
        let mut sum = GradientsAccumulator::new();
        self.run(input, BackwardScope::All, &mut sum)?; // compiles kernels
        let last = self.run(input, BackwardScope::All, &mut sum)?; // touches memory pages
        let (mut forward, mut backward) = (Vec::new(), Vec::new());
        let began = Instant::now();
        while forward.len() < *RUNS.start()
            || (forward.len() < *RUNS.end() && began.elapsed() < TIMING)
        {
            let timing = self.run(input, BackwardScope::All, &mut sum)?;
            forward.push(timing.forward);
            backward.push(timing.backward);
            if began.elapsed() > LONG {
                break;
            }
        }
        let backward = median(backward);
        let profile = LayerProfile {
            forward: median(forward),
            quiet: Some(self.forward_without_tape(input)?),
            backward,
            weight: Some(backward * self.deferred_share(input)?),
            kept: last.kept.map(|bytes| bytes as u64),
            ..LayerProfile::default()
        };
        Ok((profile, last.output))
    }

    /// Seconds of a forward pass without a tape.
    fn forward_without_tape(&self, input: &StageValues<L>) -> Result<f64, BoxedError> {
        let quiet = [self.layer.clone().no_grad()];
        let times = some_runs(|| {
            self.sync()?;
            let began = Instant::now();
            let _output = tape::forward(&quiet, input.clone(), &self.pass, &|_| ())?;
            self.sync()?;
            Ok(began.elapsed())
        })?;
        Ok(median(times))
    }

    /// The share of a backward pass that can be deferred.
    fn deferred_share(&self, input: &StageValues<L>) -> Result<f64, BoxedError> {
        let mut sum = GradientsAccumulator::new();
        let mut shares = some_runs(|| {
            let timing = self.run(input, BackwardScope::Input, &mut sum)?;
            let both = (timing.backward + timing.deferred).as_secs_f64();
            let share = timing.deferred.as_secs_f64() / both;
            Ok(if both > 0.0 { share } else { 0.0 })
        })?;
        shares.sort_by(f64::total_cmp);
        Ok(shares[shares.len() / 2])
    }

    fn run(
        &self,
        input: &StageValues<L>,
        scope: BackwardScope,
        sum: &mut GradientsAccumulator<L>,
    ) -> Result<LayerTiming<L>, BoxedError> {
        let modules = vec![copies::live(&self.layer)];
        let device = self.profiler.device.clone().autodiff();
        let loss = |_: Head, output| LossAndScores {
            loss: self::sum(output).unwrap_or_else(|| Tensor::zeros([1], &device)),
            scores: None,
        };
        self.sync()?;
        let before = self.allocated();
        let began = Instant::now();
        let recorded = tape::record(modules.clone(), input.clone(), &self.pass, &loss, &|_| ())?;
        self.sync()?;
        let forward = began.elapsed();
        let kept = before.zip(self.allocated());
        let kept = kept.map(|(before, after)| after.saturating_sub(before));
        let Recorded { output, tape, .. } = recorded;
        let gradients = ones(output.flow.clone());
        let of_skips = self.ones(&output);
        self.sync()?;
        let began = Instant::now();
        let result = tape.backward(
            gradients,
            of_skips,
            (scope, &self.pass),
            |_, module, gradients| sum.accumulate(module, gradients),
            &|_| (),
        )?;
        self.sync()?;
        let backward = began.elapsed();
        let is_deferred = !result.deferred.is_empty();
        let began = Instant::now();
        for (layer, deferred) in result.deferred {
            let module = &modules[layer];
            sum.accumulate(module, deferred.run(module));
        }
        self.sync()?;
        Ok(LayerTiming {
            forward,
            backward,
            deferred: is_deferred.then(|| began.elapsed()).unwrap_or_default(),
            kept,
            output,
        })
    }

    /// Ones as the gradients of the skips that the layer sent.
    fn ones(&self, output: &StageValues<L>) -> SkipGradients {
        let skips = self.pass.skips;
        let of_skip = |(&skip, value): (&usize, &L::Flow)| {
            let of_taking = |taking| (taking, ones(value.clone()));
            skips.takings(skip).map(of_taking).collect::<Vec<_>>()
        };
        output.skips.iter().flat_map(of_skip).collect()
    }

    /// The bytes that are allocated now; a GPU reports its own.
    fn allocated(&self) -> Option<usize> {
        let of_device = self.profiler.device.memory_pool_usage();
        match (of_device, self.profiler.allocated) {
            (Some(usage), _) => usize::try_from(usage.bytes_in_use).ok(),
            (None, allocated) => allocated.map(|allocated| allocated()),
        }
    }

    /// Waits until the device is done.
    fn sync(&self) -> Result<(), BoxedError> {
        Ok(self.profiler.device.sync()?)
    }
}

/// Runs the parts that only some schedules use.
fn some_runs<R>(mut run: impl FnMut() -> Result<R, BoxedError>) -> Result<Vec<R>, BoxedError> {
    let first = Instant::now();
    let is_short = |_: &usize| first.elapsed() <= LONG;
    let runs = (0..=MORE_RUNS).take_while(is_short);
    runs.map(|_| run()).collect()
}

/// A copy of a layer on a device, ready to train, that shares nothing with the model: clones of lazy
/// parameters would initialise the model's, and clones of running statistics would update the model's.
fn stand_in<L: Layer>(layer: &L, device: &Device) -> L {
    struct Values<'a>(&'a Device);

    impl ModuleMapper for Values<'_> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if param.is_initialized() {
                return param;
            }
            Param::from_tensor(plausible(param.lazy_shape().dims(), self.0))
        }
    }

    let copy = layer.clone().map(&mut Values(device));
    copy.valid().fork(device).train()
}

/// Weights of a usual size, without drawing from Burn's generator, which the user may have seeded.
fn plausible<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = match D {
        0 | 1 => vec![1.0; count],
        _ => {
            let inputs = (count / shape[0].max(1)).max(1);
            let scale = (2.0 / inputs as f32).sqrt();
            (0..count).map(|i| scale * (1.3 * i as f32).sin()).collect()
        }
    };
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Ones for gradients of a flow.
fn ones<F: Flow>(flow: F) -> FlowGradients {
    #[derive(Default)]
    struct Ones {
        gradients: FlowGradients,
        index: usize,
    }

    impl FlowMapper for Ones {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.gradients.register(self.index, tensor.ones_like());
            self.index += 1;
            tensor
        }
    }

    let mut ones = Ones::default();
    flow.map(&mut ones);
    ones.gradients
}

/// The sum of all floats of a flow, if it has any.
fn sum<F: Flow>(flow: F) -> Option<Tensor<1>> {
    struct Sum(Option<Tensor<1>>);

    impl FlowMapper for Sum {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.0 = values::add(self.0.take(), Some(tensor.clone().sum()));
            tensor
        }
    }

    let mut sum = Sum(None);
    flow.map(&mut sum);
    sum.0
}

/// The bytes of a flow's tensors.
fn bytes<F: Flow>(flow: F) -> usize {
    struct Bytes(usize);

    impl FlowMapper for Bytes {
        every_kind!(self, tensor => {
            self.0 += tensor.shape().num_elements() * tensor.dtype().size();
            tensor
        });
    }

    let mut bytes = Bytes(0);
    flow.map(&mut bytes);
    bytes.0
}
