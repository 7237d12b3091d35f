//! How a model is trained.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::{
    check::{ABOVE_ZERO, AT_LEAST_ONE, BELOW_ONE, UP_TO_ONE, ZERO_OR_MORE, check},
    freeze::FreezeSetting,
    offload::{HOST, OffloadSetting},
    rate::RateSetting,
};
use crate::error::TrainError;

/// How a model is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(next_help_heading = "Training")]
pub struct TrainSettings {
    /// Passes over the training set
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub epochs: usize,
    /// End after this many mini-batches in all, even within an epoch; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub max_steps: usize,
    /// Epochs between two tests; the last epoch is always tested
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub test_every: usize,
    /// End after this many tests without a better one; 0 for no such end
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub patience: usize,
    /// Samples in a mini-batch
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub batch_size: usize,
    /// Mini-batches whose gradients are accumulated for an update
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub accumulate: usize,
    /// Mini-batches of a window, for the schedule `pipedream`: checkpoints, tests and the end of a run
    /// wait for its end [default: 32, or an epoch if that is shorter]
    #[arg(long, value_name = "N")]
    pub window: Option<usize>,
    /// Optimizer
    #[arg(long, value_enum, default_value_t = OptimizerSetting::AdamW)]
    pub optimizer: OptimizerSetting,
    /// Highest learning rate
    #[arg(long, value_name = "RATE", default_value_t = 4e-3)]
    pub lr: f64,
    /// Epochs over which the learning rate rises from zero
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    pub warmup_epochs: f64,
    /// Epochs over which stages with late gradients come to the full learning rate, with the schedule
    /// `pipedream`; 0 for no such warm-up
    #[arg(long, value_name = "N", default_value_t = 0.0)]
    pub staleness_warmup_epochs: f64,
    /// How the learning rate falls after the warm-up
    #[arg(long, value_enum, default_value_t = DecaySetting::Cosine)]
    pub decay: DecaySetting,
    /// Factor of the exponential decay and the staircase
    #[arg(long, value_name = "FACTOR", default_value_t = 0.97)]
    pub decay_rate: f64,
    /// Epochs in which the learning rate falls by that factor
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    pub decay_epochs: f64,
    /// Momentum of SGD and RMSProp
    #[arg(long, value_name = "FACTOR", default_value_t = 0.9)]
    pub momentum: f64,
    /// Number added to the denominators of Adam and RMSProp
    #[arg(long, value_name = "NUMBER", default_value_t = 1e-8)]
    pub epsilon: f64,
    /// How much the mean of squared gradients keeps in an update of Adam (β₂)
    #[arg(long, value_name = "SHARE", default_value_t = 0.999)]
    pub beta2: f64,
    /// Weight decay
    #[arg(long, value_name = "RATE", default_value_t = 1e-2)]
    pub weight_decay: f64,
    /// Which parameters weight decay is for
    #[arg(long, value_enum, default_value_t = DecayedSetting::All)]
    pub weight_decay_of: DecayedSetting,
    /// Weight of the losses of auxiliary heads
    #[arg(long, value_name = "SHARE", default_value_t = 0.4)]
    pub auxiliary_share: f64,
    /// Share of each label that is spread over all classes
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub label_smoothing: f64,
    /// Clip the norm of all gradients to this; 0 for no clipping
    #[arg(long, value_name = "NORM", default_value_t = 10.0)]
    pub clip: f64,
    /// Updates between two checks that replicas in several processes are still equal; 0 for none
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub check_replicas: usize,
    /// Number of layers, from the first on, that are not trained, or `body` for all but the last
    #[arg(long, value_name = "N|body", default_value_t = FreezeSetting::Layers(0))]
    pub freeze: FreezeSetting,
    /// Learning rate of each layer as a share of the next layer's: below 1, first layers change least
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub layer_decay: f64,
    /// Learning rates of parameters by their names, as shares of their layer's: `head.*=10`, or `*.bias=0`;
    /// of several that fit, the last holds
    #[arg(long, value_name = "NAMES=SHARE", value_delimiter = ',')]
    pub lr_of: Vec<RateSetting>,
    /// Decay of a moving average of the weights, such as 0.9999, tested and saved too; 0 for none
    #[arg(long, value_name = "DECAY", default_value_t = 0.0)]
    pub ema: f64,
    /// What lies off its device: optimizer, for what the optimizer keeps of each parameter, gradients and averages; or
    /// nothing
    #[arg(long, value_enum, default_value_t = OffloadSetting::None)]
    pub offload: OffloadSetting,
    /// Where that lies: host, the memory of the host, for GPUs; or a folder, in files that nobody else sees
    #[arg(long, value_name = "host|DIR", default_value = HOST)]
    pub offload_to: PathBuf,
    /// Sums of bits to write for each mini-batch, to checksums.jsonl: `stovepipe compare` uses them to find
    /// where two runs begin to differ [without a value: steps]
    #[arg(long, value_enum, default_value_t = ChecksumSetting::None, num_args = 0..=1,
          default_missing_value = "steps")]
    pub checksums: ChecksumSetting,
    /// Seed of parameters, of the order of samples and of augmentation
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Micro-batches of training images from which batch norms get exact statistics before each test; 0
    /// to keep moving averages, which lag behind
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub recalibrate: usize,
    /// Mini-batches between two checkpoints; 0 for one at the end of each epoch only
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub save_every: usize,
    /// Number of newest checkpoints to keep
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub keep_last: usize,
    /// Number of best checkpoints to keep too, by the test at the end of each epoch
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub keep_best: usize,
    /// What to do if a checkpoint cannot be written, as on a full disk
    #[arg(long, value_enum, default_value_t = SaveErrorSetting::Continue)]
    pub on_save_error: SaveErrorSetting,
}

impl Default for TrainSettings {
    fn default() -> Self {
        super::defaults()
    }
}

impl TrainSettings {
    /// Checks all settings.
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
    /// If a setting is out of its range.
    pub fn check(&self) -> Result<(), TrainError> {
        check([
            ("epochs", self.epochs, AT_LEAST_ONE),
            ("batch-size", self.batch_size, AT_LEAST_ONE),
            ("accumulate", self.accumulate, AT_LEAST_ONE),
            ("test-every", self.test_every, AT_LEAST_ONE),
            ("keep-last", self.keep_last, AT_LEAST_ONE),
            ("window", self.window.unwrap_or(1), AT_LEAST_ONE),
        ])?;
        check((self.lr_of.iter()).map(|own| ("lr-of", own.share, ZERO_OR_MORE)))?;
        check([
            ("lr", self.lr, ABOVE_ZERO),
            ("decay-epochs", self.decay_epochs, ABOVE_ZERO),
            ("epsilon", self.epsilon, ZERO_OR_MORE),
            ("beta2", self.beta2, BELOW_ONE),
            ("ema", self.ema, BELOW_ONE),
            ("layer-decay", self.layer_decay, UP_TO_ONE),
            ("decay-rate", self.decay_rate, UP_TO_ONE),
            ("warmup-epochs", self.warmup_epochs, ZERO_OR_MORE),
            (
                "staleness-warmup-epochs",
                self.staleness_warmup_epochs,
                ZERO_OR_MORE,
            ),
            ("momentum", self.momentum, BELOW_ONE),
            ("weight-decay", self.weight_decay, ZERO_OR_MORE),
            ("label-smoothing", self.label_smoothing, BELOW_ONE),
            ("auxiliary-share", self.auxiliary_share, ZERO_OR_MORE),
            ("clip", self.clip, ZERO_OR_MORE),
        ])
    }

    /// Checks that an epoch of so many mini-batches can be trained in windows, if the schedule is
    /// asynchronous.
    ///
    /// ```
    /// use stovepipe_train::TrainSettings;
    ///
    /// let settings = TrainSettings { window: Some(20), ..Default::default() };
    /// assert!(settings.check_windows(true, 20).is_ok());
    /// let error = settings.check_windows(true, 19).unwrap_err();
    /// assert_eq!(error.to_string(), "window is 20, but an epoch has 19 mini-batches");
    /// ```
    ///
    /// # Errors
    ///
    /// If a setting needs a synchronous schedule, or an asynchronous one.
    pub fn check_windows(&self, is_asynchronous: bool, batches: usize) -> Result<(), TrainError> {
        match (is_asynchronous, self.window) {
            (false, Some(_)) => Err(TrainError::OnlyAsynchronous("--window")),
            (false, _) if self.staleness_warmup_epochs > 0.0 => {
                Err(TrainError::OnlyAsynchronous("--staleness-warmup-epochs"))
            }
            (true, _) if self.accumulate > 1 => Err(TrainError::OnlySynchronous("--accumulate")),
            (true, _) if self.checksums == ChecksumSetting::Passes => {
                Err(TrainError::OnlySynchronous("--checksums passes"))
            }
            (true, _) if self.ema > 0.0 => Err(TrainError::OnlySynchronous("--ema")),
            (true, _) if self.offload != OffloadSetting::None => {
                Err(TrainError::OnlySynchronous("--offload"))
            }
            (true, Some(window)) if window > batches => {
                Err(TrainError::LongWindow { window, batches })
            }
            _ => Ok(()),
        }
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
    /// Adam, with weight decay added to the gradient
    Adam,
    /// Adam with decoupled weight decay
    AdamW,
}

/// Which sums of bits are written for each mini-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ChecksumSetting {
    /// None
    None,
    /// The loss, and the gradients and parameters of each layer that is updated
    Steps,
    /// Also what each layer computes for each micro-batch, which takes longer
    Passes,
}

/// Which parameters weight decay is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DecayedSetting {
    /// All that are trained
    All,
    /// Those with two dimensions or more: not biases, nor what scales and shifts norms
    Matrices,
}

/// What training does if a checkpoint cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SaveErrorSetting {
    /// Warns, continues, and tries again when the next checkpoint is due
    Continue,
    /// Stops with an error
    Stop,
}

/// How the learning rate falls, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DecaySetting {
    /// Stays constant
    None,
    /// Half a cosine down to zero
    Cosine,
    /// By a factor every `decay-epochs`, smoothly
    Exponential,
    /// By the same factor at once, every `decay-epochs`
    Staircase,
}
