//! Sums over samples, from which metrics are computed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Sums over the samples that a model has seen: losses, weights and the objective's
/// [scores](stovepipe_pipeline::Objective::scores), by the names that the task gives them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Number of samples.
    pub samples: usize,
    /// Sum of the weights: samples, or what else the objective counts, such as tokens or pixels.
    pub weight: f64,
    #[serde(flatten)]
    scores: BTreeMap<String, f64>,
    /// Sum of the weighted losses.
    pub loss: f64,
}

impl Totals {
    /// No samples, with scores of these names.
    pub(crate) fn zero(names: &[String]) -> Self {
        Self {
            scores: names.iter().map(|name| (name.clone(), 0.0)).collect(),
            ..Self::default()
        }
    }

    /// The sum of a score; NaN if the task has none of this name.
    #[must_use]
    pub fn score(&self, name: &str) -> f64 {
        self.scores.get(name).copied().unwrap_or(f64::NAN)
    }

    /// The mean of a score: its sum divided by the weight.
    #[must_use]
    pub fn mean(&self, name: &str) -> f64 {
        self.by_weight(self.score(name))
    }

    /// The mean loss.
    #[must_use]
    pub fn mean_loss(&self) -> f64 {
        self.by_weight(self.loss)
    }

    fn by_weight(&self, sum: f64) -> f64 {
        if self.weight > 0.0 {
            sum / self.weight
        } else {
            0.0
        }
    }

    /// Adds samples with their weight, their mean loss, and the sums of their scores.
    pub(crate) fn add<'a>(
        &mut self,
        samples: usize,
        (loss, weight): (f64, f64),
        scores: impl IntoIterator<Item = (&'a String, f64)>,
    ) {
        self.samples += samples;
        self.weight += weight;
        self.loss += loss * weight;
        for (name, score) in scores {
            *self.scores.entry(name.clone()).or_default() += score;
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        let scores = other.scores.iter().map(|(name, score)| (name, *score));
        self.add(other.samples, (0.0, other.weight), scores);
        self.loss += other.loss;
    }

    pub(crate) fn has_scores(&self, names: &[String]) -> bool {
        self.scores.len() == names.len() && names.iter().all(|name| self.scores.contains_key(name))
    }
}
