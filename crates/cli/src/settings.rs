//! What `config.toml` holds and flags change.
//!
//! Settings are layered: what is usual for the model, then a configuration, then flags. The same struct is all
//! three.

use std::{fs, path::Path};

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, parser::ValueSource};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use stovepipe::train::{PipelineSettings, TrainError, TrainSettings, settings::OptimizerSetting};

use crate::{
    data::{DataName, DataSettings},
    error::CliError,
    model::{ModelName, ModelSettings},
    plan::{PlanFile, read_machine},
};

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

/// Which model and data set were named.
#[derive(Clone, Copy, Debug, Default)]
struct Named {
    model: Option<ModelName>,
    data: Option<DataName>,
}

impl Named {
    fn or(self, other: Self) -> Self {
        Self {
            model: self.model.or(other.model),
            data: self.data.or(other.data),
        }
    }

    /// One names the other where it can: text is read by a language model.
    fn settings(self) -> Settings {
        let reads_text =
            self.model == Some(ModelName::TransformerLm) || self.data == Some(DataName::Text);
        let (model, data) = match reads_text {
            true => (ModelName::TransformerLm, DataName::Text),
            false => (ModelName::AmoebaNetD, DataName::Digits),
        };
        Settings::usual(self.model.unwrap_or(model), self.data.unwrap_or(data))
    }
}

impl Settings {
    /// What is usual for a model and a data set, but for the settings that only some of them have.
    fn usual(model: ModelName, data: DataName) -> Self {
        let training = TrainSettings::default();
        let training = match model {
            ModelName::AmoebaNetD | ModelName::AmoebaNetB => training,
            ModelName::Vit => TrainSettings {
                epochs: 30,
                batch_size: 32,
                optimizer: OptimizerSetting::AdamW,
                lr: 1e-3,
                warmup_epochs: 3.0,
                weight_decay: 0.05,
                clip: 1.0,
                ..training
            },
            ModelName::TransformerLm => TrainSettings {
                epochs: 12,
                batch_size: 16,
                optimizer: OptimizerSetting::AdamW,
                lr: 3e-3,
                warmup_epochs: 0.5,
                weight_decay: 0.1,
                label_smoothing: 0.0,
                clip: 1.0,
                ..training
            },
        };
        Self {
            data: DataSettings::bare(data),
            model: ModelSettings::bare(model),
            pipeline: PipelineSettings::default(),
            training,
        }
    }

    /// Those of a configuration alone.
    pub fn load(config: &Path) -> Result<Self, CliError> {
        let mut settings = from_config(config, Named::default())?;
        settings.data.settle()?;
        settings.model.settle(settings.data.image_size())?;
        Ok(settings)
    }

    /// Adds a flag for each setting; the help shows the defaults.
    pub fn augment(command: Command) -> Command {
        with_defaults(Self::augment_args(command))
    }

    /// Writes down how many tokens a language model knows, where that was left to the tokenizer of the data: another
    /// tokenizer would else make another model.
    pub fn resolve_vocabulary(&mut self, data: &DataSettings) -> Result<(), CliError> {
        if self.model.is_language() && self.model.vocabulary.unwrap_or(0) == 0 {
            self.model.vocabulary = Some(data.tokenizer()?.vocabulary());
        }
        Ok(())
    }

    /// What is usual, then `config` if there is one, then a plan, then a machine, then the flags, then what data set and model
    /// have besides.
    pub fn read(
        config: Option<&Path>,
        plan: Option<&Path>,
        machine: Option<&Path>,
        flags: &ArgMatches,
    ) -> Result<Self, CliError> {
        let by_flags = Named {
            model: flags.get_one("model").copied(),
            data: flags.get_one("data").copied(),
        };
        let mut settings = match config {
            Some(path) => from_config(path, by_flags)?,
            None => by_flags.settings(),
        };
        if let Some(path) = plan {
            let plan: PlanFile = parse(path, &read(path)?)?;
            settings.pipeline = plan.pipeline;
            settings.training.batch_size = plan.training.batch_size;
        }
        if let Some(path) = machine {
            settings.pipeline.run_on(&read_machine(path)?);
        }
        settings.update_from_arg_matches(flags)?;
        let settled = (settings.data.settle())
            .and_then(|()| settings.model.settle(settings.data.image_size()));
        settled.map_err(|error| of_configuration(error, config, flags))?;
        match settings.model.is_language() == (settings.data.data == DataName::Text) {
            true => Ok(settings),
            false => Err(CliError::OtherData {
                model: settings.model.name(),
                data: settings.data.name(),
            }),
        }
    }
}

/// What does not belong to the model or the data set, if no flag says it, is in the configuration.
fn of_configuration(error: CliError, config: Option<&Path>, flags: &ArgMatches) -> CliError {
    use CliError::{Configured, NotOfData, NotOfModel};
    let from_file = |setting: &str| match flags.value_source(&setting.replace('-', "_")) {
        Some(ValueSource::CommandLine) => None,
        _ => config.map(Path::to_owned),
    };
    match error {
        NotOfModel {
            setting,
            of,
            model: named,
        }
        | NotOfData {
            setting,
            of,
            data: named,
        } if let Some(path) = from_file(setting) => Configured {
            path,
            setting,
            of,
            named,
        },
        other => other,
    }
}

/// A configuration, over what is usual for the model and the data set that are named, in flags or there.
fn from_config(path: &Path, by_flags: Named) -> Result<Settings, TrainError> {
    let text = read(path)?;
    // What is wrong with the file is said by this, with the line.
    let _: Settings = parse(path, &text)?;
    let mut over: toml::Table = parse(path, &text)?;
    let named = |table: &str, key: &str| Some(over.get(table)?.get(key)?.clone());
    let in_file = Named {
        model: named("model", "model").and_then(|name| name.try_into().ok()),
        data: named("data", "data").and_then(|name| name.try_into().ok()),
    };
    let usual = by_flags.or(in_file).settings();
    let mut merged = toml::Table::try_from(usual).map_err(|error| TrainError::Format {
        path: path.to_owned(),
        source: error.into(),
    })?;
    for (name, table) in &mut merged {
        let given = over.remove(name);
        if let (Some(table), Some(toml::Value::Table(given))) = (table.as_table_mut(), given) {
            table.extend(given);
        }
    }
    merged
        .try_into()
        .map_err(|source| TrainError::Configuration {
            path: path.to_owned(),
            source: Box::new(source),
        })
}

fn read(path: &Path) -> Result<String, TrainError> {
    fs::read_to_string(path).map_err(|source| TrainError::File {
        path: path.to_owned(),
        source,
    })
}

fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, TrainError> {
    toml::from_str(text).map_err(|source| TrainError::Configuration {
        path: path.to_owned(),
        source: Box::new(source),
    })
}

/// Adds the defaults of settings to the help of their flags.
pub fn with_defaults(command: Command) -> Command {
    let usual = usual_settings();
    command.mut_args(|arg| match (default_of(&arg, &usual), arg.get_help()) {
        (Some(default), Some(help)) if !help.to_string().contains("[default: ") => {
            let help = format!("{help} [default: {default}]");
            arg.help(help).allow_negative_numbers(true)
        }
        _ => arg,
    })
}

/// What a flag's setting is if nobody says it: what it usually is, and what else it is for some model or data set.
fn default_of(arg: &Arg, usual: &[Settings]) -> Option<String> {
    let key = arg.get_long()?;
    match key {
        // Each names the other.
        "model" => return Some("amoebanet-d, or transformer-lm for text".to_owned()),
        "data" => return Some("digits, or text for transformer-lm".to_owned()),
        _ => {}
    }
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    for settings in usual {
        let tables = toml::Table::try_from(settings).unwrap_or_default();
        let holder = tables
            .iter()
            .find_map(|(name, table)| Some((name, table.get(key)?)));
        let Some((table, value)) = holder else {
            continue;
        };
        let of = match &**table {
            "data" => settings.data.name(),
            _ => settings.model.name(),
        };
        let value = shown(value);
        match found.iter_mut().find(|(known, _)| *known == value) {
            _ if value.is_empty() => {}
            Some((_, named)) if named.contains(&of) => {}
            Some((_, named)) => named.push(of),
            None => found.push((value, vec![of])),
        }
    }
    let (first, others) = found.split_first()?;
    let others = (others.iter()).map(|(value, of)| format!(", {value} for {}", of.join(" and ")));
    Some(first.0.clone() + &others.collect::<String>())
}

/// A value as one would write it in a flag.
fn shown(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Array(items) => {
            let items: Vec<_> = items.iter().filter_map(toml::Value::as_str).collect();
            items.join(",")
        }
        other => other.to_string(),
    }
}

/// Settings in which each has its default somewhere; the default model's come first.
fn usual_settings() -> Vec<Settings> {
    use {DataName::*, ModelName::*};
    let usual = |model, data| {
        let mut settings = Settings::usual(model, data);
        settings.data = DataSettings::usual(data);
        settings.model = ModelSettings::usual(model, settings.data.image_size());
        settings
    };
    vec![
        usual(AmoebaNetD, Digits),
        usual(AmoebaNetD, Cifar100),
        usual(Vit, ImageNet),
        usual(TransformerLm, Text),
    ]
}
