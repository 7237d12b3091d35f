//! `stovepipe eval`: scores a saved model, and lets it predict.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use burn::tensor::activation::softmax;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
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
use stovepipe_imagenet::Loading;
use stovepipe_text::Tokenizer;
use stovepipe_transformer::Sampling;

use crate::{
    data::{AnyDataSet, Contents},
    error::CliError,
    files::{AVERAGED, CLASSES, CONFIG, MODEL, TOKENIZER},
    models::{Classifier, LanguageModel, ModelWork, Sizes},
    output,
    settings::Settings,
    suggest,
    work::{Load, ModelWithData, Work, with_model},
};

/// Classes that are printed of an image.
const SHOWN: usize = 5;

const PREDICTING: &str = "Predicting";

/// Which model, and what to do with it.
#[derive(Clone, Debug, Args)]
struct EvalFlags {
    /// Folder that `train` wrote; flags change its settings
    run: PathBuf,
    /// Use the averaged weights
    #[arg(long)]
    averaged: bool,
    /// Use the model of a checkpoint: its name, newest, or best (by the test after its epoch)
    #[arg(long, value_name = "NAME")]
    checkpoint: Option<String>,
    /// Score all of a text, such as one that the model was not trained on
    #[arg(long, conflicts_with_all = ["predict", "prompt", "held_out"])]
    all: bool,
    /// Print the five most probable classes of each picture
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "prompt", help_heading = PREDICTING)]
    predict: Vec<PathBuf>,
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
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The subcommand and its flags.
pub fn command() -> Command {
    let command = EvalFlags::augment_args(Command::new("eval"));
    let command = Settings::augment_without_defaults(command);
    let command = output::hide(command, is_unused);
    // The settings' own documentation would be the text otherwise.
    output::with_negative_numbers(command)
        .about("Score a trained model, classify pictures, or continue a text")
        .long_about(None)
}

/// Whether a flag is about training alone.
fn is_unused(arg: &Arg) -> bool {
    let is_training = arg.get_help_heading() == Some("Training");
    is_training && !["batch_size", "seed"].contains(&arg.get_id().as_str())
}

/// Scores, predicts or continues a text.
pub fn main(matches: &ArgMatches) -> Result<ExitCode, CliError> {
    output::refuse_hidden(&command(), matches)?;
    let flags = EvalFlags::from_arg_matches(matches)?;
    let run = TrainedRun::open(&flags, matches)?;
    let Settings {
        data,
        model,
        training,
        ..
    } = &run.settings;
    let model = &model.model;
    let other = |flag, what| CliError::OtherModel {
        flag,
        what,
        model: model.name(),
    };
    match (data.contents(), &flags.prompt) {
        (Contents::Images(_), Some(_)) => return Err(other("--prompt", "text")),
        (Contents::Text(_), _) if !flags.predict.is_empty() => {
            return Err(other("--predict", "images"));
        }
        (Contents::Images(images), None) if !flags.predict.is_empty() => {
            let sizes = Sizes::of_images(images.image_size(), run.classes.len());
            let (run, files, view) = (&run, &flags.predict, images.view());
            model.build(&sizes, Predict { run, files, view })?;
        }
        (Contents::Text(text), Some(prompt)) => {
            let sizes = Sizes::of_text(text.tokenizer()?);
            let generate = Generate {
                run: &run,
                tokenizer: &sizes.tokenizer,
                prompt,
                tokens: flags.tokens,
                sampling: Sampling {
                    temperature: flags.temperature,
                    top_k: Some(flags.top_k).filter(|&most| most > 0),
                    seed: training.seed,
                },
            };
            model.build(&sizes, generate)?;
        }
        _ => {
            let load = if flags.all { Load::Whole } else { Load::Parts };
            with_model((model, data), training.seed, load, Score(&run))?;
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
        let path = path.to_owned();
        return Err(CliError::OtherTokenizer { path, found, own });
    }
    Ok(())
}

/// The names of the classes of a run.
fn read_classes(path: PathBuf) -> Result<Vec<String>, CliError> {
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) => return Err(CliError::NoClasses { path, source }),
    };
    if text.is_empty() {
        return Err(CliError::EmptyClasses(path));
    }
    Ok(text.lines().map(str::to_owned).collect())
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
    found.ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|own| own.name()).collect();
        CliError::NoCheckpoint {
            run: run.to_owned(),
            name: name.to_owned(),
            there: if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            },
            tip: suggest::tip(name, names.into_iter().chain(["newest", "best"])),
        }
    })
}

/// A run that has been trained.
struct TrainedRun {
    settings: Settings,
    weights: PathBuf,
    /// The names of the classes; empty for a language model.
    classes: Vec<String>,
    json: bool,
}

impl TrainedRun {
    fn open(flags: &EvalFlags, matches: &ArgMatches) -> Result<Self, CliError> {
        // The folder of an unfinished run has another name.
        let folder = &RunFolder::find(&flags.run).unwrap_or_else(|| flags.run.clone());
        let config = folder.join(CONFIG);
        if !config.is_file() {
            return Err(CliError::NoRun(folder.to_owned()));
        }
        let mut settings = Settings::read(Some(&config), None, None, matches)?;
        settings.training.check()?;
        if let AnyDataSet::Text(text) = &mut settings.data {
            // The run's own copy: the original may have changed.
            let own = Some(folder.join(TOKENIZER)).filter(|path| path.is_file());
            match matches.get_one::<PathBuf>("tokenizer") {
                Some(other) => check_tokenizer(other, own.as_deref())?,
                None => text.tokenizer = own.or(text.tokenizer.take()),
            }
        }
        let weights = match &flags.checkpoint {
            Some(name) => {
                let task = match settings.data.contents() {
                    Contents::Images(_) => Task::classification,
                    Contents::Text(_) => Task::language_model,
                };
                let checkpoint = checkpoint(folder, name, &task(&settings.training))?;
                checkpoint.check()?;
                checkpoint.model(flags.averaged)
            }
            None => folder.join(if flags.averaged { AVERAGED } else { MODEL }),
        };
        if flags.averaged && !weights.is_file() {
            return Err(CliError::NoAverage(folder.to_owned()));
        }
        let classes = match settings.data.contents() {
            Contents::Images(_) => read_classes(folder.join(CLASSES))?,
            Contents::Text(_) => Vec::new(),
        };
        Ok(Self {
            settings,
            weights,
            classes,
            json: flags.json,
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

    /// Other classes under the same numbers would only look like a bad model.
    fn check_classes(&self, found: &str) -> Result<(), CliError> {
        let found: Vec<_> = found.lines().collect();
        if self.classes.is_empty() || self.classes == found {
            return Ok(());
        }
        Err(CliError::OtherClasses {
            expected: self.classes.len(),
            first: self.classes.first().cloned().unwrap_or_default(),
            found: found.len(),
        })
    }
}

/// Scores a model on the test set.
struct Score<'a>(&'a TrainedRun);

impl Work for Score<'_> {
    type Done = ();

    fn on<L, T>(self, model: ModelWithData<L, T>) -> Result<(), CliError>
    where
        L: Layer<Side = ()>,
        T: Flow,
        CrossEntropy: Objective<L::Output, T>,
    {
        let run = self.0;
        if let Some(names) = model.classes() {
            run.check_classes(&names)?;
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
        if run.json {
            output::print_json(&json!({ "samples": totals.samples, "test": metrics }));
        } else {
            output::print(&format!("{} samples: {metrics}\n", totals.samples));
        }
        Ok(())
    }
}

/// Prints the most probable classes of pictures.
struct Predict<'a> {
    run: &'a TrainedRun,
    files: &'a [PathBuf],
    view: Loading,
}

impl ModelWork for Predict<'_> {
    type Done = ();

    fn classify<L: Classifier>(self, layers: Vec<L>) -> Result<(), CliError> {
        let run = self.run;
        let pipeline = run.pipeline(layers)?;
        let mut all = Vec::new();
        for file in self.files {
            let picture = self.view.load(file, &burn::tensor::Device::flex())?;
            let logits = pipeline.infer(picture)?;
            let shares: Vec<f32> = softmax(logits, 1).into_data().iter().collect();
            let mut ranked: Vec<_> = run.classes.iter().zip(shares).collect();
            ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
            ranked.truncate(SHOWN);
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

/// Continues a text.
struct Generate<'a> {
    run: &'a TrainedRun,
    tokenizer: &'a Tokenizer,
    prompt: &'a str,
    tokens: usize,
    sampling: Sampling,
}

impl ModelWork for Generate<'_> {
    type Done = ();

    fn classify<L: Classifier>(self, _: Vec<L>) -> Result<(), CliError> {
        Err(CliError::NotOfImages)
    }

    fn predict_text<L: LanguageModel>(self, layers: Vec<L>) -> Result<(), CliError> {
        let Self {
            run,
            tokenizer,
            prompt,
            ..
        } = self;
        let pipeline = run.pipeline(layers)?;
        let prompt_tokens = tokenizer.encode(prompt)?;
        let tokens = L::generate(&pipeline, &prompt_tokens, self.tokens, &self.sampling)?;
        let text = tokenizer.decode(&tokens)?;
        if run.json {
            output::print_json(&json!({ "prompt": prompt, "text": text }));
        } else {
            let text = output::visible(&(prompt.to_owned() + &text));
            output::print(&format!("{text}\n"));
        }
        Ok(())
    }
}
