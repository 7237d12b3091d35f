//! The state of a training without its tensors: `standing.toml`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use stovepipe_pipeline::LossScaler;

use crate::{
    error::TrainError,
    settings::{OptimizerSetting, TrainSettings},
    task::{Metrics, Totals},
};

/// The version of the checkpoint format.
const VERSION: u32 = 1;

/// The state of a training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct TrainerState {
    pub(crate) version: u32,
    /// Epochs that are over, including their tests.
    pub(crate) epoch: usize,
    /// Mini-batches of the current epoch.
    pub(crate) batch: usize,
    /// Updates of the current epoch.
    pub(crate) updates: usize,
    /// Mini-batches since the training started, on which random numbers depend.
    pub(crate) steps: u64,
    /// Updates of the averaged weights.
    pub(crate) averaged: u64,
    /// Mini-batches whose gradients are accumulated.
    pub(crate) waiting: usize,
    /// Their weight.
    pub(crate) waiting_weight: f64,
    /// Whether some of their gradients were not finite.
    #[serde(default)]
    pub(crate) spoiled: bool,
    /// Samples of the training set, which must stay the same.
    pub(crate) samples: usize,
    /// Duration of the training, including tests.
    pub(crate) seconds: f64,
    /// Mean training loss of the last complete epoch.
    pub(crate) train_loss: f64,
    pub(crate) of: Fixed,
    /// In f16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) loss_scaler: Option<LossScaler>,
    /// Test results, if this is the end of an epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) test: Option<Metrics>,
    /// Sums of the current epoch.
    pub(crate) under_way: Sums,
    /// Sums of the epochs that are over.
    pub(crate) over: Sums,
}

/// The settings that must stay the same to resume.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Fixed {
    seed: u64,
    batch_size: usize,
    accumulate: usize,
    optimizer: OptimizerSetting,
    averages: bool,
}

/// Sums over mini-batches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Sums {
    pub(crate) steps: usize,
    /// Updates that were skipped because gradients were not finite.
    #[serde(default)]
    pub(crate) skipped: usize,
    pub(crate) bubbles: f64,
    pub(crate) seconds: f64,
    pub(crate) scores: Totals,
}

impl TrainerState {
    /// The state at the start of a training; `zero` are the task's sums of no samples.
    pub(crate) fn begin(settings: &TrainSettings, zero: &Totals) -> Self {
        Self {
            version: VERSION,
            epoch: 0,
            batch: 0,
            updates: 0,
            steps: 0,
            averaged: 0,
            waiting: 0,
            waiting_weight: 0.0,
            spoiled: false,
            samples: 0,
            seconds: 0.0,
            train_loss: 0.0,
            of: Fixed::of(settings),
            loss_scaler: None,
            test: None,
            under_way: Sums::of(zero),
            over: Sums::of(zero),
        }
    }

    /// Reads a file. Checks the version first: other versions may have other keys.
    pub(super) fn parse(text: &str, path: PathBuf) -> Result<Self, TrainError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let configuration = |source| TrainError::Configuration {
            path,
            source: Box::new(source),
        };
        match toml::from_str(text) {
            Ok(Versioned { version }) if version != VERSION => Err(TrainError::CheckpointVersion {
                version,
                own: VERSION,
            }),
            _ => toml::from_str(text).map_err(configuration),
        }
    }

    /// The epochs and mini-batches after which a checkpoint of this name was made.
    pub(super) fn place(name: &str) -> Option<(u64, u64)> {
        let (epoch, batch) = name.strip_prefix("epoch-")?.split_once("-batch-")?;
        Some((epoch.parse().ok()?, batch.parse().ok()?))
    }

    /// The name of a checkpoint of this state.
    pub(crate) fn name(&self) -> String {
        format!("epoch-{:04}-batch-{:07}", self.epoch, self.batch)
    }

    /// Checks that a training with these settings can resume from here.
    pub(crate) fn check(&self, settings: &TrainSettings) -> Result<(), TrainError> {
        let pairs = self.of.shown().into_iter().zip(Fixed::of(settings).shown());
        let other = pairs.into_iter().find(|(then, now)| then != now);
        match other {
            Some(((setting, then), (_, now))) => {
                Err(TrainError::OtherSetting { setting, then, now })
            }
            None => Ok(()),
        }
    }
}

impl Fixed {
    fn of(settings: &TrainSettings) -> Self {
        Self {
            seed: settings.seed,
            batch_size: settings.batch_size,
            accumulate: settings.accumulate,
            optimizer: settings.optimizer,
            averages: settings.ema > 0.0,
        }
    }

    fn shown(&self) -> [(&'static str, String); 5] {
        let ema = if self.averages { "more than 0" } else { "0" };
        [
            ("seed", self.seed.to_string()),
            ("batch-size", self.batch_size.to_string()),
            ("accumulate", self.accumulate.to_string()),
            ("optimizer", format!("{:?}", self.optimizer).to_lowercase()),
            ("ema", ema.to_owned()),
        ]
    }
}

impl Sums {
    /// Sums of no mini-batches.
    pub(crate) fn of(zero: &Totals) -> Self {
        Self {
            scores: zero.clone(),
            ..Self::default()
        }
    }

    /// Adds an epoch's sums.
    pub(crate) fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.skipped += other.skipped;
        self.bubbles += other.bubbles;
        self.seconds += other.seconds;
        self.scores.merge(&other.scores);
    }

    pub(crate) fn samples_per_second(&self) -> f64 {
        self.scores.samples as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// The mean bubble of a step.
    pub(crate) fn bubble(&self) -> f64 {
        self.bubbles / self.steps.max(1) as f64
    }
}
