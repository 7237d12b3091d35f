//! The files of a run, and those that `plan` and `devices` write for it.

use std::path::Path;

use serde::{Deserialize, Serialize};
use stovepipe::{plan::Machine, train::PipelineSettings};

use crate::{error::CliError, output};

pub const CONFIG: &str = "config.toml";
pub const MODEL: &str = "model.safetensors";
/// A line for each mini-batch.
pub const STEPS: &str = "steps.jsonl";
/// The sums of bits of each mini-batch.
pub const CHECKSUMS: &str = "checksums.jsonl";
/// The model with averaged weights.
pub const AVERAGED: &str = "averaged.safetensors";
/// The one with the best test.
pub const BEST: &str = "best.safetensors";
/// Its copy of its tokenizer.
pub const TOKENIZER: &str = "tokenizer.json";
/// The file of a folder of the Hugging Face Hub that says what its model is.
pub const HUB_CONFIG: &str = "config.json";
/// The file of a folder of PEFT that says what its adapter is.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";
/// The checksum of the weights that an adapter was trained above, in its folder. PEFT does not read it.
pub const ADAPTER_BASE: &str = "base.sha256";
/// What lies beside the tokenizer of a model of the Hugging Face Hub.
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub const SPECIAL_TOKENS: &str = "special_tokens_map.json";
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";
/// The names of its classes, a line each.
pub const CLASSES: &str = "classes.txt";

/// Whether a folder of the Hugging Face Hub has a configuration, but no weights.
pub fn has_no_weights(folder: &Path) -> bool {
    let weights = ["model.safetensors", "model.safetensors.index.json"];
    folder.join(HUB_CONFIG).is_file() && !weights.iter().any(|name| folder.join(name).exists())
}

/// What `plan --out` writes and `train --plan` reads: settings of a run, and its prediction.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PlanFile {
    pub pipeline: PipelineSettings,
    pub training: PlannedTraining,
    /// For people alone.
    #[serde(default)]
    pub forecast: Prediction,
}

/// The setting of training that a plan depends on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PlannedTraining {
    pub batch_size: usize,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Prediction {
    /// Seconds.
    pub step_time: f64,
    pub bubble: f64,
    /// Bytes of each worker.
    pub memory: Vec<u64>,
}

impl PlanFile {
    pub fn write(&self, path: &Path) -> Result<(), CliError> {
        let text = toml::to_string(self).map_err(CliError::file(path))?;
        let text = format!("# train --plan {}\n\n{text}", path.display());
        output::write(path, &text)
    }
}

pub fn read_machine(path: &Path) -> Result<Machine, CliError> {
    Machine::from_toml(&output::read(path)?).map_err(CliError::file(path))
}
