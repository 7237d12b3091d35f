//! A pipeline and its predicted cost.

use serde::Serialize;
use stovepipe_schedule::{Recompute, Rule};

use crate::MemoryUse;

/// A pipeline that the planner has considered.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Candidate {
    /// The schedule.
    pub schedule: Rule,
    /// Stages of each worker.
    pub chunks: usize,
    /// Micro-batches of a mini-batch, which has the samples of an update.
    pub micro_batches: usize,
    /// Replicas of each stage.
    pub replicas: Vec<usize>,
    /// If they are replicas of the whole pipeline: their shares of the micro-batches. Then the workers of
    /// the first replica come first. Otherwise empty.
    pub shares: Vec<usize>,
    /// The device of each worker, by its index in the machine.
    pub devices: Vec<usize>,
    /// The predicted cost.
    #[serde(flatten)]
    pub forecast: Forecast,
}

impl Candidate {
    /// The number of workers.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.devices.len()
    }
}

/// The predicted cost of a cut.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Forecast {
    /// Layers of each stage.
    pub balance: Vec<usize>,
    /// What is recomputed.
    pub recompute: Recompute,
    /// Seconds of a step, from the first pass of all workers to the last, and of what an update moves that is offloaded; under an asynchronous schedule, of
    /// an update, on average over a few.
    pub step_time: f64,
    /// The average idle share of the workers.
    pub bubble: f64,
    /// For each worker, the busy share of its time.
    pub utilisation: Vec<f64>,
    /// The peak memory of each worker.
    pub memory: Vec<MemoryUse>,
    /// Seconds of recomputed passes, on the worker with most of them.
    pub recomputed: f64,
}
