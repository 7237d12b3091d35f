//! The settings of a run.
//!
//! Each setting is one field: its comment is the flag's help, its name the flag and the key in a
//! configuration, its default the one in `Default`.

use std::str::FromStr;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use stovepipe_pipeline::{
    Balance, BuildError, Layer, Measured, NamedDevice, Pipeline, PipelineBuilder, Precision,
    Profiler, Recompute, device::DeviceError, measure::Profile,
};
use stovepipe_schedule::{Rule, Scheduler};

use crate::{error::TrainError, freeze::FreezeSetting, schedule_setting::ScheduleSetting};

/// More would only be a mistake: schedules are lists of all their actions.
const MOST_MICRO_BATCHES: usize = 65_536;
const MOST_THREADS: usize = 1024;

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
    /// Where to cut: `auto` (the cut whose step is foretold to be the fastest, from measured layers), `time`
    /// (the slowest stage takes least), `size` (memory that layers need), `even` (numbers of layers), or
    /// layers of each stage such as 5,4
    #[arg(long, required = false, value_name = "LIST")]
    pub balance: BalanceSetting,
    /// Micro-batches that a mini-batch is cut into
    #[arg(long, required = false, value_name = "N")]
    pub micro_batches: usize,
    /// Order of forward and backward passes: gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, or a CSV
    /// file that lists the actions of each worker
    #[arg(long, required = false, value_name = "NAME|FILE")]
    pub schedule: ScheduleSetting,
    /// Stages on each device, for the schedule `interleaved`
    #[arg(long, required = false, value_name = "N")]
    pub chunks: usize,
    /// Micro-batches whose activations are computed again: always, except-last, never
    #[arg(long, required = false, value_name = "MODE")]
    pub recompute: Recompute,
    /// CPU threads of each stage whose device does not say another number
    #[arg(long, required = false, value_name = "N")]
    pub threads_per_stage: usize,
    /// Numbers that stages compute in: f32, or bf16 or f16 in mixed precision (parameters and their updates stay in f32)
    #[arg(long, required = false, value_name = "TYPE")]
    pub precision: Precision,
    /// Bytes that each device holds: one for all, or one for each [default: on the CPU what is free, on
    /// CUDA devices what they have, else not known]
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
    /// Looks at every number, for a model of `layers` layers.
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
    /// If one is out of its range or does not fit the others.
    pub fn check(&self, layers: usize) -> Result<(), TrainError> {
        positive("stages", self.stages)?;
        bounded(
            "micro-batches",
            self.micro_batches,
            MOST_MICRO_BATCHES,
            "from 1 to 65536",
        )?;
        bounded(
            "threads-per-stage",
            self.threads_per_stage,
            MOST_THREADS,
            "from 1 to 1024",
        )?;
        positive("chunks", self.chunks)?;
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

    /// Measures layers as stages would run them: `measure` is given each device that is unlike those before it, and
    /// what measures there. What is known of the devices' memory goes with it.
    ///
    /// # Errors
    ///
    /// If a device is not to be had, there is none, or it cannot be measured.
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

    /// Says to a pipeline's builder what these settings say. `sample`, of the size of a micro-batch,
    /// is asked for if layers have to be measured.
    ///
    /// ```
    /// # use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
    /// # use stovepipe_pipeline::{Context, Layer, LayerError};
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
    /// use stovepipe_train::PipelineSettings;
    ///
    /// let settings = PipelineSettings { stages: 2, ..Default::default() };
    /// let layer = || Dense { linear: LinearConfig::new(3, 3).init(&Device::flex()) };
    /// let sample = || Tensor::ones([4, 3], &Device::flex());
    /// let pipeline = settings.builder(vec![layer(), layer(), layer()], sample)?.build()?;
    /// assert_eq!(pipeline.stages().len(), 2);
    /// # Ok::<(), stovepipe_train::TrainError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a number is out of its range or does not fit the others, a device is not to be had, or the
    /// sample does not pass through the model.
    pub fn builder<L: Layer<Side = ()>>(
        &self,
        layers: Vec<L>,
        sample: impl FnOnce() -> L::Input,
    ) -> Result<PipelineBuilder<L>, TrainError> {
        self.check(layers.len())?;
        let measured = match self.measures() {
            true => {
                let sample = sample();
                Some(self.measure::<TrainError>(|_, profiler| {
                    Ok(profiler.measure(&layers, sample.clone())?)
                })?)
            }
            false => None,
        };
        self.builder_with(layers, measured.as_ref())
    }

    /// Like [`builder`](Self::builder), with layers measured before, or not at all.
    ///
    /// # Errors
    ///
    /// If a number is out of its range or does not fit the others, or a device is not to be had.
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
    pub(crate) fn measures(&self) -> bool {
        match self.balance {
            BalanceSetting::Auto => self.stages > 1,
            BalanceSetting::Time | BalanceSetting::Size => true,
            BalanceSetting::Even | BalanceSetting::Layers(_) => false,
        }
    }

    /// The balance by these settings, given what was measured if they [measure](Self::measures); without it,
    /// even.
    pub(crate) fn balance(&self, measured: Option<&Measured>) -> Balance {
        match (&self.balance, measured) {
            (BalanceSetting::Auto, Some(measured)) => Balance::Planned(measured.clone()),
            (BalanceSetting::Time, Some(measured)) => Balance::by_time(measured.clone()),
            (BalanceSetting::Size, Some(measured)) => Balance::by_size(measured.profile(0)),
            (BalanceSetting::Layers(layers), _) => Balance::Layers(layers.clone()),
            _ => Balance::Even,
        }
    }
}

/// Where to cut, as flags and configurations write it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum BalanceSetting {
    /// The fastest step that the planner foretells, if there are several stages.
    #[default]
    Auto,
    /// By the time of each layer, forward and backward.
    Time,
    /// By the memory of each layer.
    Size,
    /// By the number of layers.
    Even,
    /// By hand: the layers of each stage.
    Layers(Vec<usize>),
}

impl FromStr for BalanceSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => return Ok(Self::Auto),
            "time" => return Ok(Self::Time),
            "size" => return Ok(Self::Size),
            "even" => return Ok(Self::Even),
            _ => {}
        }
        let numbers: Result<_, _> = text.split(',').map(|part| part.trim().parse()).collect();
        numbers.map(Self::Layers).map_err(|_| {
            "write auto, time, size or even, or the layers of each stage, such as 5,4".to_owned()
        })
    }
}

impl TryFrom<String> for BalanceSetting {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<BalanceSetting> for String {
    fn from(balance: BalanceSetting) -> Self {
        match balance {
            BalanceSetting::Auto => "auto".to_owned(),
            BalanceSetting::Time => "time".to_owned(),
            BalanceSetting::Size => "size".to_owned(),
            BalanceSetting::Even => "even".to_owned(),
            BalanceSetting::Layers(layers) => {
                let layers: Vec<_> = layers.iter().map(usize::to_string).collect();
                layers.join(",")
            }
        }
    }
}

/// How a model is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(next_help_heading = "Training")]
pub struct TrainSettings {
    /// Times that the training set is gone through
    #[arg(long, required = false, value_name = "N")]
    pub epochs: usize,
    /// Samples in a mini-batch
    #[arg(long, required = false, value_name = "N")]
    pub batch_size: usize,
    /// Mini-batches whose gradients are put together for an update
    #[arg(long, required = false, value_name = "N")]
    pub accumulate: usize,
    /// Optimizer
    #[arg(long, required = false, value_enum)]
    pub optimizer: OptimizerSetting,
    /// Highest learning rate
    #[arg(long, required = false, value_name = "RATE")]
    pub lr: f64,
    /// Epochs over which the learning rate rises from zero
    #[arg(long, required = false, value_name = "N")]
    pub warmup_epochs: f64,
    /// How the learning rate falls after that
    #[arg(long, required = false, value_enum)]
    pub decay: DecaySetting,
    /// Factor of the exponential decay and of the staircase
    #[arg(long, required = false, value_name = "FACTOR")]
    pub decay_rate: f64,
    /// Epochs in which the learning rate falls by that factor
    #[arg(long, required = false, value_name = "N")]
    pub decay_epochs: f64,
    /// Momentum of SGD and RMSProp
    #[arg(long, required = false, value_name = "FACTOR")]
    pub momentum: f64,
    /// Number added to the denominators of Adam and RMSProp
    #[arg(long, required = false, value_name = "NUMBER")]
    pub epsilon: f64,
    /// Weight decay
    #[arg(long, required = false, value_name = "RATE")]
    pub weight_decay: f64,
    /// Share of the losses of auxiliary heads
    #[arg(long, required = false, value_name = "SHARE")]
    pub auxiliary_share: f64,
    /// Share of a label that is spread over all classes
    #[arg(long, required = false, value_name = "SHARE")]
    pub label_smoothing: f64,
    /// Largest norm of all gradients together; 0 for no limit
    #[arg(long, required = false, value_name = "NORM")]
    pub clip: f64,
    /// Layers that are not trained, from the first on, or `body` for all but the last: their parameters and statistics stay
    #[arg(long, required = false, value_name = "N|body")]
    pub freeze: FreezeSetting,
    /// Learning rate of each layer as a share of that of the layer after it: less than 1 changes the first layers least
    #[arg(long, required = false, value_name = "SHARE")]
    pub layer_decay: f64,
    /// Decay of a moving average of the weights, such as 0.9999, tested and saved beside them; 0 for none
    #[arg(long, required = false, value_name = "DECAY")]
    pub ema: f64,
    /// Seed of parameters, of the order of samples and of their augmentation
    #[arg(long, required = false, value_name = "N")]
    pub seed: u64,
    /// Mini-batches after which a checkpoint is made; 0 for one at the end of each epoch alone
    #[arg(long, required = false, value_name = "N")]
    pub save_every: usize,
    /// Checkpoints that are kept, the newest
    #[arg(long, required = false, value_name = "N")]
    pub keep_last: usize,
    /// Checkpoints that are kept besides, those that did best in the tests at the end of epochs
    #[arg(long, required = false, value_name = "N")]
    pub keep_best: usize,
    /// What is done when no checkpoint can be made, as on a full disk
    #[arg(long, required = false, value_enum)]
    pub on_save_error: SaveErrorSetting,
}

impl Default for TrainSettings {
    fn default() -> Self {
        Self {
            epochs: 8,
            batch_size: 64,
            accumulate: 1,
            optimizer: OptimizerSetting::AdamW,
            lr: 4e-3,
            warmup_epochs: 1.0,
            decay: DecaySetting::Cosine,
            decay_rate: 0.97,
            decay_epochs: 1.0,
            momentum: 0.9,
            epsilon: 1e-8,
            weight_decay: 1e-2,
            auxiliary_share: 0.4,
            label_smoothing: 0.1,
            clip: 10.0,
            freeze: FreezeSetting::default(),
            layer_decay: 1.0,
            ema: 0.0,
            seed: 0,
            save_every: 0,
            keep_last: 2,
            keep_best: 1,
            on_save_error: SaveErrorSetting::Continue,
        }
    }
}

impl TrainSettings {
    /// Looks at every number.
    ///
    /// ```
    /// use stovepipe_train::TrainSettings;
    ///
    /// assert!(TrainSettings::default().check().is_ok());
    /// let error = TrainSettings { lr: -1.0, ..Default::default() }.check().unwrap_err();
    /// assert_eq!(error.to_string(), "lr is -1, but must be greater than 0");
    /// ```
    ///
    /// # Errors
    ///
    /// If one is out of its range.
    pub fn check(&self) -> Result<(), TrainError> {
        positive("epochs", self.epochs)?;
        positive("batch-size", self.batch_size)?;
        positive("accumulate", self.accumulate)?;
        positive("keep-last", self.keep_last)?;
        let is_rate = |value: f64| value.is_finite() && value > 0.0;
        let is_share = |value: f64| (0.0..1.0).contains(&value);
        let at_least_zero = |value: f64| value.is_finite() && value >= 0.0;
        let share = "at least 0 and less than 1";
        let zero_or_more = "at least 0";
        let range = "greater than 0";
        number("lr", self.lr, is_rate, range)?;
        number("decay-epochs", self.decay_epochs, is_rate, range)?;
        number("epsilon", self.epsilon, at_least_zero, zero_or_more)?;
        number("ema", self.ema, is_share, share)?;
        number(
            "layer-decay",
            self.layer_decay,
            |decay| is_rate(decay) && decay <= 1.0,
            "greater than 0 and at most 1",
        )?;
        number(
            "decay-rate",
            self.decay_rate,
            |rate| is_rate(rate) && rate <= 1.0,
            "greater than 0 and at most 1",
        )?;
        number(
            "warmup-epochs",
            self.warmup_epochs,
            at_least_zero,
            zero_or_more,
        )?;
        number("momentum", self.momentum, is_share, share)?;
        number(
            "weight-decay",
            self.weight_decay,
            at_least_zero,
            zero_or_more,
        )?;
        number("label-smoothing", self.label_smoothing, is_share, share)?;
        let share = self.auxiliary_share;
        number("auxiliary-share", share, at_least_zero, zero_or_more)?;
        number("clip", self.clip, at_least_zero, zero_or_more)
    }
}

/// An optimizer by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub enum OptimizerSetting {
    /// RMSProp with momentum (α = 0.9), as AmoebaNet was trained
    RmsProp,
    /// Stochastic gradient descent with momentum
    Sgd,
    /// Adam, weight decay added to the gradient
    Adam,
    /// Adam, weight decay apart from the gradient
    AdamW,
}

/// What a training does that cannot make a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SaveErrorSetting {
    /// Goes on, says so, and tries again when the next one is due
    Continue,
    /// Ends
    Stop,
}

/// How a learning rate falls, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DecaySetting {
    /// It does not
    None,
    /// Half a cosine down to zero
    Cosine,
    /// By a factor each epoch, or so many of them, a little with every update
    Exponential,
    /// By that factor at once, when the epochs are over
    Staircase,
}

pub(crate) fn positive(setting: &'static str, value: usize) -> Result<(), TrainError> {
    number(setting, value, |value| value > 0, "at least 1")
}

fn bounded(
    setting: &'static str,
    value: usize,
    most: usize,
    range: &'static str,
) -> Result<(), TrainError> {
    number(setting, value, |value| (1..=most).contains(&value), range)
}

fn number<N: Copy + std::fmt::Display>(
    setting: &'static str,
    value: N,
    is_valid: impl Fn(N) -> bool,
    range: &'static str,
) -> Result<(), TrainError> {
    match is_valid(value) {
        true => Ok(()),
        false => Err(TrainError::Setting {
            setting,
            value: value.to_string(),
            range,
        }),
    }
}
