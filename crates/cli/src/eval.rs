//! `stovepipe eval`: how good a saved model is, and what it says.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use burn::tensor::{Tensor, activation::softmax};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, parser::ValueSource, value_parser};
use serde_json::json;
use stovepipe::{
    pipeline::{CrossEntropy, Flow, Layer, Objective, Pipeline},
    train::{
        RunFolder, Task,
        checkpoint::{Checkpoint, Checkpoints},
        evaluate, load_model,
        run::show_count,
        settings::BalanceSetting,
    },
};
use stovepipe_text::Tokenizer;
use stovepipe_transformer::{Sampling, continue_text};

use crate::{
    data::load_picture,
    error::CliError,
    output,
    settings::Settings,
    work::{
        CLASSES_FILE, ImageWork, Load, Model, TOKENIZER_FILE, Work, with_image_layers, with_model,
    },
};

/// Classes that are told of an image.
const CLASSES: usize = 5;

/// The subcommand and its flags.
pub fn command() -> Command {
    let number = |name: &'static str, value: &'static str, default: &'static str| {
        let arg = Arg::new(name).long(name).value_name(value);
        let arg = arg.default_value(default).help_heading("Saying");
        arg.requires("prompt")
    };
    let eval = Command::new("eval")
        .arg(
            Arg::new("run")
                .value_name("RUN")
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .help("Folder that `train` left; its settings are taken, and flags go over them"),
        )
        .arg(
            Arg::new("averaged")
                .long("averaged")
                .action(ArgAction::SetTrue)
                .help("Take the averaged weights"),
        )
        .arg(
            Arg::new("checkpoint")
                .long("checkpoint")
                .value_name("NAME")
                .help("Take the model of a checkpoint: its name, or newest, or best (in the test of its epoch)"),
        )
        .arg(
            Arg::new("all")
                .long("all")
                .action(ArgAction::SetTrue)
                .conflicts_with_all(["predict", "prompt", "held_out"])
                .help("Score all of a text, such as one that the model was not trained on"),
        )
        .arg(
            Arg::new("predict")
                .long("predict")
                .value_name("FILE")
                .num_args(1..)
                .value_parser(value_parser!(PathBuf))
                .conflicts_with("prompt")
                .help_heading("Saying")
                .help("Say what pictures show: the five likeliest classes of each"),
        )
        .arg(
            Arg::new("prompt")
                .long("prompt")
                .value_name("TEXT")
                .help_heading("Saying")
                .help("Go on from a text"),
        )
        .arg(
            number("tokens", "N", "200")
                .value_parser(value_parser!(usize))
                .help("Tokens to go on for"),
        )
        .arg(
            number("temperature", "T", "0.8")
                .value_parser(value_parser!(f64))
                .help("How freely tokens are chosen: 0 for the likeliest, 1 as the model has it"),
        )
        .arg(
            number("top-k", "K", "0")
                .value_parser(value_parser!(usize))
                .help("Choose among the likeliest so many tokens; 0 for all"),
        )
        .arg(
            Arg::new("json")
                .long("json")
                .action(ArgAction::SetTrue)
                .help("Print JSON"),
        );
    // The run's settings are the defaults, and there are none of training.
    let eval = Settings::augment_args(eval).mut_args(|arg| match is_foreign(&arg) {
        true => arg.hide(true),
        false => arg,
    });
    // The settings' own documentation would be the text otherwise.
    output::with_negative_numbers(eval)
        .about("Say how good a saved model is, what pictures show, or how a text goes on")
        .long_about(None)
}

/// Whether a flag says how a model is trained, and nothing of how it is tested.
fn is_foreign(arg: &Arg) -> bool {
    let is_training = arg.get_help_heading() == Some("Training");
    is_training && !["batch_size", "seed"].contains(&arg.get_id().as_str())
}

/// Without this, a flag would be taken and do nothing.
fn refuse_foreign(matches: &ArgMatches) -> Result<(), CliError> {
    let command = command();
    let is_given =
        |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let mut foreign = command.get_arguments().filter(|arg| is_foreign(arg));
    match foreign.find(is_given).and_then(Arg::get_long) {
        None => Ok(()),
        Some(name) => Err(CliError::NotOfEval {
            flag: format!("--{name}"),
        }),
    }
}

/// Scores, predicts or goes on.
pub fn main(matches: &ArgMatches) -> Result<ExitCode, CliError> {
    refuse_foreign(matches)?;
    let run = Run::open(matches)?;
    if let Some(files) = matches.get_many::<PathBuf>("predict") {
        run.predict(files.map(PathBuf::as_path))?;
    } else if let Some(prompt) = matches.get_one::<String>("prompt") {
        let number = |name| matches.get_one::<usize>(name).copied().unwrap_or(0);
        let sampling = Sampling {
            temperature: matches.get_one("temperature").copied().unwrap_or(1.0),
            top_k: Some(number("top-k")).filter(|&most| most > 0),
            seed: run.settings.training.seed,
        };
        run.go_on(prompt, number("tokens"), sampling)?;
    } else {
        let seed = run.settings.training.seed;
        let model = (&run.settings.model, &run.settings.data);
        let load = match matches.get_flag("all") {
            true => Load::Whole,
            false => Load::Parts,
        };
        with_model(model, seed, load, Score(&run))?;
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
    match found == own {
        true => Ok(()),
        false => Err(CliError::OtherTokenizer {
            path: path.to_owned(),
            found,
            own,
        }),
    }
}

/// The names of the classes that a run tells.
fn read_classes(path: PathBuf) -> Result<Vec<String>, CliError> {
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) => return Err(CliError::NoClasses { path, source }),
    };
    match text.is_empty() {
        true => Err(CliError::EmptyClasses(path)),
        false => Ok(text.lines().map(str::to_owned).collect()),
    }
}

/// A run that has been trained.
struct Run {
    settings: Settings,
    weights: PathBuf,
    /// The names of the classes that it tells; none if it tells none.
    classes: Vec<String>,
    json: bool,
}

impl Run {
    fn open(matches: &ArgMatches) -> Result<Self, CliError> {
        let run = matches
            .get_one::<PathBuf>("run")
            .map_or(Path::new(""), PathBuf::as_path);
        // A run under way has another name.
        let folder = &RunFolder::find(run).unwrap_or_else(|| run.to_owned());
        let config = folder.join("config.toml");
        if !config.is_file() {
            return Err(CliError::NoRun(folder.to_owned()));
        }
        let mut settings = Settings::read(Some(&config), None, None, matches)?;
        settings.training.check()?;
        // The run's own copy, wherever the one that it was made with is.
        let tokenizer = Some(folder.join(TOKENIZER_FILE)).filter(|path| path.is_file());
        match matches.get_one::<PathBuf>("tokenizer") {
            Some(other) => check_tokenizer(other, tokenizer.as_deref())?,
            None => settings.data.tokenizer = tokenizer.or(settings.data.tokenizer),
        }
        let is_averaged = matches.get_flag("averaged");
        let weights = match matches.get_one::<String>("checkpoint") {
            Some(name) => {
                let task = match settings.model.is_language() {
                    true => Task::language_model,
                    false => Task::classification,
                };
                let checkpoint = checkpoint(folder, name, &task(&settings.training))?;
                checkpoint.check()?;
                checkpoint.model(is_averaged)
            }
            None if is_averaged => folder.join("averaged.safetensors"),
            None => folder.join("model.safetensors"),
        };
        if is_averaged && !weights.is_file() {
            return Err(CliError::NoAverage(folder.to_owned()));
        }
        let classes = match settings.model.is_language() {
            true => Vec::new(),
            false => read_classes(folder.join(CLASSES_FILE))?,
        };
        Ok(Self {
            settings,
            weights,
            classes,
            json: matches.get_flag("json"),
        })
    }

    /// The trained model, in stages.
    fn pipeline<L: Layer<Side = ()>>(&self, layers: Vec<L>) -> Result<Pipeline<L>, CliError> {
        let mut settings = self.settings.pipeline.clone();
        settings.check(layers.len())?;
        // Nothing is trained, so nothing is measured for it.
        if !matches!(settings.balance, BalanceSetting::Layers(_)) {
            settings.balance = BalanceSetting::Even;
        }
        let mut pipeline = settings.builder_with(layers, None)?.build()?;
        load_model(&mut pipeline, &self.weights)?;
        Ok(pipeline)
    }

    fn predict<'a>(&self, files: impl Iterator<Item = &'a Path>) -> Result<(), CliError> {
        let model = (&self.settings.model, &self.settings.data);
        if self.settings.model.is_language() {
            return Err(CliError::OtherModel {
                flag: "--predict",
                what: "images",
                model: self.settings.model.name(),
            });
        }
        let files: Vec<_> = files.collect();
        with_image_layers(model, self.classes.len(), Predict { run: self, files })
    }

    /// Goes on from a text.
    fn go_on(&self, prompt: &str, tokens: usize, sampling: Sampling) -> Result<(), CliError> {
        let (model, data) = (&self.settings.model, &self.settings.data);
        if !model.is_language() {
            return Err(CliError::OtherModel {
                flag: "--prompt",
                what: "text",
                model: model.name(),
            });
        }
        let tokenizer = data.tokenizer()?;
        let pipeline = self.pipeline(model.language_model(&tokenizer)?)?;
        let begin = tokenizer.encode(prompt)?;
        let text = tokenizer.decode(&continue_text(&pipeline, &begin, tokens, &sampling)?)?;
        match self.json {
            true => output::print_json(&json!({ "prompt": prompt, "text": text })),
            false => output::print(&format!(
                "{}\n",
                output::visible(&(prompt.to_owned() + &text))
            )),
        }
        Ok(())
    }
}

/// A run's checkpoint by name.
fn checkpoint(run: &Path, name: &str, task: &Task<CrossEntropy>) -> Result<Checkpoint, CliError> {
    let checkpoints = Checkpoints::of(run);
    let mut all = checkpoints.list()?;
    let found = match name {
        "newest" => all.pop(),
        "best" => checkpoints.best(task)?,
        name => all.iter().find(|own| own.name() == name).cloned(),
    };
    found.ok_or_else(|| CliError::NoCheckpoint {
        run: run.to_owned(),
        name: name.to_owned(),
        there: all.iter().map(|own| own.name().to_owned()).collect(),
    })
}

/// Scores a model on the test set.
struct Score<'a>(&'a Run);

impl Work for Score<'_> {
    type Done = ();

    fn on<L, T>(self, model: Model<L, T>) -> Result<(), CliError>
    where
        L: Layer<Side = ()>,
        T: Flow,
        CrossEntropy: Objective<L::Output, T>,
    {
        let run = self.0;
        let names = model.files.iter().find(|(name, _)| *name == CLASSES_FILE);
        if let Some((_, names)) = names {
            run.check_classes(&String::from_utf8_lossy(names))?;
        }
        let pipeline = run.pipeline(model.layers)?;
        let Some(source) = model.source else {
            return Ok(());
        };
        let shown = show_count("testing", "samples", source.test_samples());
        let batches = source.test(run.settings.training.batch_size);
        let task = (model.task)(&run.settings.training);
        let totals = evaluate(&pipeline, batches, &task, shown)?;
        let metrics = task.metrics(&totals);
        match run.json {
            true => output::print_json(&json!({
                "samples": totals.samples,
                "test": metrics,
            })),
            false => output::print(&format!("{} samples: {metrics}\n", totals.samples)),
        }
        Ok(())
    }
}

impl Run {
    /// Other classes under the same numbers would only look like a bad model.
    fn check_classes(&self, found: &str) -> Result<(), CliError> {
        let found: Vec<_> = found.lines().collect();
        match self.classes.is_empty() || self.classes == found {
            true => Ok(()),
            false => Err(CliError::OtherClasses {
                expected: self.classes.len(),
                first: self.classes.first().cloned().unwrap_or_default(),
                found: found.len(),
            }),
        }
    }
}

/// Says what pictures show.
struct Predict<'a> {
    run: &'a Run,
    files: Vec<&'a Path>,
}

impl ImageWork for Predict<'_> {
    type Done = ();

    fn on<L>(self, layers: Vec<L>) -> Result<(), CliError>
    where
        L: Layer<Input = Tensor<4>, Output = Tensor<2>, Side = ()>,
    {
        let run = self.run;
        let pipeline = run.pipeline(layers)?;
        let mut all = Vec::new();
        for file in self.files {
            let logits = pipeline.infer(load_picture(&run.settings.data, file)?)?;
            let shares: Vec<f32> = softmax(logits, 1).into_data().iter().collect();
            let mut ranked: Vec<_> = run.classes.iter().zip(shares).collect();
            ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
            ranked.truncate(CLASSES);
            if !run.json {
                let said: Vec<_> = ranked
                    .iter()
                    .map(|(name, share)| format!("{name} {:.1} %", 100.0 * share))
                    .collect();
                output::print(&format!("{}: {}\n", file.display(), said.join(", ")));
            }
            let classes: Vec<_> = (ranked.iter())
                .map(|(class, share)| json!({ "class": class, "probability": share }))
                .collect();
            all.push(json!({ "file": file, "classes": classes }));
        }
        if run.json {
            output::print_json(&json!(all));
        }
        Ok(())
    }
}
