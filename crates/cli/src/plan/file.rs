//! A plan as a file: what `plan --out` writes and `train --plan` reads.

use std::path::Path;

use serde::{Deserialize, Serialize};
use stovepipe::{
    pipeline::Precision,
    plan::{Candidate, Machine},
    train::{
        PipelineSettings,
        settings::{BalanceSetting, ScheduleSetting},
    },
};

use crate::{error::CliError, output};

/// Settings of a run, and what is expected of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PlanFile {
    pub pipeline: PipelineSettings,
    pub training: Batch,
    /// What was foretold; nobody reads it but people.
    #[serde(default)]
    pub forecast: Expected,
}

/// The setting of training that a plan depends on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Batch {
    pub batch_size: usize,
}

/// What was foretold.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Expected {
    /// Seconds.
    pub step_time: f64,
    pub bubble: f64,
    /// Bytes of each worker.
    pub memory: Vec<u64>,
}

impl PlanFile {
    pub fn new(
        candidate: &Candidate,
        machine: &Machine,
        mini_batch: usize,
        (threads_per_stage, precision): (usize, Precision),
    ) -> Result<Self, CliError> {
        if candidate.replicas.iter().any(|&count| count > 1) {
            return Err(CliError::ReplicasInPlan);
        }
        let devices = candidate.devices.iter();
        let chunks = if candidate.schedule.takes_chunks() {
            candidate.chunks
        } else {
            PipelineSettings::default().chunks
        };
        Ok(Self {
            pipeline: PipelineSettings {
                stages: candidate.workers(),
                devices: devices
                    .map(|&device| machine.devices[device].name.clone())
                    .collect(),
                balance: BalanceSetting::Layers(candidate.forecast.balance.clone()),
                micro_batches: candidate.micro_batches,
                schedule: ScheduleSetting::Rule(candidate.schedule),
                chunks,
                recompute: candidate.recompute,
                threads_per_stage,
                precision,
                ..PipelineSettings::default()
            },
            training: Batch {
                batch_size: mini_batch,
            },
            forecast: Expected {
                step_time: candidate.forecast.step_time,
                bubble: candidate.forecast.bubble,
                memory: (candidate.forecast.memory.iter())
                    .map(|memory| memory.total())
                    .collect(),
            },
        })
    }

    pub fn write(&self, path: &Path) -> Result<(), CliError> {
        let text = toml::to_string(self).map_err(|error| CliError::Unreadable {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        output::write(
            path,
            &format!("# train --plan {}\n\n{text}", path.display()),
        )
    }
}
