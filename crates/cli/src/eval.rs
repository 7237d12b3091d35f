//! `stovepipe eval`: scores a saved model, and lets it predict.

mod generate;
mod predict;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, parser::ValueSource};
use serde_json::{Value, json};
use stovepipe::{
    pipeline::{CrossEntropy, Flow, Layer, Objective, Pipeline},
    schedule::count,
    train::{
        Processes, RunFolder, Task, Weights,
        checkpoint::{Checkpoint, Checkpoints},
        data::{Fingerprint, changes, shared},
        evaluate,
        run::show_count,
        settings::{AllReduceSetting, BalanceSetting},
        weights::Base,
    },
};
use stovepipe_report::Confusion;
use stovepipe_text::Tokenizer;
use stovepipe_transformer::Sampling;

use self::{
    generate::Generate,
    predict::{Format, Predict},
};
use crate::{
    data::{self, Contents, of_classes},
    error::{CliError, usage},
    files::{AVERAGED, BEST, CLASSES, CONFIG, HUB_CONFIG, MODEL, TOKENIZER},
    flags,
    models::Sizes,
    output::{self, Table},
    pretrained::{OpenWeights, of_base},
    settings::{Settings, fit_base},
    suggest,
    work::{Load, ModelWithData, Work, exact_line, with_model},
};

/// Of more classes, a confusion matrix would not fit in a terminal.
const MOST_COLUMNS: usize = 20;

const PREDICTING: &str = "Predicting";

/// The model that is evaluated or exported.
#[derive(Clone, Debug, Args)]
pub struct RunFlags {
    /// Folder that `train` wrote, a folder of the Hugging Face Hub, or a file of weights with flags for its model and data
    run: PathBuf,
    /// Use the averaged weights
    #[arg(long)]
    averaged: bool,
    /// Use the model with the best test instead of the last
    #[arg(long, conflicts_with_all = ["averaged", "checkpoint"])]
    best: bool,
    /// Use the model of a checkpoint: its name, newest, or best (by the test after its epoch)
    #[arg(long, value_name = "NAME")]
    checkpoint: Option<String>,
}

#[derive(Clone, Debug, Args)]
struct EvalFlags {
    #[command(flatten)]
    run: RunFlags,
    /// Score all of a text, such as one that the model was not trained on
    #[arg(long, conflicts_with_all = ["predict", "prompt", "held_out"])]
    all: bool,
    /// Print the accuracy of each class, and what is taken for what
    #[arg(long, conflicts_with_all = ["all", "predict", "prompt"])]
    by_class: bool,
    /// Print the most probable classes of pictures: files, folders, or patterns such as "*.jpg"
    #[arg(long, value_name = "PATH", num_args = 1.., conflicts_with = "prompt", help_heading = PREDICTING)]
    predict: Vec<PathBuf>,
    /// Classes to print of each picture
    #[arg(long, value_name = "N", default_value_t = 5, requires = "predict", help_heading = PREDICTING)]
    top: usize,
    /// Print a line for each picture, as CSV or JSON
    #[arg(long, value_enum, value_name = "FORMAT", requires = "predict", conflicts_with = "json", help_heading = PREDICTING)]
    format: Option<Format>,
    /// Continue a text
    #[arg(long, value_name = "TEXT", help_heading = PREDICTING)]
    prompt: Option<String>,
    /// Tokens to generate
    #[arg(long, value_name = "N", default_value_t = 200, requires = "prompt", help_heading = PREDICTING)]
    tokens: usize,
    /// Randomness of the choice of tokens: 0 takes the most probable, 1 the model's probabilities
    #[arg(long, value_name = "T", default_value_t = 0.8, requires = "prompt", help_heading = PREDICTING)]
    temperature: f64,
    /// Choose among the most probable K tokens; 0 for all
    #[arg(long, value_name = "K", default_value_t = 0, requires = "prompt", help_heading = PREDICTING)]
    top_k: usize,
    /// Choose among the fewest tokens that have this probability together; 1 for all
    #[arg(long, value_name = "P", default_value_t = 1.0, requires = "prompt", help_heading = PREDICTING)]
    top_p: f64,
    /// Start mpirun with this many processes on this machine, which share the stages
    #[arg(long, value_name = "N", help_heading = "Pipeline")]
    processes: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn command() -> Command {
    let command = EvalFlags::augment_args(Command::new("eval"));
    let command = Settings::augment_without_defaults(command);
    let command = flags::hide(command, is_unused);
    // The settings' own documentation would be the text otherwise.
    flags::finished(command)
        .about("Score a trained model, classify pictures, or continue a text")
        .long_about(None)
}

/// Whether a flag is about training alone.
pub fn is_unused(arg: &Arg) -> bool {
    let id = arg.get_id().as_str();
    match arg.get_help_heading() {
        Some("Training") => !["batch_size", "seed"].contains(&id),
        Some("Pipeline") => ["recompute", "device_memory", "all_reduce"].contains(&id),
        _ => data::of_training(id),
    }
}

pub fn main(matches: &ArgMatches, processes: &Processes) -> Result<ExitCode, CliError> {
    flags::refuse_hidden(&command(), matches)?;
    let flags = EvalFlags::from_arg_matches(matches)?;
    let is_predicting = !flags.predict.is_empty();
    if flags.top == 0 {
        return Err(usage!("--top is 0: give 1 or more"));
    }
    let idle = [
        ("batch-size", flags.prompt.is_some(), "with --prompt"),
        ("seed", is_predicting, "with --predict"),
    ];
    flags::refuse_idle(matches, idle)?;
    if processes.size() > 1 && (is_predicting || flags.prompt.is_some() || flags.by_class) {
        return Err(usage!(
            "--predict, --prompt and --by-class: start the program in one process"
        ));
    }
    let mut run = TrainedRun::open(command(), &flags.run, (matches, processes))?;
    run.json = flags.json;
    let is_measured = !matches!(
        run.settings.pipeline.balance,
        BalanceSetting::Layers(_) | BalanceSetting::Even
    );
    let idle = [(
        "balance",
        is_measured,
        "but as even or as layers: nothing is measured",
    )];
    flags::refuse_idle(matches, idle)?;
    let (data, model) = (&run.settings.data, &run.settings.model.model);
    let seed = run.settings.training.seed;
    let name = model.name();
    let other = |flag, what| usage!("{flag} is for models of {what}; this one is {name}");
    match (data.contents(), &flags.prompt) {
        (Contents::Images(_), Some(_)) => return Err(other("--prompt", "text")),
        (Contents::Text(_), _) if is_predicting => {
            return Err(other("--predict", "images"));
        }
        (Contents::Images(images), None) if is_predicting => {
            let sizes = Sizes::of_images(images.image_size(), run.classes.len());
            let predict = Predict {
                run: &run,
                paths: &flags.predict,
                view: images.view(),
                top: flags.top,
                format: flags.format,
            };
            model.build(&sizes, predict)?;
        }
        (Contents::Text(text), Some(prompt)) => {
            let sizes = Sizes::of_text(text.tokenizer()?);
            let generate = Generate {
                run: &run,
                tokenizer: &sizes.tokenizer,
                prompt,
                encoded: text.prompt(prompt)?,
                tokens: flags.tokens,
                sampling: Sampling {
                    temperature: flags.temperature,
                    top_k: Some(flags.top_k).filter(|&most| most > 0),
                    top_p: Some(flags.top_p).filter(|&share| share != 1.0),
                    seed,
                },
                end: text.end()?,
            };
            model.build(&sizes, generate)?;
        }
        _ => {
            let load = if flags.all { Load::Whole } else { Load::Parts };
            let by_class = flags.by_class;
            with_model(
                (model, data),
                (seed, run.settings.pipeline.micro_batches),
                load,
                Score {
                    run: &run,
                    by_class,
                },
            )?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes sure that a tokenizer has as many tokens as the run's own: `own`, or else bytes.
fn check_tokenizer(path: &Path, own: Option<&Path>) -> Result<(), CliError> {
    let own = match own {
        Some(own) => Tokenizer::read(own)?,
        None => Tokenizer::bytes(),
    };
    let (found, own) = (Tokenizer::read(path)?.vocabulary(), own.vocabulary());
    if found != own {
        return Err(usage!(
            "{} has a vocabulary of {found} tokens, but the run's own tokenizer one of {own}: \
             the model was not made for its tokens, so leave --tokenizer out",
            path.display()
        ));
    }
    Ok(())
}

fn read_classes(path: PathBuf) -> Result<Vec<String>, CliError> {
    let (text, path) = (fs::read_to_string(&path), path.display());
    let text =
        text.map_err(|error| usage!("eval needs {path} for the names of the classes: {error}"))?;
    if text.is_empty() {
        return Err(usage!("{path} names no class"));
    }
    Ok(text.lines().map(str::to_owned).collect())
}

fn checkpoint(run: &Path, name: &str, task: &Task<CrossEntropy>) -> Result<Checkpoint, CliError> {
    let checkpoints = Checkpoints::of(run);
    let mut all = checkpoints.list()?;
    let found = match name {
        "newest" => all.pop(),
        "best" => checkpoints.best(task)?,
        name => all.iter().find(|own| own.name() == name).cloned(),
    };
    found.ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|own| own.name()).collect();
        let there = match names[..] {
            [] => "none".to_owned(),
            _ => names.join(", "),
        };
        let tip = suggest::tip(name, names.into_iter().chain(["newest", "best"]));
        let run = run.display();
        usage!("{run} has no checkpoint {name}: it has {there}{tip}")
    })
}

pub struct TrainedRun {
    pub settings: Settings,
    /// `None` for those of a file, which are the settings' pretrained ones.
    weights: Option<PathBuf>,
    /// The names of the classes; empty for a language model.
    pub classes: Vec<String>,
    /// What the data were, unless flags name others.
    data: Option<Fingerprint>,
    json: bool,
    processes: Processes,
}

impl TrainedRun {
    /// The file of its weights.
    fn file(&self) -> &Path {
        let from = &self.settings.model.pretrained.from;
        let file = self.weights.as_ref().or(from.as_ref());
        file.map_or(Path::new(""), PathBuf::as_path)
    }

    /// Opens it in the first process, for all.
    pub fn open(
        command: Command,
        run: &RunFlags,
        (matches, processes): (&ArgMatches, &Processes),
    ) -> Result<Self, CliError> {
        let mut found = None;
        let settings = Settings::shared(processes, matches, || {
            let own = Self::read(command, run, matches)?;
            Ok(found.insert(own).settings.clone())
        })?;
        let (weights, classes, data) = (found.as_ref()).map_or_else(Default::default, |own| {
            (own.weights.clone(), own.classes.clone(), own.data.clone())
        });
        let (weights, classes) = processes.of_first((weights, classes))?;
        Ok(Self {
            settings,
            weights,
            classes,
            data,
            json: false,
            processes: processes.clone(),
        })
    }

    fn read(command: Command, run: &RunFlags, matches: &ArgMatches) -> Result<Self, CliError> {
        let is_hub = run.run.join(HUB_CONFIG).is_file() && !run.run.join(CONFIG).is_file();
        if run.run.is_file() || is_hub {
            return Self::of_weights(run, matches);
        }
        // The folder of an unfinished run has another name.
        let folder = &RunFolder::find(&run.run).unwrap_or_else(|| run.run.clone());
        let config = folder.join(CONFIG);
        if !config.is_file() {
            fs::metadata(folder).map_err(CliError::file(folder))?;
            let folder = folder.display();
            return Err(usage!("{folder} is not a run: it has no config.toml"));
        }
        // The weights below an adapter may have moved.
        let own = Settings::load(&config)?.model.model;
        let may_differ = own.has_frozen_base();
        let is_own = |arg: &Arg| match arg.get_id().as_str() {
            "data" => true,
            "from" => !may_differ,
            _ => arg.get_help_heading() == Some("Model"),
        };
        flags::refuse_hidden(&flags::hide(command, is_own), matches)?;
        let mut settings = Settings::read(Some(&config), None, None, matches)?;
        settings.model.model = own;
        fit_base(&mut settings.model.model, &settings.pipeline.devices);
        settings.training.check()?;
        if let Contents::Text(_) = settings.data.contents() {
            // The run's own copy: the original may have changed.
            let own = Some(folder.join(TOKENIZER)).filter(|path| path.is_file());
            match (matches.get_one::<PathBuf>("tokenizer"), own) {
                (Some(other), own) => check_tokenizer(other, own.as_deref())?,
                (None, Some(own)) => settings.data.set_tokenizer(own),
                (None, None) => {}
            }
        }
        let weights = match &run.checkpoint {
            Some(name) => {
                let task = match settings.data.contents() {
                    Contents::Images(_) => Task::classification,
                    Contents::Text(_) => Task::language_model,
                };
                let checkpoint = checkpoint(folder, name, &task(&settings.training))?;
                checkpoint.check()?;
                checkpoint.model(run.averaged)
            }
            None if run.best => folder.join(BEST),
            None => folder.join(if run.averaged { AVERAGED } else { MODEL }),
        };
        if !weights.is_file() && !folder.join(MODEL).is_file() {
            let (folder, checkpoints) = (folder.display(), Checkpoints::of(folder).list()?);
            let why = format!("the run in {folder} is not over, so it has no model yet");
            return Err(match checkpoints.is_empty() {
                true => usage!("{why}, and no checkpoint"),
                false => usage!("{why}: use a checkpoint, such as --checkpoint newest"),
            });
        }
        if run.averaged && !weights.is_file() {
            let folder = folder.display();
            return Err(usage!("{folder} has no averaged weights: train with --ema"));
        }
        let classes = match settings.data.contents() {
            Contents::Images(_) => read_classes(folder.join(CLASSES))?,
            Contents::Text(_) => Vec::new(),
        };
        let flags_of_data = settings.data.flags();
        let is_other = flags_of_data.get_arguments().any(|arg| {
            matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
        });
        let checkpoints = Checkpoints::of(folder).list()?.into_iter().rev();
        let data = checkpoints
            .filter(|_| !is_other)
            .find_map(|own| own.data().ok());
        Ok(Self {
            settings,
            weights: Some(weights),
            classes,
            data,
            json: false,
            processes: Processes::default(),
        })
    }

    /// Weights without a run: flags say what they are of.
    fn of_weights(flags: &RunFlags, matches: &ArgMatches) -> Result<Self, CliError> {
        let path = flags.run.display();
        if flags.averaged || flags.checkpoint.is_some() {
            return Err(usage!(
                "{path} is not a run, but weights: --averaged and --checkpoint are for a run's folder"
            ));
        }
        if matches.get_one::<String>("model").is_none() && flags.run.is_file() {
            return Err(usage!(
                "{path} is a file of weights: say with --model what model it is of"
            ));
        }
        let mut settings = Settings::of_weights(&flags.run, matches)?;
        settings.training.check()?;
        let has = |flag| matches!(matches.try_contains_id(flag), Ok(true));
        if has("prompt") && !has("data") {
            settings.data.converse(&flags.run);
        }
        settings.model.pretrained.new_head = Some(false);
        settings.resolve_vocabulary(&settings.data.clone())?;
        let classes = match settings.data.contents() {
            Contents::Images(images) if settings.data.is_located() => {
                images.load(settings.training.seed)?.classes
            }
            Contents::Images(images) => {
                let alone = Processes::default();
                let weights = OpenWeights::open(&settings.model.pretrained, &alone)?;
                let own = weights.map(|weights| weights.classes(&settings.model.model));
                let own = own.transpose()?.flatten();
                let classes = 0..own.unwrap_or_else(|| images.usual_classes());
                classes.map(|class| class.to_string()).collect()
            }
            Contents::Text(_) => Vec::new(),
        };
        Ok(Self {
            settings,
            weights: None,
            classes,
            data: None,
            json: false,
            processes: Processes::default(),
        })
    }

    /// The checksum of the weights that its model leaves out, if it leaves out any.
    pub fn base_sum(&self) -> Result<Option<String>, CliError> {
        let weights = self.weights.as_deref().map(Weights::open).transpose()?;
        Ok(weights.and_then(|weights| Some(weights.base()?.to_owned())))
    }

    pub fn pipeline<L: Layer<Side = ()>>(&self, layers: Vec<L>) -> Result<Pipeline<L>, CliError> {
        let mut settings = self.settings.pipeline.clone();
        settings.check(layers.len())?;
        // Nothing is trained, so nothing is measured for it, or added up.
        settings.all_reduce = AllReduceSetting::Ring;
        if !matches!(settings.balance, BalanceSetting::Layers(_)) {
            settings.balance = BalanceSetting::Even;
        }
        let mut builder = settings.builder_with(layers, None)?;
        if let Some(communicator) = self.processes.communicator() {
            builder = builder.communicator(communicator.clone());
        }
        let mut pipeline = builder.build()?;
        let own = &self.settings.model;
        let open = match &self.weights {
            Some(file) => OpenWeights::open_below(file, &own.pretrained, &self.processes)?,
            None => OpenWeights::open(&own.pretrained, &self.processes)?,
        };
        let mut base = Base::default();
        if let Some(weights) = open {
            let model = (&own.model, self.settings.image_size());
            let weights = weights.for_model(pipeline.layers(), model, None)?;
            base = weights.load(&mut pipeline)?;
        }
        if let Some(weights) = &self.weights {
            let loaded = base.load_into(&mut pipeline, weights);
            loaded.map_err(|error| of_base(error, own.pretrained.from.as_deref()))?;
        }
        Ok(pipeline)
    }

    /// Other classes under the same numbers would only look like a bad model, and other samples like a worse or a better one.
    fn check_data<L: Layer<Side = ()>, T>(
        &self,
        model: &ModelWithData<L, T>,
    ) -> Result<(), CliError> {
        let names = model.classes().unwrap_or_default();
        let names: Vec<_> = names.lines().map(str::to_owned).collect();
        if let Some(changes) = changes(&of_classes(&self.classes), &of_classes(&names)) {
            return Err(usage!(
                "the model was trained on other classes: {changes}: use the data set that it was \
                 trained on, or one with the same classes"
            ));
        }
        let (Some(then), Some(source)) = (&self.data, &model.source) else {
            return Ok(());
        };
        let (mut then, mut now) = (then.clone(), source.fingerprint()?);
        for data in [&mut then, &mut now] {
            data.retain(|part, _| !part.starts_with("training"));
        }
        match changes(&then, &now) {
            Some(changes) => Err(usage!(
                "the data have changed since the model was trained: {changes}\n\
                 restore them, or name the data to score with --data-dir or --text"
            )),
            None => Ok(()),
        }
    }
}

struct Score<'a> {
    run: &'a TrainedRun,
    by_class: bool,
}

impl Work for Score<'_> {
    type Done = ();

    fn on<L: Layer<Side = ()>, T: Flow>(self, model: ModelWithData<L, T>) -> Result<(), CliError>
    where
        CrossEntropy: Objective<L::Output, T>,
    {
        let run = self.run;
        run.processes.agree(run.check_data(&model))?;
        let pipeline = run.pipeline(model.layers)?;
        let Some(source) = model.source else {
            return Ok(());
        };
        let samples = source.test_samples();
        let shown = (run.processes.is_first()).then(|| show_count("testing", "sample", samples));
        let shown = |samples| shown.iter().for_each(|shown| shown(samples));
        let batches = shared(&pipeline, || source.test(run.settings.training.batch_size));
        let task = (model.task)(&run.settings.training);
        let totals = evaluate(&pipeline, batches, &task, shown)?;
        let metrics = task.metrics(&totals);
        if !metrics.loss.is_finite() {
            return Err(usage!(
                "{}: the test loss is {}, so the model is of no use: its values are too large",
                run.file().display(),
                metrics.loss
            ));
        }
        let samples = totals.samples;
        let mut text = format!("{}: {metrics}\n", count(samples, "sample"));
        let mut json = json!({ "samples": samples, "test": metrics });
        if let Some(answers) = model.answers {
            let (right, all) = answers(&pipeline, run.settings.training.batch_size)?;
            text += &format!("{}\n", exact_line(right, all));
            json["exact_answers"] = json!({ "right": right, "all": all });
        }
        if self.by_class {
            let of_images = || usage!("--by-class is for models of images");
            let confusion = model.confusion.ok_or_else(of_images)?;
            let confusion = confusion(&pipeline, run.settings.training.batch_size)?;
            text += &table_of(&confusion);
            json["by_class"] = classes_of(&confusion);
            json["confusion"] = json!(confusion.counts);
        }
        output::print_either(run.json, || json, || text)?;
        Ok(())
    }
}

/// The classes that have samples: their number, samples and accuracy.
fn accuracies(confusion: &Confusion) -> impl Iterator<Item = (usize, u64, f64)> {
    let classes = 0..confusion.classes.len();
    classes.filter_map(|class| {
        confusion
            .accuracy(class)
            .map(|(all, share)| (class, all, share))
    })
}

fn classes_of(confusion: &Confusion) -> Value {
    let class = |(class, samples, accuracy): (usize, u64, f64)| json!({ "class": confusion.classes[class], "samples": samples, "accuracy": accuracy });
    accuracies(confusion).map(class).collect()
}

/// A row for each class; of few classes, with a column for each prediction.
fn table_of(confusion: &Confusion) -> String {
    let classes = confusion.classes.len();
    let columns = if classes <= MOST_COLUMNS { classes } else { 0 };
    let mut table = Table::new(">#|class|>samples|>accuracy");
    (0..columns).for_each(|said| table.column(&format!(">as {said}")));
    for (class, samples, accuracy) in accuracies(confusion) {
        let mut row = vec![
            class.to_string(),
            confusion.classes[class].clone(),
            samples.to_string(),
            format!("{:.1} %", 100.0 * accuracy),
        ];
        row.extend((0..columns).map(|said| confusion.samples(class, said).to_string()));
        table.row(row);
    }
    let mut text = format!("\n{table}");
    if columns == 0 {
        let mut table = Table::new("class|predicted as|>samples");
        for count in confusion.mistakes().into_iter().take(MOST_COLUMNS) {
            let [label, said] =
                [count.label, count.said].map(|class| confusion.classes[class].clone());
            table.row(vec![label, said, count.samples.to_string()]);
        }
        text += &format!("\n{table}");
    }
    text
}
