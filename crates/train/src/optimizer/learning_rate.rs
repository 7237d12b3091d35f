//! The learning rate as a function of time.

use crate::settings::{DecaySetting, TrainSettings};

/// The learning rate of every update of a run: linear warm-up, then decay.
///
/// It depends on the number of the update only, so that resuming needs no state.
#[derive(Clone, Debug, PartialEq)]
pub struct LearningRate {
    highest: f64,
    warm_up: f64,
    /// Steps until stages with late gradients have the full rate.
    staleness_warm_up: f64,
    steps: f64,
    /// Steps in which the rate falls by `decay_rate`.
    steps_per_decay: f64,
    decay: DecaySetting,
    decay_rate: f64,
}

impl LearningRate {
    /// The learning rate of a run with `steps_per_epoch` updates in each epoch. With `max_steps`
    /// mini-batches, the run may be over before its epochs are.
    #[must_use]
    pub fn new(settings: &TrainSettings, steps_per_epoch: usize) -> Self {
        let steps_per_epoch = steps_per_epoch as f64;
        let most = match settings.max_steps {
            0 => f64::INFINITY,
            most => most as f64 / settings.accumulate as f64,
        };
        Self {
            highest: settings.lr,
            warm_up: settings.warmup_epochs * steps_per_epoch,
            staleness_warm_up: settings.staleness_warmup_epochs * steps_per_epoch,
            steps: (settings.epochs as f64 * steps_per_epoch).min(most),
            steps_per_decay: settings.decay_epochs * steps_per_epoch,
            decay: settings.decay,
            decay_rate: settings.decay_rate,
        }
    }

    /// The share of the run that is over at an update, counted from 0.
    pub(crate) fn progress(&self, step: usize) -> f64 {
        (step as f64 / self.steps.max(1.0)).min(1.0)
    }

    /// The learning rate of an update, counted from 0.
    ///
    /// ```
    /// use stovepipe_train::{TrainSettings, optimizer::LearningRate};
    ///
    /// let settings = TrainSettings { lr: 1.0, warmup_epochs: 1.0, epochs: 3, ..Default::default() };
    /// let rate = LearningRate::new(&settings, 10); // 10 steps up, 20 down a cosine
    /// assert_eq!(rate.at(4), 0.5);
    /// assert_eq!(rate.at(10), 1.0);
    /// assert!((rate.at(20) - 0.5).abs() < 1e-12);
    /// assert!(rate.at(29) < 0.01);
    /// let shorter = TrainSettings { max_steps: 20, ..settings }; // 10 steps up, 10 down
    /// assert!((LearningRate::new(&shorter, 10).at(15) - 0.5).abs() < 1e-12);
    /// ```
    #[must_use]
    pub fn at(&self, step: usize) -> f64 {
        let step = step as f64;
        if step < self.warm_up {
            return self.highest * ((step + 1.0) / self.warm_up).min(1.0);
        }
        let since = step - self.warm_up;
        let factor = match self.decay {
            DecaySetting::None => 1.0,
            DecaySetting::Cosine => {
                let progress = (since / (self.steps - self.warm_up).max(1.0)).min(1.0);
                0.5 * (1.0 + (std::f64::consts::PI * progress).cos())
            }
            DecaySetting::Exponential => self.decay_rate.powf(since / self.steps_per_decay),
            DecaySetting::Staircase => {
                let falls = (since / self.steps_per_decay).floor();
                self.decay_rate.powf(falls)
            }
        };
        self.highest * factor
    }

    /// The learning rate of an update for a stage whose gradients are late by `staleness` updates: divided by
    /// `staleness`^p, where p falls from 1 to 0 over the first `staleness_warmup_epochs`.
    ///
    /// Yang et al., *PipeMare: Asynchronous Pipeline Parallel DNN Training*, MLSys 2021, technique 1.
    ///
    /// ```
    /// use stovepipe_train::{TrainSettings, optimizer::LearningRate};
    ///
    /// let mut settings = TrainSettings { lr: 1.0, warmup_epochs: 0.0, ..Default::default() };
    /// settings.decay = stovepipe_train::settings::DecaySetting::None;
    /// settings.staleness_warmup_epochs = 1.0;
    /// let rate = LearningRate::new(&settings, 10);
    /// assert_eq!([0, 5, 10].map(|step| rate.of_stage(step, 4)), [0.25, 0.5, 1.0]);
    /// assert_eq!([0, 1].map(|staleness| rate.of_stage(0, staleness)), [1.0, 1.0]);
    /// ```
    #[must_use]
    pub fn of_stage(&self, step: usize, staleness: usize) -> f64 {
        let power = if self.staleness_warm_up > 0.0 {
            1.0 - (step as f64 / self.staleness_warm_up).min(1.0)
        } else {
            0.0
        };
        self.at(step) / (staleness.max(1) as f64).powf(power)
    }
}
