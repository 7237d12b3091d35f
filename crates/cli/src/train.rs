//! `stovepipe train`.

mod dry_run;
mod messages;
mod prediction;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
};

use clap::{ArgMatches, Args, Command, FromArgMatches};
use stovepipe::{
    pipeline::{CrossEntropy, Flow, Layer, Measured, Objective, Pipeline},
    train::{Progress, RunFolder, Source, Task, TrainError, Trainer, checkpoint::Checkpoints},
};
use stovepipe_report::Report;

use self::{
    dry_run::DryRun,
    messages::{print_stages, print_summary, print_what_is_kept, resumed_lines},
    prediction::{found, measure, memory_lines, predict},
};
use crate::{
    data::AnyDataSet,
    error::CliError,
    files::{CONFIG, TOKENIZER},
    hardware, memory_check,
    pretrained::OpenWeights,
    settings::Settings,
    work::{Epilogue, Load, ModelWithData, Work, with_model},
};

/// The exit status of an interrupted process: 128 and the number of the signal.
const INTERRUPTED: u8 = 130;

/// What to train from, and where to write it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Files")]
struct TrainFlags {
    /// Settings to start from, such as a run's config.toml; flags change them
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A plan of `plan --out`: cut, schedule, micro-batches, recomputation
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// A machine file of `devices --out`: a worker for each device
    #[arg(long, value_name = "FILE", conflicts_with = "plan")]
    machine: Option<PathBuf>,
    /// Folder for the run's files [default: runs/train-1, or the next free number]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Resume the run in --out from its newest checkpoint, or start it if there is none
    #[arg(long, requires = "out", conflicts_with = "dry_run")]
    resume: bool,
    /// Print what each layer costs and what each stage gets, without training
    #[arg(long, help_heading = None)]
    dry_run: bool,
}

/// The subcommand and its flags.
pub fn command() -> Command {
    let command = TrainFlags::augment_args(Command::new("train"));
    // The settings' own documentation would be the text otherwise.
    Settings::augment(command)
        .about("Train a model")
        .long_about(None)
}

/// Trains, or prints the stages.
pub fn main(matches: &ArgMatches) -> Result<ExitCode, CliError> {
    let flags = TrainFlags::from_arg_matches(matches)?;
    // A resumed run has its own settings; flags change them.
    let out = flags.out.as_deref().filter(|_| flags.resume);
    let folder = out.and_then(RunFolder::find);
    let own =
        |name| (folder.as_ref().map(|folder| folder.join(name))).filter(|path| path.is_file());
    let own_config = own(CONFIG);
    let config = flags.config.as_deref().or(own_config.as_deref());
    let (plan, machine) = (flags.plan.as_deref(), flags.machine.as_deref());
    let mut settings = Settings::read(config, plan, machine, matches)?;
    settings.training.check()?;
    let mut data = settings.data.clone();
    // The file that a run was started with may have changed, or be gone.
    let is_own = matches.get_one::<PathBuf>("tokenizer").is_none();
    if let (AnyDataSet::Text(text), Some(copy)) = (&mut data, own(TOKENIZER).filter(|_| is_own)) {
        text.tokenizer = Some(copy);
    }
    settings.resolve_vocabulary(&data)?;
    // A checkpoint has its own weights.
    let has_checkpoint = match &folder {
        Some(folder) => !Checkpoints::of(folder).list()?.is_empty(),
        None => false,
    };
    let weights = if has_checkpoint {
        None
    } else {
        OpenWeights::open(&settings.model.pretrained)?
    };
    let (model, seed) = ((&settings.model.model, &data), settings.training.seed);
    if flags.dry_run {
        // Data that are named must be right; without them, a model can still be inspected.
        let load = if data.is_located() {
            Load::Parts
        } else {
            Load::Nothing
        };
        with_model(model, seed, load, DryRun(&settings))?;
        return Ok(ExitCode::SUCCESS);
    }
    eprint!("{}", hardware::hints());
    let path = flags
        .out
        .unwrap_or_else(|| RunFolder::next(Path::new("runs"), "train"));
    let train = Train {
        settings: &settings,
        path: &path,
        resume: flags.resume,
        weights,
    };
    with_model(model, seed, Load::Parts, train)
}

/// Trains, and writes a folder.
struct Train<'a> {
    settings: &'a Settings,
    /// The run's folder.
    path: &'a Path,
    resume: bool,
    /// Weights to start from.
    weights: Option<OpenWeights>,
}

impl Work for Train<'_> {
    type Done = ExitCode;

    fn on<L, T>(mut self, mut model: ModelWithData<L, T>) -> Result<ExitCode, CliError>
    where
        L: Layer<Side = ()>,
        T: Flow,
        CrossEntropy: Objective<L::Output, T>,
    {
        let settings = self.settings;
        model.layers = settings.training.freeze.apply(model.layers)?;
        let folder = self.folder()?;
        settings.pipeline.check(model.layers.len())?;
        check_batch(settings, model.samples)?;
        memory_check::of_run(&settings.pipeline, &settings.training, &model.layers)?;
        let measured = measure(settings, &model)?;
        let classes = model.classes();
        let mut pipeline = pipeline(settings, model.layers, &measured)?;
        if let Some(weights) = self.weights.take() {
            let own = &settings.model.model;
            let names = (own.head(), own.names_elsewhere());
            eprint!(
                "{}",
                weights.load(&mut pipeline, names, classes.as_deref())?
            );
        }
        let task = (model.task)(&settings.training);
        let trainer = self.trainer(pipeline, task, &folder)?;
        folder.write_toml(CONFIG, settings)?;
        for (name, content) in model.files {
            folder.write(name, &content)?;
        }
        print_stages(trainer.pipeline());
        eprintln!("writing files to {}", self.path.display());
        let source = model.source.ok_or(TrainError::EmptySet("training"))?;
        run(trainer, &*source, folder, model.epilogue)
    }
}

impl Train<'_> {
    /// The run's folder, a new one or the one to resume.
    fn folder(&self) -> Result<RunFolder, CliError> {
        let folder = if self.resume {
            RunFolder::resume(self.path)?
        } else {
            RunFolder::create(self.path)?
        };
        check_same_run(&folder, self.settings)?;
        Ok(folder)
    }

    /// A trainer of a pipeline, which continues the run if it is resumed.
    fn trainer<L: Layer<Side = ()>>(
        &self,
        pipeline: Pipeline<L>,
        task: Task<CrossEntropy>,
        folder: &RunFolder,
    ) -> Result<Trainer<L, CrossEntropy>, CliError> {
        let has_checkpoint = !folder.checkpoints().list()?.is_empty();
        let mut trainer = Trainer::new(pipeline, task, self.settings.training.clone())?;
        if self.resume {
            let resumed = trainer.resume(folder)?;
            eprint!("{}", resumed_lines(&resumed, self.path));
            if has_checkpoint && resumed.checkpoint.is_none() {
                return Err(CliError::AllDamaged(folder.path().to_owned()));
            }
        }
        Ok(trainer)
    }
}

/// Refuses mini-batches that are larger than the training set.
fn check_batch(settings: &Settings, samples: usize) -> Result<(), TrainError> {
    let batch_size = settings.training.batch_size;
    if batch_size > samples {
        return Err(TrainError::BatchTooLarge {
            batch_size,
            samples,
        });
    }
    Ok(())
}

/// Refuses to resume with another model or other data than those of the run, if it has a checkpoint.
fn check_same_run(folder: &RunFolder, settings: &Settings) -> Result<(), CliError> {
    let config = folder.file(CONFIG);
    if !config.is_file() || folder.checkpoints().list()?.is_empty() {
        return Ok(());
    }
    let before = Settings::load(&config)?;
    let what = if before.model != settings.model {
        "model"
    } else if !before.data.is_same(&settings.data) {
        "data"
    } else {
        return Ok(());
    };
    let folder = folder.path().to_owned();
    Err(CliError::OtherRun { folder, what })
}

/// The model in stages, if it fits.
fn pipeline<L: Layer>(
    settings: &Settings,
    layers: Vec<L>,
    measured: &Measured,
) -> Result<Pipeline<L>, CliError> {
    let builder = settings.pipeline.builder_with(layers, Some(measured))?;
    let forecast = predict(settings, &builder, measured)?;
    eprint!("{}", memory_lines(settings, &forecast));
    settings.pipeline.check_memory(&forecast)?;
    let builder = builder.balance(found(&forecast));
    Ok(builder.seed(settings.training.seed).build()?)
}

/// Trains, and writes all files of a run.
fn run<L, T>(
    mut trainer: Trainer<L, CrossEntropy>,
    source: &dyn Source<L::Input, T>,
    folder: RunFolder,
    epilogue: Option<Epilogue<L>>,
) -> Result<ExitCode, CliError>
where
    L: Layer<Side = ()>,
    L::Input: 'static,
    T: Flow,
    CrossEntropy: Objective<L::Output, T>,
{
    stop_on_interrupt(trainer.end_after_step())?;
    let summary = trainer.run(source, &folder, Progress::new);
    let summary = summary.inspect_err(|_| print_what_is_kept(&folder))?;
    let remark = match epilogue {
        Some(epilogue) => epilogue(&trainer, &folder)?,
        None => None,
    };
    let report = Report::read(&folder.file(""))?;
    folder.write("report.html", report.to_html().as_bytes())?;
    let path = folder.finish()?;
    print_summary(&summary, remark.as_deref(), &path);
    if summary.stopped {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(ExitCode::SUCCESS)
}

/// The first Ctrl-C ends training after the current step; the second ends the program.
fn stop_on_interrupt(stop: impl Fn() + Send + 'static) -> Result<(), CliError> {
    let asked = AtomicBool::new(false);
    ctrlc::set_handler(move || {
        if asked.swap(true, Ordering::SeqCst) {
            std::process::exit(INTERRUPTED.into());
        }
        eprintln!(
            "stopping after this step: saving and testing what was trained (Ctrl-C again to end at once)"
        );
        stop();
    })?;
    Ok(())
}
