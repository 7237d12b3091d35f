//! What `config.toml` holds and flags change.
//!
//! Settings are layered: what is usual for the model, then a configuration, then flags.

use std::path::Path;

use clap::{ArgMatches, Args, Command, FromArgMatches, parser::ValueSource};
use serde::Serialize;
use stovepipe::train::{PipelineSettings, TrainSettings};
use toml::Table;

use crate::{
    choice::{Choices, default_help, listed},
    config::{ConfigFile, Section},
    data::{self, AnyDataSet, Contents, data_sets},
    error::CliError,
    files::{PlanFile, read_machine},
    models::{self, AnyModel, ModelSettings, Reads},
    pretrained::Pretrained,
    suggest,
};

/// All settings of a training run; a table of `config.toml` each.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    #[serde(serialize_with = "data::serialize")]
    pub data: AnyDataSet,
    pub model: ModelSettings,
    pub pipeline: PipelineSettings,
    pub training: TrainSettings,
}

/// The models and the data sets that a subcommand lets one choose among.
pub struct Subjects {
    models: Choices<AnyModel>,
    data_sets: Choices<AnyDataSet>,
}

fn reads_of(data: &AnyDataSet) -> Reads {
    match data.contents() {
        Contents::Images(_) => Reads::Images,
        Contents::Text(_) => Reads::Text,
    }
}

impl Subjects {
    pub fn new(models: Choices<AnyModel>) -> Self {
        let data_sets = data_sets();
        Self { models, data_sets }
    }

    fn without_defaults(self) -> Self {
        Self {
            models: self.models.without_defaults(),
            data_sets: self.data_sets.without_defaults(),
        }
    }

    /// Adds the flags of all data sets and models.
    pub fn augment(&self, command: Command) -> Command {
        let model = |reads| self.models.first(|model| model.reads() == reads).name();
        let data = |reads| self.data_sets.first(|data| reads_of(data) == reads).name();
        let (images, text) = (Reads::Images, Reads::Text);
        let of_data = format!("{}, or {} for {}", data(images), data(text), model(text));
        let of_model = format!("{}, or {} for {}", model(images), model(text), data(text));
        let command = (self.data_sets).augment(command, "Data", "Data set", &of_data);
        self.models.augment(command, "Model", "Model", &of_model)
    }

    /// The model and the data that flags or a configuration name, with the settings that these give. One names the other
    /// where it can.
    pub fn read(
        &self,
        config: Option<(Section, Section)>,
        flags: &ArgMatches,
    ) -> Result<(AnyModel, AnyDataSet), CliError> {
        let (of_data, of_model) = config.unzip();
        let model = self.models.named(flags, of_model.as_ref())?;
        let data = self.data_sets.named(flags, of_data.as_ref())?;
        let by_data = data.as_ref().map(reads_of);
        let reads = model.as_ref().map(|model| model.reads()).or(by_data);
        let reads = reads.unwrap_or(Reads::Images);
        let mut data = data.unwrap_or_else(|| self.data_sets.first(|data| reads_of(data) == reads));
        let mut model = model.unwrap_or_else(|| self.models.first(|model| model.reads() == reads));
        self.data_sets.read(&mut data, of_data, flags)?;
        self.models.read(&mut model, of_model, flags)?;
        data.settle();
        data.check()?;
        model.settle(match data.contents() {
            Contents::Images(images) => images.image_size(),
            Contents::Text(_) => 1,
        });
        if model.reads() != reads_of(&data) {
            let fitting = self.data_sets.names(|data| reads_of(data) == model.reads());
            return Err(CliError::OtherData {
                model: model.name(),
                data: data.name(),
                fitting: listed(&fitting),
            });
        }
        Ok((model, data))
    }
}

impl Settings {
    /// Adds a flag for each setting; the help shows the defaults.
    pub fn augment(command: Command) -> Command {
        let subjects = Subjects::new(models::trained());
        let usual = |model: &AnyModel| {
            let mut table = Table::try_from(PipelineSettings::default()).unwrap_or_default();
            table.extend(Table::try_from(model.training()).unwrap_or_default());
            (table, model.name())
        };
        let usual: Vec<_> = subjects.models.iter().map(usual).collect();
        Self::augment_with(&subjects, command).mut_args(|arg| {
            let is_run = matches!(arg.get_help_heading(), Some("Pipeline" | "Training"));
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            if is_run && !help.contains("[default: ") {
                let help = help + &default_help(&arg, usual.iter().cloned());
                return arg.help(help);
            }
            arg
        })
    }

    /// Adds a flag for each setting, whose default is a run's setting.
    pub fn augment_without_defaults(command: Command) -> Command {
        let subjects = Subjects::new(models::trained());
        Self::augment_with(&subjects.without_defaults(), command)
    }

    fn augment_with(subjects: &Subjects, command: Command) -> Command {
        let command = subjects.augment(command).next_help_heading("Model");
        let command = Pretrained::augment_args(command);
        let command = TrainSettings::augment_args(PipelineSettings::augment_args(command));
        command.mut_args(|arg| {
            if arg.get_action().takes_values() {
                arg.allow_negative_numbers(true)
            } else {
                arg
            }
        })
    }

    /// Those of a configuration alone.
    pub fn load(config: &Path) -> Result<Self, CliError> {
        let command = Self::augment_without_defaults(Command::new("").no_binary_name(true));
        Self::read(Some(config), None, None, &command.get_matches_from([""; 0]))
    }

    /// What is usual, then a configuration, then a plan, then a machine, then flags.
    pub fn read(
        config: Option<&Path>,
        plan: Option<&Path>,
        machine: Option<&Path>,
        flags: &ArgMatches,
    ) -> Result<Self, CliError> {
        let file = config.map(ConfigFile::read).transpose()?;
        let mut settings = Self::configured(file.as_ref(), flags)?;
        if let Some(path) = plan {
            let plan: PlanFile = ConfigFile::read(path)?.parse()?;
            settings.pipeline = plan.pipeline;
            settings.training.batch_size = plan.training.batch_size;
        }
        if let Some(path) = machine {
            settings.pipeline.run_on(&read_machine(path)?);
        }
        settings.model.pretrained.update_from_arg_matches(flags)?;
        settings.pipeline.update_from_arg_matches(flags)?;
        settings.training.update_from_arg_matches(flags)?;
        suggest::devices(&settings.pipeline.devices).map_err(|source| match config {
            Some(path) if flags.value_source("devices") != Some(ValueSource::CommandLine) => {
                CliError::Read {
                    path: path.to_owned(),
                    source: source.into(),
                }
            }
            _ => source,
        })?;
        let ModelSettings { model, pretrained } = &settings.model;
        if pretrained.new_head.is_some() && model.head().is_none() {
            return Err(CliError::Foreign {
                setting: "new-head".to_owned(),
                of: listed(&models::trained().names(|model| model.head().is_some())),
                named: model.name(),
            });
        }
        Ok(settings)
    }

    /// What is usual, then a configuration; of the flags, those of model and data.
    fn configured(file: Option<&ConfigFile>, flags: &ArgMatches) -> Result<Self, CliError> {
        let subjects = Subjects::new(models::trained());
        let (mut pipeline, mut pretrained) = (PipelineSettings::default(), Pretrained::default());
        let Some(file) = file else {
            let (model, data) = subjects.read(None, flags)?;
            let training = model.training();
            let model = ModelSettings { model, pretrained };
            return Ok(Self {
                data,
                model,
                pipeline,
                training,
            });
        };
        let [of_data, mut of_model, of_pipeline, of_training] =
            file.sections(["data", "model", "pipeline", "training"])?;
        of_pipeline.read_over(&mut pipeline)?;
        of_model
            .take_for::<Pretrained>()
            .read_over(&mut pretrained)?;
        let (model, data) = subjects.read(Some((of_data, of_model)), flags)?;
        let mut training = model.training();
        of_training.read_over(&mut training)?;
        let model = ModelSettings { model, pretrained };
        Ok(Self {
            data,
            model,
            pipeline,
            training,
        })
    }

    /// Sets how many tokens a language model knows to those of the tokenizer, if it is not set: with another tokenizer it
    /// would be another model.
    pub fn resolve_vocabulary(&mut self, data: &AnyDataSet) -> Result<(), CliError> {
        if let Contents::Text(text) = data.contents() {
            self.model
                .model
                .set_vocabulary(text.tokenizer()?.vocabulary());
        }
        Ok(())
    }
}
