//! The state of a training without its tensors: `standing.toml`.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stovepipe_pipeline::LossScaler;

use crate::{
    data::{Fingerprint, changes},
    error::TrainError,
    processes::Processes,
    settings::{OptimizerSetting, TrainSettings},
    task::{Metrics, Totals},
};

/// 2: random numbers of layers are Threefry's. Those of version 1 cannot be drawn again.
const VERSION: u32 = 2;

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
    /// The loss of the first mini-batch, and the lowest of an epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) first_loss: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lowest_loss: Option<f64>,
    /// The best test results at the end of an epoch so far, and the tests since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) best: Option<Metrics>,
    #[serde(default)]
    pub(crate) tests_since_best: usize,
    /// Test results, if this is the end of an epoch that was tested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) test: Option<Metrics>,
    /// What the data were, if that is known.
    #[serde(default, skip_serializing_if = "Fingerprint::is_empty")]
    pub(crate) data: Fingerprint,
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

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Sums {
    pub(crate) steps: usize,
    /// Updates that were skipped because gradients were not finite.
    #[serde(default)]
    pub(crate) skipped: usize,
    pub(crate) bubbles: f64,
    /// Whether these are [in host time](stovepipe_schedule::Timeline::host_time).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) host_time: bool,
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
            first_loss: None,
            lowest_loss: None,
            best: None,
            tests_since_best: 0,
            test: None,
            data: Fingerprint::new(),
            under_way: Sums::of(zero),
            over: Sums::of(zero),
        }
    }

    /// The limit that a training of so many steps has reached, if any: the setting's name and value.
    pub(crate) fn limit(
        &self,
        steps: u64,
        settings: &TrainSettings,
    ) -> Option<(&'static str, usize)> {
        let limits = [
            (self.epoch >= settings.epochs).then_some(("epochs", settings.epochs)),
            reached("max_steps", steps, settings.max_steps),
            reached("patience", self.tests_since_best as u64, settings.patience),
        ];
        limits.into_iter().flatten().next()
    }

    /// The state that the first process has read, if there is one.
    pub(crate) fn of_first(
        own: Option<Self>,
        processes: &Processes,
    ) -> Result<Option<Self>, TrainError> {
        // TOML keeps all digits, and may leave fields out.
        let text = own.as_ref().map(toml::to_string).transpose();
        let text = text.map_err(|error| TrainError::format(Path::new(""), error))?;
        let text: Option<String> = processes.of_first(text)?;
        text.map(|text| Self::parse(&text, PathBuf::new()))
            .transpose()
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
        let own = VERSION;
        match toml::from_str(text) {
            Ok(Versioned { version }) if version != own => {
                Err(TrainError::CheckpointVersion { version, own })
            }
            _ => toml::from_str(text).map_err(configuration),
        }
    }

    /// The epochs and mini-batches after which a checkpoint of this name was made.
    pub(super) fn place(name: &str) -> Option<(u64, u64)> {
        let (epoch, batch) = name.strip_prefix("epoch-")?.split_once("-batch-")?;
        Some((epoch.parse().ok()?, batch.parse().ok()?))
    }

    pub(crate) fn name(&self) -> String {
        format!("epoch-{:04}-batch-{:07}", self.epoch, self.batch)
    }

    /// Checks that a training with these settings can resume from here.
    pub(crate) fn check(&self, settings: &TrainSettings) -> Result<(), TrainError> {
        let now = Fixed::of(settings).shown();
        for ((setting, then), (_, now)) in self.of.shown().into_iter().zip(now) {
            if then != now {
                return Err(TrainError::OtherSetting { setting, then, now });
            }
        }
        Ok(())
    }

    /// Checks that the data are those from before.
    pub(crate) fn check_data(&self, now: &Fingerprint) -> Result<(), TrainError> {
        changes(&self.data, now).map_or(Ok(()), |changes| Err(TrainError::OtherData(changes)))
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
    pub(crate) fn of(zero: &Totals) -> Self {
        Self {
            scores: zero.clone(),
            ..Self::default()
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.skipped += other.skipped;
        self.bubbles += other.bubbles;
        self.host_time |= other.host_time;
        self.seconds += other.seconds;
        self.scores.merge(&other.scores);
    }

    pub(crate) fn samples_per_second(&self) -> f64 {
        self.scores.samples as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    pub(crate) fn bubble(&self) -> f64 {
        self.bubbles / self.steps.max(1) as f64
    }
}

/// A limit; 0 is none.
fn reached(name: &'static str, count: u64, limit: usize) -> Option<(&'static str, usize)> {
    (limit > 0 && count >= limit as u64).then_some((name, limit))
}
