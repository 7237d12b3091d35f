//! `stovepipe train`.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use stovepipe::{
    pipeline::{
        Balance, CrossEntropy, Flow, Layer, Measured, NamedDevice, Objective, Pipeline,
        PipelineBuilder, count_parameters,
    },
    plan::{Forecast, MemoryUse},
    schedule::format_bytes,
    train::{
        Progress, RunFolder, Source, Summary, Task, TrainError, Trainer,
        checkpoint::Checkpoints,
        run::{Resumed, show_layers},
        settings::{BalanceSetting, DeviceMemory, free_memory},
    },
};

use stovepipe_report::Report;

use crate::{
    allocated,
    error::CliError,
    memory_check, output,
    pretrained::Beginning,
    settings::Settings,
    stage_table::{Costs, stage_table},
    work::{CLASSES_FILE, Epilogue, Load, Model, TOKENIZER_FILE, Work, with_model},
};

/// The file of a run's settings.
const CONFIG: &str = "config.toml";

/// A process that was interrupted ends with 128 and the number of the signal.
const INTERRUPTED: u8 = 130;

/// The subcommand and its flags.
pub fn command() -> Command {
    let path = |name: &'static str| {
        let arg = Arg::new(name)
            .long(name)
            .value_parser(value_parser!(PathBuf));
        arg.help_heading("Files")
    };
    let train = Command::new("train")
        .arg(
            path("config")
                .value_name("FILE")
                .help("Settings to start from, such as a run's config.toml; flags go over them"),
        )
        .arg(
            path("plan").value_name("FILE").help(
                "A plan that `plan --out` wrote: cut, schedule, micro-batches, recomputation",
            ),
        )
        .arg(
            path("machine")
                .value_name("FILE")
                .conflicts_with("plan")
                .help("Devices, as `devices --out` wrote them: a worker for each"),
        )
        .arg(path("out").value_name("DIR").help(
            "Folder for the run's files [default: runs/train-1, or the next number that is free]",
        ))
        .arg(
            Arg::new("resume")
                .long("resume")
                .action(ArgAction::SetTrue)
                .requires("out")
                .conflicts_with("dry-run")
                .help_heading("Files")
                .help(
                    "Go on with the run in --out from its newest checkpoint; begin it if there is none",
                ),
        )
        .arg(
            Arg::new("dry-run")
                .long("dry-run")
                .action(ArgAction::SetTrue)
                .help("Print what each layer costs and what each stage is given, and stop"),
        );
    // The settings' own documentation would be the text otherwise.
    Settings::augment(train)
        .about("Train a model through a pipeline of stages")
        .long_about(None)
}

/// Trains, or prints the stages.
pub fn main(matches: &ArgMatches) -> Result<ExitCode, CliError> {
    let path = |name| matches.get_one::<PathBuf>(name).map(PathBuf::as_path);
    let (out, resume) = (path("out"), matches.get_flag("resume"));
    // A run goes on with its own settings; flags go over them.
    let folder = out.filter(|_| resume).and_then(RunFolder::find);
    let own =
        |name| (folder.as_ref().map(|folder| folder.join(name))).filter(|path| path.is_file());
    let own_config = own(CONFIG);
    let config = path("config").or(own_config.as_deref());
    let mut settings = Settings::read(config, path("plan"), path("machine"), matches)?;
    settings.training.check()?;
    let mut data = settings.data.clone();
    // The file that a run was begun with may have changed, or be gone.
    let is_own = matches.get_one::<PathBuf>("tokenizer").is_none();
    if let Some(copy) = own(TOKENIZER_FILE).filter(|_| is_own) {
        data.tokenizer = Some(copy);
    }
    settings.resolve_vocabulary(&data)?;
    // What goes on has weights of its own.
    let is_going_on = match &folder {
        Some(folder) => !Checkpoints::of(folder).list()?.is_empty(),
        None => false,
    };
    let beginning = match is_going_on {
        true => None,
        false => Beginning::open(&settings.model)?,
    };
    let (model, seed) = ((&settings.model, &data), settings.training.seed);
    if matches.get_flag("dry-run") {
        // Data that are named should be right; without them, a model can still be looked at.
        let load = match settings.data.is_named() {
            true => Load::Parts,
            false => Load::Nothing,
        };
        with_model(model, seed, load, DryRun(&settings))?;
        return Ok(ExitCode::SUCCESS);
    }
    let path = match out {
        Some(path) => path.to_owned(),
        None => RunFolder::next(Path::new("runs"), "train"),
    };
    let train = Train {
        settings: &settings,
        path: &path,
        resume,
        beginning,
    };
    with_model(model, seed, Load::Parts, train)
}

/// Prints what each layer costs and what each stage is given.
struct DryRun<'a>(&'a Settings);

impl Work for DryRun<'_> {
    type Done = ();

    fn on<L, T>(self, mut model: Model<L, T>) -> Result<(), CliError>
    where
        L: Layer<Side = ()>,
    {
        model.layers = self.0.training.freeze.apply(model.layers)?;
        let (settings, layers) = (self.0, &model.layers);
        let pipeline = &settings.pipeline;
        pipeline.check(layers.len())?;
        let (measured, why_not) = match check_room(settings, layers) {
            Ok(()) => (Some(measure(settings, &model)?), None),
            Err(why_not) => (None, Some(why_not)),
        };
        let mut builder = pipeline.builder_with(layers.clone(), measured.as_ref())?;
        let forecast = match &measured {
            Some(measured) => {
                let forecast = forecast(settings, &builder, measured)?;
                builder = builder.balance(found(&forecast));
                Some(forecast)
            }
            None => None,
        };
        let costs = match (&measured, &pipeline.balance) {
            (Some(measured), BalanceSetting::Size) => Costs::Memory(measured),
            (Some(measured), BalanceSetting::Even) => Costs::Parameters(Some(measured)),
            (Some(measured), _) => Costs::Time(measured),
            (None, _) => Costs::Parameters(None),
        };
        let (cut, workers) = (builder.cut()?, builder.workers()?);
        let mut text = stage_table(layers, &cut, &workers, &pipeline.devices, costs);
        match &forecast {
            Some(forecast) => {
                text += &format!(
                    "\nforetold: {} a step without the optimizer, bubble {:.1} %\n",
                    output::seconds(forecast.step_time),
                    100.0 * forecast.bubble
                );
                text += &memory_lines(settings, forecast);
            }
            None => text += &rest_lines(settings, layers, &cut, &workers),
        }
        if let Some(why_not) = why_not {
            text += &format!("DOES NOT FIT, so no layer was measured: {why_not}\n");
        }
        output::print(&text);
        Ok(())
    }
}

/// What workers keep between steps, where nothing was measured.
fn rest_lines<L: Layer>(
    settings: &Settings,
    layers: &[L],
    cut: &[usize],
    workers: &[usize],
) -> String {
    let state = settings.training.optimizer_state();
    let mut of_workers = vec![MemoryUse::default(); settings.pipeline.stages];
    let mut begin = 0;
    for (&count, &worker) in cut.iter().zip(workers) {
        let parameters: usize = layers[begin..begin + count]
            .iter()
            .map(count_parameters)
            .sum();
        // Parameters are single floats.
        let memory = MemoryUse::at_rest(4 * parameters as u64, state);
        of_workers[worker] = of_workers[worker] + memory;
        begin += count;
    }
    let bytes = format_bytes;
    let line = |(worker, memory): (usize, &MemoryUse)| {
        format!(
            "worker {worker} keeps {} besides activations: parameters {}, gradients {}, optimizer {}\n",
            bytes(memory.total()),
            bytes(memory.parameters),
            bytes(memory.gradients),
            bytes(memory.optimizer),
        )
    };
    of_workers.iter().enumerate().map(line).collect()
}

/// Makes sure that there is room for what a run keeps between steps, and for measuring. Workers on the CPU measure there.
fn check_room<L: Layer>(settings: &Settings, layers: &[L]) -> Result<(), CliError> {
    memory_check::at_rest(settings, layers)?;
    let is_cpu = |name: &String| {
        name.parse::<NamedDevice>()
            .is_ok_and(|device| device.is_cpu())
    };
    let uses_cpu = settings.pipeline.devices.iter().any(is_cpu);
    memory_check::to_measure(layers, free_memory().filter(|_| uses_cpu))
}

/// Measures what each layer costs for a micro-batch, on each device that is unlike the others.
fn measure<L: Layer<Side = ()>, T>(
    settings: &Settings,
    model: &Model<L, T>,
) -> Result<Measured, CliError> {
    let batch = settings.training.batch_size.min(model.samples);
    let samples = batch.div_ceil(settings.pipeline.micro_batches);
    let sample = (model.sample)(samples.max(1));
    settings.pipeline.measure(|device, profiler| {
        let shown = show_layers(&format!("a micro-batch on {device}"), model.layers.len());
        let profiler = profiler.counting(allocated).on_progress(shown);
        Ok(profiler.measure(&model.layers, sample.clone())?)
    })
}

/// What can be said of the run beforehand.
fn forecast<L: Layer>(
    settings: &Settings,
    builder: &PipelineBuilder<L>,
    measured: &Measured,
) -> Result<Forecast, CliError> {
    let state = settings.training.optimizer_state();
    Ok(builder.forecast(measured, state)?)
}

/// The cut that was found for a forecast, so that it is not sought again.
fn found(forecast: &Forecast) -> Balance {
    Balance::Layers(forecast.balance.clone())
}

/// What each worker keeps, and each device has to hold.
fn memory_lines(settings: &Settings, forecast: &Forecast) -> String {
    let bytes = format_bytes;
    let worker = |(worker, memory): (usize, &MemoryUse)| {
        format!(
            "worker {worker} keeps about {}: parameters {}, gradients {}, optimizer {}, inputs {}, activations {}\n",
            bytes(memory.total()),
            bytes(memory.parameters),
            bytes(memory.gradients),
            bytes(memory.optimizer),
            bytes(memory.inputs),
            bytes(memory.activations),
        )
    };
    let device = |memory: DeviceMemory| match memory.has {
        Some(has) if memory.needs > has => {
            format!(
                "{}: {} of {}: DOES NOT FIT\n",
                memory.device,
                bytes(memory.needs),
                bytes(has)
            )
        }
        Some(has) => format!(
            "{}: {} of {}: fits\n",
            memory.device,
            bytes(memory.needs),
            bytes(has)
        ),
        None => format!(
            "{}: {} of an unknown size (--device-memory)\n",
            memory.device,
            bytes(memory.needs)
        ),
    };
    let workers = forecast.memory.iter().enumerate().map(worker);
    let devices = settings.pipeline.device_memory(forecast).into_iter();
    workers.chain(devices.map(device)).collect()
}

/// Trains, and leaves a folder.
struct Train<'a> {
    settings: &'a Settings,
    /// Where the run will lie.
    path: &'a Path,
    resume: bool,
    /// What it begins with, if that is somebody else's.
    beginning: Option<Beginning>,
}

impl Work for Train<'_> {
    type Done = ExitCode;

    fn on<L, T>(mut self, mut model: Model<L, T>) -> Result<ExitCode, CliError>
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
        check_room(settings, &model.layers)?;
        let measured = measure(settings, &model)?;
        let mut pipeline = pipeline(settings, model.layers, &measured)?;
        if let Some(beginning) = self.beginning.take() {
            let classes = model.files.iter().find(|(name, _)| *name == CLASSES_FILE);
            let classes = classes.map(|(_, names)| String::from_utf8_lossy(names));
            eprint!("{}", beginning.load(&mut pipeline, classes.as_deref())?);
        }
        let task = (model.task)(&settings.training);
        let trainer = self.trainer(pipeline, task, &folder)?;
        folder.write_toml(CONFIG, settings)?;
        for (name, content) in model.files {
            folder.write(name, &content)?;
        }
        print_stages(trainer.pipeline());
        eprintln!("files go to {}", self.path.display());
        let source = model.source.ok_or(TrainError::EmptySet("training"))?;
        run(trainer, &*source, folder, model.epilogue)
    }
}

impl Train<'_> {
    /// The run's folder, new or found again.
    fn folder(&self) -> Result<RunFolder, CliError> {
        let folder = match self.resume {
            true => RunFolder::resume(self.path)?,
            false => RunFolder::create(self.path)?,
        };
        check_same_run(&folder, self.settings)?;
        Ok(folder)
    }

    /// A trainer of a pipeline, where the run goes on from if it does.
    fn trainer<L: Layer<Side = ()>>(
        &self,
        pipeline: Pipeline<L>,
        task: Task<CrossEntropy>,
        folder: &RunFolder,
    ) -> Result<Trainer<L, CrossEntropy>, CliError> {
        let is_going_on = !folder.checkpoints().list()?.is_empty();
        let mut trainer = Trainer::new(pipeline, task, self.settings.training.clone())?;
        if self.resume {
            let resumed = trainer.resume(folder)?;
            eprint!("{}", resumed_lines(&resumed, self.path));
            if is_going_on && resumed.checkpoint.is_none() {
                return Err(CliError::AllDamaged(folder.path().to_owned()));
            }
        }
        Ok(trainer)
    }
}

/// Refuses mini-batches that are larger than the training set.
fn check_batch(settings: &Settings, samples: usize) -> Result<(), TrainError> {
    let batch_size = settings.training.batch_size;
    match batch_size > samples {
        true => Err(TrainError::BatchTooLarge {
            batch_size,
            samples,
        }),
        false => Ok(()),
    }
}

/// The model in stages, if it fits.
fn pipeline<L: Layer>(
    settings: &Settings,
    layers: Vec<L>,
    measured: &Measured,
) -> Result<Pipeline<L>, CliError> {
    let builder = settings.pipeline.builder_with(layers, Some(measured))?;
    let forecast = forecast(settings, &builder, measured)?;
    eprint!("{}", memory_lines(settings, &forecast));
    settings.pipeline.check_memory(&forecast)?;
    let builder = builder.balance(found(&forecast));
    Ok(builder.seed(settings.training.seed).build()?)
}

/// Trains, and leaves all that a run leaves.
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
    let summary = summary.inspect_err(|_| say_what_is_kept(&folder))?;
    let remark = match epilogue {
        Some(epilogue) => epilogue(&trainer, &folder)?,
        None => None,
    };
    write_report(&folder)?;
    let path = folder.finish()?;
    print_summary(&summary, remark.as_deref(), &path);
    Ok(match summary.stopped {
        true => ExitCode::from(INTERRUPTED),
        false => ExitCode::SUCCESS,
    })
}

/// Refuses to go on with another model or other data than the run in a folder began with, if it has come to a checkpoint.
fn check_same_run(folder: &RunFolder, settings: &Settings) -> Result<(), CliError> {
    let config = folder.file(CONFIG);
    if !config.is_file() || folder.checkpoints().list()?.is_empty() {
        return Ok(());
    }
    let before = Settings::load(&config)?;
    let what = match () {
        () if before.model != settings.model => "model",
        () if !before.data.is_same_but_for_place(&settings.data) => "data",
        () => return Ok(()),
    };
    Err(CliError::OtherRun {
        folder: folder.path().to_owned(),
        what,
    })
}

/// What a training goes on from.
fn resumed_lines(resumed: &Resumed, path: &Path) -> String {
    let damaged = resumed.damaged.iter().map(|damaged| {
        let (path, reason) = (damaged.path.display(), &damaged.reason);
        format!("a checkpoint is damaged ({reason}) and put aside as {path}; the one before it is taken\n")
    });
    let begin = match &resumed.checkpoint {
        None => format!("no checkpoint in {}: beginning\n", path.display()),
        Some(checkpoint) => format!(
            "going on after {} epochs and {} mini-batches of the next, from {checkpoint}\n",
            resumed.epochs, resumed.batches
        ),
    };
    damaged.chain([begin]).collect()
}

/// The run as a page.
fn write_report(folder: &RunFolder) -> Result<(), CliError> {
    let report = Report::read(&folder.file(""))?;
    Ok(folder.write("report.html", report.to_html().as_bytes())?)
}

/// After an error.
fn say_what_is_kept(folder: &RunFolder) {
    let newest = folder.checkpoints().list().unwrap_or_default().pop();
    if let Some(newest) = newest {
        eprintln!(
            "what was trained until the checkpoint {} is kept: go on with --resume --out {}",
            newest.name(),
            folder.path().display()
        );
    }
}

/// The first Ctrl-C ends training after the step under way; the second ends the program.
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

fn print_stages<L: Layer>(pipeline: &Pipeline<L>) {
    for (index, stage) in pipeline.stages().iter().enumerate() {
        eprintln!(
            "stage {index} on {} (worker {}): layers {}–{}, {} parameters",
            stage.device_name,
            stage.worker,
            stage.layers.start,
            stage.layers.end - 1,
            stage.parameters
        );
    }
}

fn print_summary(summary: &Summary, remark: Option<&str>, path: &Path) {
    let mut text = format!(
        "test {} after {} epochs and {:.1} s ({:.0} samples/s, bubble {:.1} %)\n",
        summary.test,
        summary.epochs,
        summary.seconds,
        summary.samples_per_second,
        100.0 * summary.bubble
    );
    if let Some(averaged) = &summary.averaged {
        text += &format!("with averaged weights {averaged}\n");
    }
    text += &output::visible(remark.unwrap_or_default());
    text += &format!("model, metrics and timeline in {}\n", path.display());
    output::print(&text);
}
