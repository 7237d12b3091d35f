//! What `config.toml` holds and flags change.
//!
//! Settings are layered: defaults, then a configuration, then flags. The same struct is all three.

use std::{fs, path::Path};

use burn::tensor::{Device, Tensor};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use stovepipe::train::{PipelineSettings, TrainError, TrainSettings};
use stovepipe_amoebanet::{AmoebaLayer, AmoebaNetBConfig, AmoebaNetDConfig, AmoebaNetError, Stem};

use crate::{data::DataSettings, error::CliError, plan::PlanFile};

/// All settings of a training run; a table of `config.toml` each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    #[command(flatten)]
    pub data: DataSettings,
    #[command(flatten)]
    pub model: ModelSettings,
    #[command(flatten)]
    pub pipeline: PipelineSettings,
    #[command(flatten)]
    pub training: TrainSettings,
}

/// What is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ModelSettings {
    /// Model
    #[arg(long, required = false, value_enum)]
    pub model: ModelName,
    /// Normal cells of the model (AmoebaNet's L), divisible by 3
    #[arg(long, required = false, value_name = "L")]
    pub layers: usize,
    /// Filters of the model (AmoebaNet's D), divisible by 4
    #[arg(long, required = false, value_name = "D")]
    pub filters: usize,
    /// Whether an auxiliary head adds a loss at two thirds of the depth
    #[arg(long, required = false, value_name = "BOOL", action = ArgAction::Set)]
    pub auxiliary: bool,
    /// Probability that training drops an operation of the last cell from a sample; less in the cells
    /// before
    #[arg(long, required = false, value_name = "PROBABILITY")]
    pub drop_path: f64,
}

/// A model by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ModelName {
    /// AmoebaNet-D(L, D), by Real et al.
    #[value(name = "amoebanet-d")]
    #[serde(rename = "amoebanet-d")]
    AmoebaNetD,
    /// AmoebaNet-B(L, D), with separable convolutions
    #[value(name = "amoebanet-b")]
    #[serde(rename = "amoebanet-b")]
    AmoebaNetB,
}

impl Default for ModelSettings {
    fn default() -> Self {
        Self {
            model: ModelName::AmoebaNetD,
            layers: 3,
            filters: 16,
            auxiliary: false,
            drop_path: 0.0,
        }
    }
}

impl ModelSettings {
    /// The model's layers, nothing allocated.
    pub fn layers(&self, classes: usize) -> Result<Vec<AmoebaLayer>, AmoebaNetError> {
        let (stem, device) = (Stem::Small, Device::flex());
        match self.model {
            ModelName::AmoebaNetD => AmoebaNetDConfig::new(self.layers, self.filters, classes)
                .with_stem(stem)
                .with_auxiliary(self.auxiliary)
                .with_drop_path(self.drop_path)
                .init(&device),
            ModelName::AmoebaNetB => AmoebaNetBConfig::new(self.layers, self.filters, classes)
                .with_stem(stem)
                .with_auxiliary(self.auxiliary)
                .with_drop_path(self.drop_path)
                .init(&device),
        }
    }
}

impl Settings {
    /// Images as a stage meets them in a micro-batch, but for what is on them, to measure layers; from
    /// a set of `samples`.
    pub fn sample(&self, samples: usize) -> Tensor<4> {
        let batch = self.training.batch_size.min(samples);
        let samples = batch.div_ceil(self.pipeline.micro_batches);
        Tensor::ones([samples, 3, 32, 32], &Device::flex())
    }

    /// Adds a flag for each setting; the help shows the defaults.
    pub fn augment(command: Command) -> Command {
        with_defaults(Self::augment_args(command))
    }

    /// Defaults, then `config` if there is one, then a plan, then the flags, then what the data set has
    /// besides.
    pub fn read(
        config: Option<&Path>,
        plan: Option<&Path>,
        flags: &ArgMatches,
    ) -> Result<Self, CliError> {
        let mut settings: Self = match config {
            Some(path) => from_file(path)?,
            None => Self::default(),
        };
        if let Some(path) = plan {
            let plan: PlanFile = from_file(path)?;
            settings.pipeline = plan.pipeline;
            settings.training.batch_size = plan.training.batch_size;
        }
        settings.update_from_arg_matches(flags)?;
        settings.data.settle()?;
        Ok(settings)
    }
}

/// Reads a file of settings.
fn from_file<T: DeserializeOwned>(path: &Path) -> Result<T, TrainError> {
    let text = fs::read_to_string(path).map_err(|source| TrainError::File {
        path: path.to_owned(),
        source,
    })?;
    toml::from_str(&text).map_err(|source| TrainError::Configuration {
        path: path.to_owned(),
        source: Box::new(source),
    })
}

/// Adds the defaults of settings to the help of their flags.
pub fn with_defaults(command: Command) -> Command {
    // Settings that only some data sets have are not among the plain defaults.
    let all = Settings {
        data: DataSettings::all(),
        ..Settings::default()
    };
    let defaults = [Settings::default(), all].map(|all| toml::Value::try_from(all).ok());
    let default_of = |arg: &Arg| {
        let key = arg.get_long()?;
        let tables = defaults.iter().flatten().filter_map(toml::Value::as_table);
        let value = (tables.flat_map(toml::Table::values)).find_map(|table| table.get(key))?;
        Some(match value {
            toml::Value::String(text) => text.clone(),
            toml::Value::Array(items) => {
                let items: Vec<_> = items.iter().filter_map(toml::Value::as_str).collect();
                items.join(",")
            }
            other => other.to_string(),
        })
    };
    command.mut_args(|arg| match (default_of(&arg), arg.get_help()) {
        (Some(default), Some(help))
            if !default.is_empty() && !help.to_string().contains("[default: ") =>
        {
            let help = format!("{help} [default: {default}]");
            arg.help(help).allow_negative_numbers(true)
        }
        _ => arg,
    })
}
