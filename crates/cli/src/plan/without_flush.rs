//! What a training without a flush would gain, and what it gives up.

use serde_json::{Value, json};
use stovepipe::{
    plan::{Candidate, MemoryUse, Plan},
    schedule::{RuleOptions, Scheduler, WeightPolicy, format_bytes},
};

use crate::error::CliError;

/// An asynchronous plan next to a synchronous one.
pub struct WithoutFlush {
    /// Samples a second, relative to the synchronous plan.
    gain: Option<f64>,
    /// The rule of the synchronous plan.
    than: Option<&'static str>,
    /// By how many updates the gradients of each stage are late.
    staleness: Vec<usize>,
    /// Versions of the weights that each worker keeps.
    versions: Vec<usize>,
    /// Bytes of the worker that needs most, in both plans.
    memory: (u64, Option<u64>),
}

impl WithoutFlush {
    /// `usual` is the fastest plan that gives the result of one device, if one fits.
    pub fn new(best: &Candidate, usual: Option<&Plan>) -> Result<Self, CliError> {
        let scheduler = best.schedule.scheduler(&RuleOptions {
            replicas: best.replicas.clone(),
            update_every: Some(best.micro_batches),
            ..RuleOptions::default()
        });
        // After so many updates all stages have their gradients as late as they get.
        let updates = 2 * best.workers();
        let schedule =
            scheduler.schedule(best.replicas.len(), updates.max(2) * best.micro_batches)?;
        let usual = usual.map(|plan| &plan.best);
        let most = |own: &Candidate| {
            let all = own.forecast.memory.iter().copied().map(MemoryUse::total);
            all.max().unwrap_or_default()
        };
        Ok(Self {
            gain: usual.map(|usual| usual.forecast.step_time / best.forecast.step_time),
            than: usual.map(|usual| usual.schedule.name()),
            staleness: schedule.staleness(WeightPolicy::Stashing)?,
            versions: schedule.weight_versions(WeightPolicy::Stashing)?,
            memory: (most(best), usual.map(most)),
        })
    }

    pub fn json(&self) -> Value {
        json!({
            "gain": self.gain,
            "than": self.than,
            "staleness": self.staleness,
            "weight_versions": self.versions,
            "most_memory": self.memory.0,
            "most_memory_before": self.memory.1,
        })
    }

    pub fn text(&self) -> String {
        let list = |numbers: &[usize]| {
            let words: Vec<_> = numbers.iter().map(ToString::to_string).collect();
            words.join(", ")
        };
        let gain = match (self.gain, self.than, self.memory) {
            (Some(gain), Some(than), (now, Some(before))) => format!(
                "Next to {than}, the fastest that gives the result of one device: {gain:.2} × the samples a \
                 second; at most {} on a worker, not {}.",
                format_bytes(now),
                format_bytes(before)
            ),
            _ => "No plan that gives the result of one device fits.".to_owned(),
        };
        format!(
            "{gain}\nIt gives up that result, and is experimental: in each stage, gradients are late by up to {} \
             updates. Each worker keeps up to {} versions of its weights.\n",
            list(&self.staleness),
            list(&self.versions),
        )
    }
}
