//! Where a training stands, but for its tensors: `standing.toml`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use stovepipe_pipeline::LossScaler;

use crate::{
    error::TrainError,
    scores::{Metrics, Scores},
    settings::{OptimizerSetting, TrainSettings},
};

/// Of the files of a checkpoint as they are written here.
const VERSION: u32 = 1;

/// Where a training stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct TrainerState {
    pub(crate) version: u32,
    /// Epochs that are over, their tests included.
    pub(crate) epoch: usize,
    /// Mini-batches of the epoch under way.
    pub(crate) batch: usize,
    /// Updates in the epoch under way.
    pub(crate) updates: usize,
    /// Mini-batches since the training began, on which random numbers depend.
    pub(crate) steps: u64,
    /// Updates that averaged weights have seen.
    pub(crate) averaged: u64,
    /// Mini-batches whose gradients wait for an update.
    pub(crate) waiting: usize,
    /// What these count by.
    pub(crate) waiting_weight: f64,
    /// Whether one of them had gradients that were not finite.
    #[serde(default)]
    pub(crate) spoiled: bool,
    /// Samples of the training set, which is the same as long as the training goes on.
    pub(crate) samples: usize,
    /// That the training has taken, tests included.
    pub(crate) seconds: f64,
    /// Mean training loss of the last epoch that is over.
    pub(crate) train_loss: f64,
    pub(crate) of: Fixed,
    /// What scales the loss, in f16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) loss_scaler: Option<LossScaler>,
    /// What the test set said at the end of an epoch, if one ends here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) test: Option<Metrics>,
    /// Of the epoch under way.
    pub(crate) under_way: Sums,
    /// Of the epochs that are over.
    pub(crate) over: Sums,
}

/// The settings with which alone a training goes on as it was.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Fixed {
    seed: u64,
    batch_size: usize,
    accumulate: usize,
    optimizer: OptimizerSetting,
    averages: bool,
}

/// What is added up over mini-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Sums {
    pub(crate) steps: usize,
    /// Updates that were skipped because gradients were not finite.
    #[serde(default)]
    pub(crate) skipped: usize,
    pub(crate) bubbles: f64,
    pub(crate) seconds: f64,
    pub(crate) scores: Scores,
}

impl TrainerState {
    /// Where a training begins.
    pub(crate) fn begin(settings: &TrainSettings) -> Self {
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
            of: Fixed {
                seed: settings.seed,
                batch_size: settings.batch_size,
                accumulate: settings.accumulate,
                optimizer: settings.optimizer,
                averages: settings.ema > 0.0,
            },
            loss_scaler: None,
            test: None,
            under_way: Sums::default(),
            over: Sums::default(),
        }
    }

    /// Reads a file, whose version says whether the rest can be understood.
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

    /// Where a checkpoint of such a name was made: after so many epochs and mini-batches.
    pub(super) fn place(name: &str) -> Option<(u64, u64)> {
        let (epoch, batch) = name.strip_prefix("epoch-")?.split_once("-batch-")?;
        Some((epoch.parse().ok()?, batch.parse().ok()?))
    }

    /// The name of a checkpoint that is made here.
    pub(crate) fn name(&self) -> String {
        format!("epoch-{:04}-batch-{:07}", self.epoch, self.batch)
    }

    /// Refuses to go on with settings that would make another training of it.
    pub(crate) fn check(&self, settings: &TrainSettings) -> Result<(), TrainError> {
        let (then, now) = (&self.of, &Self::begin(settings).of);
        let shown = |of: &Fixed| {
            [
                ("seed", of.seed.to_string()),
                ("batch-size", of.batch_size.to_string()),
                ("accumulate", of.accumulate.to_string()),
                ("optimizer", format!("{:?}", of.optimizer).to_lowercase()),
                (
                    "ema",
                    if of.averages { "more than 0" } else { "0" }.to_owned(),
                ),
            ]
        };
        let pairs = shown(then).into_iter().zip(shown(now));
        let other = pairs.into_iter().find(|(then, now)| then != now);
        match other {
            Some(((setting, then), (_, now))) => {
                Err(TrainError::OtherSetting { setting, then, now })
            }
            None => Ok(()),
        }
    }
}

impl Sums {
    /// Adds those of an epoch.
    pub(crate) fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.skipped += other.skipped;
        self.bubbles += other.bubbles;
        self.seconds += other.seconds;
        self.scores.merge(&other.scores);
    }
}
