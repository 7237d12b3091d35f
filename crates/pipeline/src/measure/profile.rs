//! Measures what each layer of a model costs.

use std::{sync::Arc, time::Duration};

use burn::tensor::Device;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use stovepipe_plan::{LayerProfile, Profile, SkipProfile};

use crate::{
    api::{
        batch::{self, Inputs},
        error::{BuildError, ProfilerError, StepError},
        precision::Precision,
    },
    engine::{
        copies,
        panic::caught,
        skips::{SkipValues, StageSkips},
        tape::StageValues,
        values, worker,
    },
    measure::{
        device::NamedDevice,
        fingerprint::{Fingerprint, layer_text},
        layer_bench::{LayerBench, PeakOf, Setting, bytes, failed, pass_of, stand_in},
        probe,
        side_by_side::Chain,
    },
    model::{
        flow::Flow,
        flows,
        layer::Layer,
        parameters::{count_parameters, parameter_bytes},
        wiring::Wiring,
    },
};

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
    peak_of: Option<PeakOf>,
    progress: Option<Arc<dyn Fn(usize) + Send + Sync>>,
    stall_timeout: Option<Duration>,
    /// Workers that run at the same time; 0 to measure layers alone.
    beside: usize,
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
            peak_of: None,
            progress: None,
            stall_timeout: Some(worker::STALL_TIMEOUT),
            beside: 0,
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

    /// Measures the times of layers as they are when this many workers of a pipeline run on the CPU: one layer
    /// after the other, with the activations of several micro-batches in memory, and on all workers at once.
    /// Without, each layer is measured alone, which takes less time and memory; in a pipeline layers are
    /// slower. Changes nothing on a GPU.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use stovepipe_pipeline::Profiler;
    ///
    /// let (device, layers) = (Device::flex(), Dense::layers(&[4, 8, 2]));
    /// let profiler = Profiler::new(&device).side_by_side(2);
    /// let profile = profiler.measure(&layers, Tensor::ones([16, 4], &device))?;
    /// assert!(profile.layers.iter().all(|layer| layer.backward > 0.0));
    /// # Ok::<(), stovepipe_pipeline::BuildError>(())
    /// ```
    pub fn side_by_side(mut self, workers: usize) -> Self {
        self.beside = workers;
        self
    }

    /// Also measures what layers keep in memory from forward to backward. `allocated` returns the bytes
    /// that the process has allocated, for example from a counting allocator. A GPU reports its own.
    pub fn counting(mut self, allocated: fn() -> usize) -> Self {
        self.allocated = Some(allocated);
        self
    }

    /// Also measures what layers need while they run, besides what they keep, if bytes are
    /// [counted](Self::counting). `peak_of` runs some work, and returns the most bytes that the process had allocated
    /// meanwhile above those before. A GPU needs no function: its pool reports its bytes, if nobody else uses it
    /// meanwhile.
    ///
    /// ```standalone_crate
    /// use burn::tensor::{Device, Tensor};
    /// use cap::Cap;
    /// use peakmem_alloc::{INSTRUMENTED_SYSTEM, PeakMemAlloc, PeakMemAllocTrait};
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use stovepipe_pipeline::Profiler;
    ///
    /// #[global_allocator]
    /// static ALLOCATOR: Cap<&PeakMemAlloc<std::alloc::System>> =
    ///     Cap::new(&INSTRUMENTED_SYSTEM, usize::MAX);
    ///
    /// fn peak_of(work: &mut dyn FnMut()) -> usize {
    ///     INSTRUMENTED_SYSTEM.reset_peak_memory();
    ///     work();
    ///     INSTRUMENTED_SYSTEM.get_peak_memory()
    /// }
    ///
    /// let device = Device::flex();
    /// let profiler = Profiler::new(&device).counting(|| ALLOCATOR.allocated());
    /// let profiler = profiler.counting_peaks(peak_of);
    /// let profile = profiler.measure(&Dense::layers(&[256, 512]), Tensor::ones([8, 256], &device))?;
    /// // At least the gradients of the parameters, before they are added to others.
    /// assert!(profile.layers[0].workspace >= Some(profile.layers[0].parameters));
    /// # Ok::<(), stovepipe_pipeline::BuildError>(())
    /// ```
    pub fn counting_peaks(mut self, peak_of: fn(&mut dyn FnMut()) -> usize) -> Self {
        self.peak_of = Some(peak_of);
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
        let (precision, threads, beside) = (self.precision, self.threads, self.beside);
        format!(
            "{threads} {precision} {beside} {}",
            layers.collect::<String>()
        )
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
                    let mut cause = format!("{device} did not answer for {limit:.1} s");
                    if measured == layers.len() {
                        cause += ", while all layers ran side by side";
                    }
                    let layer = measured.min(layers.len().saturating_sub(1));
                    return Err(failed(layers, layer)(cause).into());
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
        let setting = self.setting();
        let entered = caught(|| {
            let (input, side) = (self.cast(input), self.cast(side));
            let side = flows::attach(flows::to_device(side, &self.device), false);
            (flows::to_device(L::enter(input), &self.device), side)
        });
        let entered = entered.map_err(StepError::panicked("enter"));
        let (flow, side) = entered.map_err(failed(layers, 0))?;
        let input = bytes(flow.clone()) as u64;
        let allocated = || setting.on_host(self.allocated).map(|allocated| allocated());
        let before = allocated();
        let (mut profiles, skips) =
            self.measure_layers((layers, &setting), wiring, flow.clone(), (&side, samples))?;
        // What stays are buffers of this thread's kernels, which each worker has.
        let buffers = before.zip(allocated());
        let buffers = buffers.map_or(0, |(before, after)| after.saturating_sub(before));
        for layer in &mut profiles {
            layer.workspace = layer.workspace.map(|bytes| bytes + buffers as u64);
        }
        if self.beside > 0 && NamedDevice::from(self.device.clone()).is_cpu() {
            let side = &side;
            let chain = Chain {
                layers,
                wiring,
                flow,
                side,
                samples,
            };
            let alive = || self.report(layers.len());
            let workers = (self.beside, self.threads);
            chain.replace_times(&setting, workers, &mut profiles, &alive)?;
        }
        Ok(Profile {
            samples,
            input,
            layers: profiles,
            skips,
        })
    }

    fn measure_layers<L: Layer>(
        &self,
        (layers, setting): (&[L], &Setting),
        wiring: &Arc<Wiring>,
        flow: L::Flow,
        (side, samples): (&L::Side, usize),
    ) -> Result<(Vec<LayerProfile>, Vec<SkipProfile>), ProfilerError> {
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
            let own = stand_in(layer, &setting.device);
            let [parameters, trained] = parameter_bytes(&own);
            // Parameters of 16 bits need no copies.
            let narrow = 2 * count_parameters(&own) as u64;
            let cast = setting.dtype.map(|_| parameters.saturating_sub(narrow));
            let bench = LayerBench {
                layer: copies::cast(own, setting.dtype),
                pass: pass_of(layers, index, (side, samples), skips),
                setting,
            };
            let panicked = StepError::panicked("layer");
            let measured = caught(|| bench.measure(&input)).map_err(panicked);
            let measured = measured.map_err(failed(layers, index))?;
            let (profile, output) = measured.map_err(failed(layers, index))?;
            let profile = LayerProfile {
                name: layer.name(),
                parameters,
                trained: Some(trained).filter(|trained| *trained != parameters),
                cast,
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
        let skips = wiring.skips.iter().zip(0..);
        let skips = skips.map(|(skip, number)| SkipProfile {
            from: skip.sender,
            to: skip.takers.clone(),
            bytes: (input.skips.get(&number)).map_or(0, |value| bytes(value.clone()) as u64),
        });
        Ok((profiles, skips.collect()))
    }

    fn setting(&self) -> Setting {
        Setting {
            device: self.device.clone(),
            dtype: self.precision.cast(),
            allocated: self.allocated,
            peak_of: self.peak_of,
        }
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
