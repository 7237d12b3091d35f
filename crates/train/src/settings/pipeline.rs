//! How a model is cut and run.

use clap::Args;
use serde::{Deserialize, Serialize};
use stovepipe_pipeline::{
    Balance, BuildError, Layer, Measured, NamedDevice, Pipeline, PipelineBuilder, Precision,
    Profiler, Recompute, device::DeviceError, measure::Profile,
};
use stovepipe_schedule::{Rule, Scheduler};

use super::{
    balance::BalanceSetting,
    check::{AT_LEAST_ONE, Range, check},
    schedule::ScheduleSetting,
};
use crate::error::TrainError;

/// Schedules are lists of all their actions: more would be a mistake.
const MICRO_BATCHES: Range<usize> = (|count| (1..=65_536).contains(&count), "from 1 to 65536");
const THREADS: Range<usize> = (|count| (1..=1024).contains(&count), "from 1 to 1024");

/// How a model is cut and run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(next_help_heading = "Pipeline")]
pub struct PipelineSettings {
    /// Number of stages; with several chunks on each device, number of devices
    #[arg(long, required = false, value_name = "N")]
    pub stages: usize,
    /// Devices: one for all stages, or one for each (cpu, cpu:threads=4, wgpu:0, cuda:0)
    #[arg(long, required = false, value_name = "LIST", value_delimiter = ',')]
    pub devices: Vec<String>,
    /// Where to cut: `auto` (fastest predicted step, from measured layers), `time` (shortest
    /// slowest stage), `size` (even memory), `even` (even numbers of layers), or the layers of each
    /// stage, such as 5,4
    #[arg(long, required = false, value_name = "LIST")]
    pub balance: BalanceSetting,
    /// Micro-batches in a mini-batch
    #[arg(long, required = false, value_name = "N")]
    pub micro_batches: usize,
    /// Order of forward and backward passes: gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, or a CSV
    /// file that lists the actions of each worker
    #[arg(long, required = false, value_name = "NAME|FILE")]
    pub schedule: ScheduleSetting,
    /// Stages on each device, for the schedule `interleaved`
    #[arg(long, required = false, value_name = "N")]
    pub chunks: usize,
    /// Micro-batches whose activations are recomputed: always, except-last, never
    #[arg(long, required = false, value_name = "MODE")]
    pub recompute: Recompute,
    /// CPU threads of each stage, unless its device names another number
    #[arg(long, required = false, value_name = "N")]
    pub threads_per_stage: usize,
    /// Precision of the computation: f32, or mixed precision in bf16 or f16 (parameters stay f32)
    #[arg(long, required = false, value_name = "TYPE")]
    pub precision: Precision,
    /// Bytes of memory of each device: one number for all, or one for each [default: free memory
    /// for the CPU, all memory of CUDA devices, unknown for others]
    #[arg(long, required = false, value_name = "LIST", value_delimiter = ',')]
    pub device_memory: Vec<u64>,
}

impl Default for PipelineSettings {
    fn default() -> Self {
        Self {
            stages: 2,
            devices: vec!["cpu".to_owned()],
            balance: BalanceSetting::Auto,
            micro_batches: 4,
            schedule: ScheduleSetting::Rule(Rule::OneForwardOneBackward),
            chunks: 2,
            recompute: Recompute::ExceptLast,
            threads_per_stage: 1,
            precision: Precision::F32,
            device_memory: Vec::new(),
        }
    }
}

impl PipelineSettings {
    /// Checks all settings for a model of `layers` layers.
    ///
    /// ```
    /// use stovepipe_train::PipelineSettings;
    ///
    /// assert!(PipelineSettings::default().check(9).is_ok());
    /// let settings = PipelineSettings { stages: 10, ..Default::default() };
    /// let error = settings.check(9).unwrap_err();
    /// assert_eq!(error.to_string(), "10 stages are more than the model's 9 layers");
    /// ```
    ///
    /// # Errors
    ///
    /// If a setting is out of its range or does not fit the others.
    pub fn check(&self, layers: usize) -> Result<(), TrainError> {
        check([
            ("stages", self.stages, AT_LEAST_ONE),
            ("micro-batches", self.micro_batches, MICRO_BATCHES),
            ("threads-per-stage", self.threads_per_stage, THREADS),
            ("chunks", self.chunks, AT_LEAST_ONE),
        ])?;
        let (given, devices) = (self.device_memory.len(), self.stages);
        if given > 1 && given != devices {
            return Err(TrainError::DeviceMemories { given, devices });
        }
        let stages = self.scheduler()?.stages(self.stages);
        self.balance(None).cut(layers, stages)?;
        for device in self.worker_devices()? {
            self.precision.check(&device).map_err(BuildError::from)?;
        }
        Ok(())
    }

    fn scheduler(&self) -> Result<Box<dyn Scheduler>, TrainError> {
        (self.schedule).scheduler(self.chunks, self.stages, self.micro_batches)
    }

    /// Measures layers as stages would run them: calls `measure` for each kind of device, with a
    /// profiler for it. The result includes the devices' memory, where it is known.
    ///
    /// # Errors
    ///
    /// If there is no device, one is not available, or `measure` fails.
    pub fn measure<E: From<BuildError> + From<TrainError>>(
        &self,
        mut measure: impl FnMut(&NamedDevice, Profiler) -> Result<Profile, E>,
    ) -> Result<Measured, E> {
        let devices = self.worker_devices()?;
        let measured = Measured::on(&devices, |device| {
            let threads = device.threads.unwrap_or(self.threads_per_stage);
            let profiler = Profiler::on(device).threads(threads);
            measure(device, profiler.precision(self.precision))
        })?;
        Ok(measured.with_memory(&self.memory_shares()))
    }

    /// The device of each worker.
    fn worker_devices(&self) -> Result<Vec<NamedDevice>, TrainError> {
        let devices = self.devices.iter().map(|name| name.parse());
        let devices = devices.collect::<Result<Vec<NamedDevice>, DeviceError>>()?;
        match devices.len() {
            1 => Ok(vec![devices[0].clone(); self.stages]),
            count if count == self.stages => Ok(devices),
            count => Err(TrainError::Devices {
                devices: count,
                stages: self.stages,
            }),
        }
    }

    /// A pipeline's builder with these settings. `sample` returns an input of the size of a
    /// micro-batch; it is called if layers have to be measured.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// use stovepipe_train::{PipelineSettings, example::Dense};
    ///
    /// let settings = PipelineSettings { stages: 2, ..Default::default() };
    /// let layers = (0..3).map(|_| Dense::new(3, 3)).collect();
    /// let sample = || Tensor::ones([4, 3], &Device::flex());
    /// let pipeline = settings.builder(layers, sample)?.build()?;
    /// assert_eq!(pipeline.stages().len(), 2);
    /// # Ok::<(), stovepipe_train::TrainError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a setting is out of its range or does not fit the others, a device is not available, or
    /// the sample does not pass through the model.
    pub fn builder<L: Layer<Side = ()>>(
        &self,
        layers: Vec<L>,
        sample: impl FnOnce() -> L::Input,
    ) -> Result<PipelineBuilder<L>, TrainError> {
        self.check(layers.len())?;
        if !self.measures() {
            return self.builder_with(layers, None);
        }
        let sample = sample();
        let measured = self
            .measure::<TrainError>(|_, profiler| Ok(profiler.measure(&layers, sample.clone())?))?;
        self.builder_with(layers, Some(&measured))
    }

    /// Like [`builder`](Self::builder), with layers that are already measured, or are not to be.
    ///
    /// # Errors
    ///
    /// If a setting is out of its range or does not fit the others, or a device is not available.
    pub fn builder_with<L: Layer>(
        &self,
        layers: Vec<L>,
        measured: Option<&Measured>,
    ) -> Result<PipelineBuilder<L>, TrainError> {
        self.check(layers.len())?;
        let devices = self.worker_devices()?;
        let balance = self.balance(measured);
        Ok(Pipeline::builder(layers)
            .devices(devices)
            .balance(balance)
            .schedule(self.scheduler()?)
            .micro_batches(self.micro_batches)
            .recompute(self.recompute)
            .threads_per_stage(self.threads_per_stage)
            .precision(self.precision))
    }

    /// Whether layers are measured before they are cut.
    fn measures(&self) -> bool {
        match self.balance {
            BalanceSetting::Auto => self.stages > 1,
            BalanceSetting::Time | BalanceSetting::Size => true,
            BalanceSetting::Even | BalanceSetting::Layers(_) => false,
        }
    }

    /// The balance; even without the measurements that it needs.
    fn balance(&self, measured: Option<&Measured>) -> Balance {
        match (&self.balance, measured) {
            (BalanceSetting::Auto, Some(measured)) => Balance::Planned(measured.clone()),
            (BalanceSetting::Time, Some(measured)) => Balance::by_time(measured.clone()),
            (BalanceSetting::Size, Some(measured)) => Balance::by_size(measured.profile(0)),
            (BalanceSetting::Layers(layers), _) => Balance::Layers(layers.clone()),
            _ => Balance::Even,
        }
    }
}
