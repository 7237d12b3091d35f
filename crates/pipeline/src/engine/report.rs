//! What all processes get of a run.

use std::{cmp::Reverse, collections::HashMap};

use serde::{Deserialize, Serialize};
use stovepipe_schedule::Span;

use crate::engine::pass_sums::PassSum;

/// What stages and workers report.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Reports {
    /// One for each stage; until they are joined, one for each process that has it.
    pub(crate) stages: Vec<(usize, StageReport)>,
    pub(crate) spans: Vec<(usize, Vec<Span>)>,
    pub(crate) passes: Vec<PassSum>,
}

impl Reports {
    /// Makes one report of those of each stage, in the order of stages.
    pub(crate) fn join_replicas(&mut self) {
        self.stages.sort_by_key(|(stage, _)| *stage);
        let all = std::mem::take(&mut self.stages);
        for (stage, report) in all {
            match self.stages.last_mut() {
                Some((last, joined)) if *last == stage => joined.join(report),
                _ => self.stages.push((stage, report)),
            }
        }
    }
}

/// The results of a stage that all processes get. Maps are by micro-batch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StageReport {
    /// The main loss, on the last stage.
    pub(crate) losses: HashMap<usize, f64>,
    /// The sum of this stage's auxiliary losses.
    pub(crate) auxiliary: HashMap<usize, f64>,
    pub(crate) scores: HashMap<usize, Vec<f64>>,
    pub(crate) held: Held,
    /// The first mini-batch with a gradient that is NaN or infinite, and the last layer that has one there,
    /// by its index in the stage.
    pub(crate) not_finite: Option<(usize, usize)>,
    /// The last layer, by its index in the stage, with running statistics that are NaN or infinite, where they
    /// are checked: in f16.
    pub(crate) overflowed: Option<usize>,
}

impl StageReport {
    /// Adds what another replica reports of other micro-batches.
    pub(crate) fn join(&mut self, other: Self) {
        self.losses.extend(other.losses);
        self.auxiliary.extend(other.auxiliary);
        self.scores.extend(other.scores);
        self.held = self.held.max(other.held);
        self.overflowed = self.overflowed.max(other.overflowed);
        let both = self.not_finite.into_iter().chain(other.not_finite);
        self.not_finite = both.min_by_key(|&(mini_batch, layer)| (mini_batch, Reverse(layer)));
    }
}

/// The most that a stage kept at once, in micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Inputs kept for a recomputation.
    pub inputs: usize,
    /// Tapes: all activations of a micro-batch.
    pub activations: usize,
    /// What deferred weight gradients need.
    pub weight_contexts: usize,
    /// Versions of the weights: 1, except in [windows](crate::Pipeline::train_window).
    pub weight_versions: usize,
}

impl Held {
    /// The larger of each.
    fn max(self, other: Self) -> Self {
        Self {
            inputs: self.inputs.max(other.inputs),
            activations: self.activations.max(other.activations),
            weight_contexts: self.weight_contexts.max(other.weight_contexts),
            weight_versions: self.weight_versions.max(other.weight_versions),
        }
    }
}
