//! What `config.toml` holds and flags change.
//!
//! Settings are layered: what is usual for the model, then a configuration, then flags.

use std::{
    fs,
    path::{Path, PathBuf, absolute},
};

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, parser::ValueSource};
use serde::Serialize;
use stovepipe::{
    pipeline::{NamedDevice, Precision},
    train::{
        PipelineSettings, Processes, RunFolder, TrainSettings,
        checkpoint::Checkpoint,
        settings::{DecaySetting, OffloadSetting, OptimizerSetting, ScheduleSetting, flags_of},
    },
};
use toml::{Table, Value};

use crate::{
    choice::{Choices, default_help, listed},
    config::{ConfigFile, Section},
    data::{self, AnyDataSet, Contents, data_sets},
    error::{CliError, usage},
    files::{CONFIG, HUB_CONFIG, MODEL, PlanFile, TOKENIZER, read_machine},
    flags::refuse_idle,
    models::{self, AnyModel, Origin, Reads},
    output,
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

/// A model and the weights that it starts from: a table of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSettings {
    pub model: AnyModel,
    pub pretrained: Pretrained,
}

impl ModelSettings {
    /// With the absolute path of its weights, as a run's configuration has it.
    pub fn located(&self) -> Self {
        let mut own = self.clone();
        let from = own.pretrained.from.take();
        own.pretrained.from = from.map(|path| absolute(&path).unwrap_or(path));
        own.model.locate();
        own
    }
}

impl Serialize for ModelSettings {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Table<'a> {
            model: &'static str,
            #[serde(flatten)]
            pretrained: &'a Pretrained,
            #[serde(flatten)]
            own: &'a AnyModel,
        }
        let table = Table {
            model: self.model.name(),
            pretrained: &self.pretrained,
            own: &self.model,
        };
        table.serialize(serializer)
    }
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

    pub fn augment(&self, command: Command) -> Command {
        let model = |reads| self.models.first(|model| model.reads() == reads).name();
        let data = |reads| self.data_sets.first(|data| reads_of(data) == reads).name();
        let (images, text) = (Reads::Images, Reads::Text);
        let of_data = format!("{}, or {} for {}", data(images), data(text), model(text));
        let of_model = format!("{}, or {} for {}", model(images), model(text), data(text));
        let command = (self.data_sets).augment(command, "Data", "Data set", &of_data);
        self.models.augment(command, "Model", "Model", &of_model)
    }

    /// The model and the data that flags, a configuration or weights to start from name, with the settings that these
    /// give. One names the other where it can.
    pub fn read(
        &self,
        config: Option<(Section, Section)>,
        flags: &ArgMatches,
        from: Option<&Path>,
    ) -> Result<(AnyModel, AnyDataSet), CliError> {
        if let Some(from) = from {
            check_origin(from, flags)?;
        }
        let (of_data, of_model) = config.unzip();
        let named = self.models.named(flags, of_model.as_ref())?;
        let model = named.or_else(|| self.models.find(&model_of(from?)?));
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
            let (model, data, fitting) = (model.name(), data.name(), listed(&fitting));
            return Err(usage!(
                "{model} does not learn from {data}: it learns from {fitting}"
            ));
        }
        if let Some(from) = from {
            adopt(&mut model, &mut data, from, flags)?;
        }
        Ok((model, data))
    }
}

/// Has frozen weights in f16, or else in f32, where a device has no bf16, and says so.
pub fn fit_base(model: &mut AnyModel, devices: &[String]) {
    if !model.has_bf16() {
        return;
    }
    let devices = devices.iter();
    let devices = devices.filter_map(|name| name.parse::<NamedDevice>().ok());
    let devices: Vec<_> = devices.collect();
    let lacks = |precision: Precision| {
        let mut devices = devices.iter();
        devices.find(|device| precision.check(device).is_err())
    };
    if let Some(device) = lacks(Precision::Bf16) {
        let has_f16 = lacks(Precision::F16).is_none();
        let (name, instead) = (&device.name, if has_f16 { "f16" } else { "f32" });
        model.avoid_bf16(has_f16);
        output::say(&format!(
            "{name} has no bf16: the weights below the adapter are in {instead}\n"
        ));
    }
}

/// Makes sure that devices are those of all processes of a job, and of no others.
fn check_processes(devices: &[String], count: usize) -> Result<(), CliError> {
    let rank = |name: &String| name.split_once('/')?.0.parse::<usize>().ok();
    let is_there = |name: &&String| rank(name).is_some_and(|rank| rank < count);
    if let Some(name) = devices.iter().find(|name| !is_there(name)) {
        let last = count - 1;
        return Err(match last {
            0 => usage!("device {name}: there is one process, so its devices begin with 0/"),
            _ => usage!("device {name}: the job has the processes 0 to {last}"),
        });
    }
    match (0..count).find(|process| devices.iter().all(|name| rank(name) != Some(*process))) {
        Some(idle) => Err(usage!(
            "process {idle} has no device: name one, such as {idle}/cpu, or start fewer processes"
        )),
        None => Ok(()),
    }
}

/// A configuration could not hold other names, nor could JSON.
fn check_names(flags: &ArgMatches) -> Result<(), CliError> {
    let ids = flags
        .ids()
        .filter(|id| !["out", "run"].contains(&id.as_str()));
    let mut values = ids.filter_map(|id| flags.get_raw(id.as_str())).flatten();
    match values.find(|value| value.to_str().is_none()) {
        Some(name) => Err(usage!("the name {name:?} is not valid UTF-8: rename it")),
        None => Ok(()),
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
            if !is_run || help.contains("[default: ") {
                return arg;
            }
            let default = default_help(&arg, usual.iter().cloned());
            arg.help(help + &default)
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
        let command = command.args(flags_of::<PipelineSettings>().get_arguments());
        command.args(flags_of::<TrainSettings>().get_arguments())
    }

    /// Those of a configuration alone.
    pub fn load(config: &Path) -> Result<Self, CliError> {
        let command = Self::augment_without_defaults(Command::new("").no_binary_name(true));
        Self::read(Some(config), None, None, &command.get_matches_from([""; 0]))
    }

    /// The settings that the first process reads, in all processes, with their share of the stages.
    pub fn shared(
        processes: &Processes,
        flags: &ArgMatches,
        read: impl FnOnce() -> Result<Self, CliError>,
    ) -> Result<Self, CliError> {
        let is_given = |flag| flags.value_source(flag) == Some(ValueSource::CommandLine);
        let own = processes.first(|| {
            let mut settings = read()?;
            let (count, pipeline) = (processes.size(), &mut settings.pipeline);
            // What was not asked for may change.
            if !is_given("stages") && !is_given("devices") && pipeline.workers() < count {
                let replicas = pipeline.workers() / pipeline.stages.max(1);
                pipeline.stages = count.div_ceil(replicas.max(1));
            }
            let names_all = pipeline.devices.iter().all(|name| name.contains('/'));
            let names_any = pipeline.devices.iter().any(|name| name.contains('/'));
            let is_placed = is_given("devices") && names_all;
            if is_placed {
                check_processes(&pipeline.devices, count)?;
            } else if count > 1 || names_any {
                pipeline.spread(count)?;
            }
            let text = toml::to_string(&settings);
            let text = text.map_err(CliError::file(Path::new(CONFIG)))?;
            Ok::<_, CliError>((settings, text))
        })?;
        let (own, text) = own.unzip();
        let text: Option<String> = processes.of_first(text)?;
        match own {
            Some(own) => Ok(own),
            None => Self::parse(text.unwrap_or_default()),
        }
    }

    fn parse(text: String) -> Result<Self, CliError> {
        let file = ConfigFile::of(Path::new(CONFIG), text, flag_of);
        let command = Self::augment_without_defaults(Command::new("").no_binary_name(true));
        Self::configured(Some(&file), &command.get_matches_from([""; 0]), None)
    }

    /// What is usual, then a configuration, then a plan, then a machine, then flags.
    pub fn read(
        config: Option<&Path>,
        plan: Option<&Path>,
        machine: Option<&Path>,
        flags: &ArgMatches,
    ) -> Result<Self, CliError> {
        let is_given = flags.value_source("from") == Some(ValueSource::CommandLine);
        let from = flags.get_one::<PathBuf>("from").filter(|_| is_given);
        Self::read_all((config, plan, machine), flags, from.map(PathBuf::as_path))
    }

    /// Those of a model that starts from these weights, by flags alone.
    pub fn of_weights(from: &Path, flags: &ArgMatches) -> Result<Self, CliError> {
        Self::read_all((None, None, None), flags, Some(from))
    }

    fn read_all(
        (config, plan, machine): (Option<&Path>, Option<&Path>, Option<&Path>),
        flags: &ArgMatches,
        from: Option<&Path>,
    ) -> Result<Self, CliError> {
        check_names(flags)?;
        // A run's folder, perhaps of one that has not finished, or a file.
        let of_run = |path: &Path| RunFolder::find(path).map(|folder| folder.join(CONFIG));
        let found = config.map(|path| of_run(path).unwrap_or_else(|| path.to_owned()));
        let file = found
            .as_deref()
            .map(|path| ConfigFile::read(path, flag_of))
            .transpose()?;
        let mut settings = Self::configured(file.as_ref(), flags, from)?;
        if let Some(path) = plan {
            let plan: PlanFile = ConfigFile::read(path, |_| None)?.parse()?;
            settings.pipeline = plan.pipeline;
            settings.training.batch_size = plan.training.batch_size;
        }
        if let Some(path) = machine {
            settings.pipeline.run_on(&read_machine(path)?);
        }
        settings.model.pretrained.update_from_arg_matches(flags)?;
        if let Some(from) = from {
            settings.model.pretrained.from = Some(from.to_owned());
        }
        settings.pipeline.update_from_arg_matches(flags)?;
        settings.training.update_from_arg_matches(flags)?;
        // A run in several processes has a device for each stage: others may be asked for now.
        let pipeline = &mut settings.pipeline;
        let is_given = flags.value_source("devices") == Some(ValueSource::CommandLine);
        let names_any = pipeline.devices.iter().any(|name| name.contains('/'));
        if !is_given && names_any && pipeline.devices.len() != pipeline.workers() {
            pipeline.forget_processes();
        }
        suggest::devices(&settings.pipeline.devices).map_err(|source| match config {
            Some(path) if flags.value_source("devices") != Some(ValueSource::CommandLine) => {
                CliError::file(path)(source)
            }
            _ => source,
        })?;
        let ModelSettings { model, pretrained } = &settings.model;
        if pretrained.new_head.is_some() && model.head().is_none() {
            let of = listed(&models::trained().names(|model| model.head().is_some()));
            let named = model.name();
            return Err(usage!(
                "new-head is for {of}, not for {named}: leave it out"
            ));
        }
        settings.refuse_idle(flags)?;
        Ok(settings)
    }

    /// Makes sure that what lies off its device does not lie in the memory of that device.
    pub fn check_offload(&self) -> Result<(), CliError> {
        let devices = self.pipeline.devices.iter();
        Ok((self.training).check_offload(devices.flat_map(|name| name.parse()))?)
    }

    /// Pixels on each side of an image.
    pub fn image_size(&self) -> usize {
        match self.data.contents() {
            Contents::Images(images) => images.image_size(),
            Contents::Text(_) => 1,
        }
    }

    /// Refuses flags that have no effect because of other settings. In a configuration they are no mistake: it has all settings.
    fn refuse_idle(&self, given: &ArgMatches) -> Result<(), CliError> {
        let (pipeline, training) = (&self.pipeline, &self.training);
        let is_off = |table: Table, key: &str| match table.get(key) {
            Some(Value::Boolean(is_on)) => !is_on,
            Some(Value::Integer(number)) => *number == 0,
            _ => true,
        };
        let (optimizer, decay) = (training.optimizer, training.decay);
        let is_adam = matches!(optimizer, OptimizerSetting::Adam | OptimizerSetting::AdamW);
        let is_sgd = optimizer == OptimizerSetting::Sgd;
        let is_free = matches!(decay, DecaySetting::None | DecaySetting::Cosine);
        let is_on_device = training.offload == OffloadSetting::None;
        let without_heads = is_off(self.model.model.table(), "auxiliary");
        let unchanged = is_off(self.data.table(), "rand-augment");
        let is_interleaved = match &pipeline.schedule {
            ScheduleSetting::Rule(rule) => rule.takes_chunks(),
            ScheduleSetting::File(_) => false,
        };
        let devices = suggest::devices(&pipeline.devices)?;
        let mut devices = devices.iter();
        let is_told = devices.all(|device| !device.is_cpu() || device.threads.is_some());
        let from_nothing = self.model.pretrained.from.is_none();
        let has_lora = self.model.model.hub().is_some_and(|hub| hub.lora.is_some());
        let without_rank = is_off(self.model.model.table(), "lora-rank");
        let of_rank = "without --lora-rank (--adapter has its own)";
        let idle = [
            ("momentum", is_adam, "with --optimizer adam or adamw"),
            ("epsilon", is_sgd, "with --optimizer sgd"),
            ("beta2", !is_adam, "with --optimizer sgd or rmsprop"),
            (
                "weight-decay-of",
                training.weight_decay == 0.0,
                "with --weight-decay 0",
            ),
            ("decay-rate", is_free, "with --decay none or cosine"),
            ("decay-epochs", is_free, "with --decay none or cosine"),
            (
                "auxiliary-share",
                without_heads,
                "on a model without auxiliary heads",
            ),
            ("new-head", from_nothing, "without --from"),
            ("adapter", from_nothing, "without --from"),
            (
                "freeze",
                has_lora,
                "with an adapter, beside which all is frozen",
            ),
            ("lora-alpha", without_rank, of_rank),
            ("lora-dropout", without_rank, of_rank),
            ("lora-rank-stabilized", without_rank, of_rank),
            ("lora-targets", without_rank, of_rank),
            ("magnitude", unchanged, "without --rand-augment"),
            ("offload-to", is_on_device, "without --offload optimizer"),
            (
                "all-reduce",
                pipeline.replicas.iter().all(|count| *count == 1),
                "without --replicas",
            ),
            ("chunks", !is_interleaved, "without --schedule interleaved"),
            (
                "threads-per-stage",
                is_told,
                "on devices that are GPUs or name their threads",
            ),
        ];
        refuse_idle(given, idle)
    }

    /// What is usual, then a configuration; of the flags, those of model and data.
    fn configured(
        file: Option<&ConfigFile>,
        flags: &ArgMatches,
        from: Option<&Path>,
    ) -> Result<Self, CliError> {
        let names = ["data", "model", "pipeline", "training"];
        let tables = file.map(|file| file.sections(names)).transpose()?;
        let (mut pipeline, mut pretrained) = (PipelineSettings::default(), Pretrained::default());
        let (mut config, mut of_training) = (None, None);
        if let Some([of_data, mut of_model, of_pipeline, table]) = tables {
            of_pipeline.read_over(&mut pipeline)?;
            let of_weights = of_model.take_for::<Pretrained>();
            of_weights.read_over(&mut pretrained)?;
            (config, of_training) = (Some((of_data, of_model)), Some(table));
        }
        let (model, data) = Subjects::new(models::trained()).read(config, flags, from)?;
        let mut training = model.training();
        if let Some(table) = of_training {
            table.read_over(&mut training)?;
        }
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
            let tokens = text.tokenizer()?.vocabulary();
            self.model.model.set_vocabulary(tokens);
        }
        Ok(())
    }
}

/// Refuses weights that are not there, before it is said that flags do not fit the usual model.
fn check_origin(from: &Path, flags: &ArgMatches) -> Result<(), CliError> {
    if RunFolder::find(from).is_none() {
        fs::metadata(from).map_err(CliError::file(from))?;
    }
    let is_named = flags.get_one::<String>("model").is_some();
    let is_checkpoint = Checkpoint::at(from).is_some() || from.join(MODEL).exists();
    if from.is_dir() && !is_named && !is_checkpoint && model_of(from).is_none() {
        let from = from.display();
        return Err(usage!("{from} is not a run, and has no {HUB_CONFIG}"));
    }
    Ok(())
}

/// Fills in what follows from the weights that a decoder starts from.
fn adopt(
    model: &mut AnyModel,
    data: &mut AnyDataSet,
    from: &Path,
    flags: &ArgMatches,
) -> Result<(), CliError> {
    if model.hub().is_none() {
        return Ok(());
    }
    let is_given = |flag: &str| flags.value_source(flag) == Some(ValueSource::CommandLine);
    let run = RunFolder::find(from).filter(|run| run.join(CONFIG).is_file());
    let fixed = if from.join(HUB_CONFIG).is_file() {
        let fixed = model.adopt(Origin::Folder(from))?;
        let vocabulary = model.hub().map_or(0, |hub| hub.config.vocabulary);
        data.adopt(from, vocabulary);
        fixed
    } else if let Some(run) = run {
        let own = Settings::load(&run.join(CONFIG))?.model.model;
        let (from, window) = (from.display(), own.window());
        let Some(hub) = own.hub() else {
            let (other, model) = (own.name(), model.name());
            return Err(usage!("{from} is a run of {other}, not of {model}"));
        };
        if hub.lora.is_some() {
            return Err(usage!(
                "{from} is a run with an adapter: write it with export --merge, and start from that \
                 folder"
            ));
        }
        let tokenizer = run.join(TOKENIZER);
        if tokenizer.is_file() && !is_given("tokenizer") {
            data.set_tokenizer(tokenizer);
        }
        model.adopt(Origin::Run { hub, window })?
    } else if from.is_dir() {
        let from = from.display();
        return Err(usage!("{from} is not a run, and has no {HUB_CONFIG}"));
    } else {
        return Ok(());
    };
    if let Some(flag) = fixed.iter().find(|flag| is_given(flag)) {
        return Err(usage!(
            "{flag} is what the model of --from has: leave it out"
        ));
    }
    // What flags say comes first.
    model.update(flags)?;
    model.adopt_adapter()
}

/// The name of the model whose weights --from gives: a decoder in a folder of the Hugging Face Hub, or that
/// of a run.
fn model_of(from: &Path) -> Option<String> {
    if from.join(HUB_CONFIG).is_file() {
        return Some("decoder".to_owned());
    }
    let config = fs::read_to_string(RunFolder::find(from)?.join(CONFIG)).ok()?;
    let table: Table = config.parse().ok()?;
    Some(table.get("model")?.get("model")?.as_str()?.to_owned())
}

/// The flag of a setting.
fn flag_of(key: &str) -> Option<Arg> {
    let command = Settings::augment_without_defaults(Command::new(""));
    let mut flags = command.get_arguments();
    flags.find(|flag| flag.get_long() == Some(key)).cloned()
}
