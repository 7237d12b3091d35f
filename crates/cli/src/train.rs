//! `stovepipe train`.

mod dry_run;
mod fit;
mod lost;
mod memory_picture;
mod messages;
mod prediction;
mod signals;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{ArgMatches, Args, Command, FromArgMatches};
use stovepipe::{
    pipeline::{Balance, CrossEntropy, Flow, Layer, Measured, Objective, Pipeline},
    train::{
        Processes, Progress, RunFolder, Source, Summary, Task, TrainError, TrainSettings, Trainer,
        checkpoint::{Checkpoint, Checkpoints},
        data,
        run::check_resume,
        settings::{AllReduceSetting, AvailableMemory, BalanceSetting, cores},
    },
};
use stovepipe_report::Report;
use toml::Table;

pub use self::signals::INTERRUPTED;
use self::{
    dry_run::DryRun,
    fit::{Fit, Open},
    lost::OnDeviceLost,
    memory_picture::MemoryPicture,
    messages::{
        changed_kind, experimental, print_stages, print_summary, resume_command, resumed_lines,
        unfinished, writing_line,
    },
    prediction::{measure, rest_lines},
};
use crate::{
    config::{check_numbers, portable},
    error::{CliError, usage},
    files::{CONFIG, TOKENIZER, has_no_weights},
    flags, hardware, memory_check, output,
    pretrained::{OpenWeights, of_base},
    settings::{Settings, fit_base},
    work::{Epilogue, Load, ModelWithData, SourceOf, Work, with_model},
};

/// The folder of runs without --out.
const RUNS: &str = "runs";
const MEMORY: &str = "memory.svg";
/// Batches of a quick check.
const QUICK: usize = 2;

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
    /// Resume the run in --out from its newest checkpoint, or start it if there is none; without --out,
    /// resume the newest run in runs
    #[arg(long, conflicts_with = "dry_run")]
    resume: bool,
    /// Choose schedule and recomputation, where not given, so that the run fits the devices: auto
    #[arg(long, value_name = "auto", value_parser = ["auto"], help_heading = "Pipeline")]
    memory: Option<String>,
    /// Measure layers again, also those that were measured before
    #[arg(long)]
    remeasure: bool,
    /// Count the bytes of one of the first mini-batches over time, and draw them in memory.svg next to the prediction
    #[arg(long, conflicts_with = "dry_run")]
    measure_memory: bool,
    /// Try two batches of everything: training, test and all files, which are then removed
    #[arg(long, conflicts_with_all = ["resume", "dry_run"])]
    quick_check: bool,
    /// What to do if a device is lost, or hangs for the time of --stall-timeout
    #[arg(
        long,
        value_enum,
        default_value = "stop",
        conflicts_with = "dry_run",
        help_heading = "Pipeline"
    )]
    on_device_lost: OnDeviceLost,
    /// Start mpirun with this many processes on this machine, which share the stages
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "dry_run",
        help_heading = "Pipeline"
    )]
    processes: Option<usize>,
    /// Print what each layer costs and what each stage gets, without training
    #[arg(long, help_heading = None)]
    dry_run: bool,
}

pub fn command() -> Command {
    let command = TrainFlags::augment_args(Command::new("train"));
    // The settings' own documentation would be the text otherwise.
    flags::finished(Settings::augment(command))
        .about("Train a model")
        .long_about(None)
}

pub fn main(matches: &ArgMatches, processes: &Processes) -> Result<ExitCode, CliError> {
    let mut flags = TrainFlags::from_arg_matches(matches)?;
    if flags.dry_run && processes.size() > 1 {
        return Err(usage!("--dry-run: start it in one process"));
    }
    if flags.on_device_lost == OnDeviceLost::Continue && processes.size() > 1 {
        return Err(usage!("{} continue is for one process", lost::FLAG));
    }
    let mut run = None;
    let settings = Settings::shared(processes, matches, || {
        let (found, settings) = find(&mut flags, matches)?;
        run = Some(found);
        Ok(settings)
    });
    let mut settings = settings?;
    let pipeline = &settings.pipeline;
    if pipeline.all_reduce == AllReduceSetting::Mpi
        && pipeline.workers() > pipeline.stages
        && processes.size() == 1
        && !flags.dry_run
    {
        return Err(usage!(
            "--all-reduce mpi is for replicas in several processes: start these with --processes, or \
             use --all-reduce ring"
        ));
    }
    let Found {
        folder,
        newest,
        tokenizer,
        open,
    } = run.unwrap_or_default();
    let open = flags.memory.as_ref().map(|_| open);
    let mut data = settings.data.clone();
    if let Some(copy) = tokenizer {
        data.set_tokenizer(copy);
    }
    settings.resolve_vocabulary(&data)?;
    let pretrained = &settings.model.pretrained;
    let is_inspected = flags.dry_run && pretrained.from.as_deref().is_some_and(has_no_weights);
    let is_over = (folder.as_deref().zip(newest.as_ref())).is_some_and(|(folder, newest)| {
        limit(folder, newest, &settings.training).is_ok_and(|limit| limit.is_some())
    });
    let needs_none = is_inspected || is_over;
    let file = newest.as_ref().map(|own| own.model(false));
    let weights = match processes.of_first((file, needs_none))? {
        (_, true) => None,
        // A checkpoint has its own weights, but for those below an adapter.
        (Some(file), _) => OpenWeights::open_below(&file, pretrained, processes)?,
        (None, _) => OpenWeights::open(pretrained, processes)?,
    };
    let model = (&settings.model.model, &data);
    let way = (settings.training.seed, settings.pipeline.micro_batches);
    let threads = settings.pipeline.cpu_threads(processes.rank())?;
    output::say(&hardware::shared_cores(threads, cores()));
    if flags.dry_run {
        // Data that are named must be right; without them, a model can still be inspected.
        let is_located = data.is_located();
        let load = if is_located {
            Load::Parts
        } else {
            Load::Nothing
        };
        let dry_run = DryRun {
            settings: &settings,
            remeasure: flags.remeasure,
            open,
        };
        with_model(model, way, load, dry_run)?;
        return Ok(ExitCode::SUCCESS);
    }
    let train = Train {
        settings: &settings,
        processes,
        out: flags.out.as_deref(),
        resume: flags.resume,
        remeasure: flags.remeasure,
        measure_memory: flags.measure_memory,
        open,
        quick_check: flags.quick_check,
        on_device_lost: flags.on_device_lost,
        newest: (newest.as_ref()).filter(|own| own.limit(&settings.training).is_ok()),
        weights,
    };
    let nothing_to_do = processes.by_first(|| match (&folder, &newest) {
        (Some(folder), Some(newest)) => {
            check_same_run(folder, &settings)?;
            let limit = limit(folder, newest, &settings.training)?;
            Ok::<_, CliError>(limit.map(|limit| {
                let path = folder.display();
                format!("nothing to do: {path} has reached {limit}: raise it to train further\n")
            }))
        }
        // Whether it can be made is found before data are loaded. It is made when training begins,
        // so that a program that is killed before leaves nothing.
        _ => {
            train.folder()?;
            Ok(None)
        }
    })?;
    if let Some(text) = nothing_to_do {
        output::say(&text);
        return Ok(ExitCode::SUCCESS);
    }
    output::say(&hardware::hints());
    with_model(model, way, Load::Parts, train)
}

/// What is there of a run to resume.
#[derive(Default)]
struct Found {
    folder: Option<PathBuf>,
    newest: Option<Checkpoint>,
    /// The run's own copy of its tokenizer: the file that it was started with may have changed, or be gone.
    tokenizer: Option<PathBuf>,
    /// What neither flags nor files say.
    open: Open,
}

/// Looks for the run to resume, and reads the settings.
fn find(flags: &mut TrainFlags, matches: &ArgMatches) -> Result<(Found, Settings), CliError> {
    if flags.resume && flags.out.is_none() {
        flags.out = Some(newest_run(Path::new(RUNS))?);
    }
    // A resumed run has its own settings; flags change them.
    let out = flags.out.as_deref().filter(|_| flags.resume);
    let folder = out.map(RunFolder::find_to_resume).transpose()?.flatten();
    let own =
        |name| (folder.as_ref().map(|folder| folder.join(name))).filter(|path| path.is_file());
    let own_config = own(CONFIG);
    let config = flags.config.as_deref().or(own_config.as_deref());
    let (plan, machine) = (flags.plan.as_deref(), flags.machine.as_deref());
    let mut settings = Settings::read(config, plan, machine, matches)?;
    if flags.quick_check {
        settings.training.epochs = 1;
    }
    settings.training.check()?;
    settings.pipeline.check_without_model()?;
    if own_config.is_none() {
        fit_base(&mut settings.model.model, &settings.pipeline.devices);
    }
    if flags.remeasure && !flags.dry_run && !settings.pipeline.measures() {
        let balance = &settings.pipeline.balance;
        return Err(usage!(
            "--remeasure: nothing is measured for --balance {balance} with these stages: leave it out"
        ));
    }
    let tokenizer = own(TOKENIZER).filter(|_| matches.get_one::<PathBuf>("tokenizer").is_none());
    let checkpoints = folder.as_deref().map(|path| Checkpoints::of(path).list());
    let newest = checkpoints.transpose()?.and_then(|mut all| all.pop());
    let found = Found {
        folder,
        newest,
        tokenizer,
        open: Open::of(matches, (config, plan)),
    };
    Ok((found, settings))
}

/// The run that was started or resumed last: then its configuration was written.
fn newest_run(parent: &Path) -> Result<PathBuf, CliError> {
    let entries = fs::read_dir(parent).into_iter().flatten();
    let runs = entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        let written = fs::metadata(path.join(CONFIG)).ok()?.modified().ok()?;
        Some((written, path))
    });
    let newest = runs.max().map(|(_, path)| path);
    newest.ok_or_else(|| {
        let parent = parent.display();
        usage!("there is no run in {parent} to resume: name one with --out")
    })
}

/// The limit that ended a complete run, as a flag. Its newest checkpoint must fit the settings.
fn limit(
    folder: &Path,
    newest: &Checkpoint,
    settings: &TrainSettings,
) -> Result<Option<String>, CliError> {
    let is_complete = || {
        let is_partial = folder.extension().is_some_and(|ending| ending == "partial");
        !is_partial && newest.check().is_ok()
    };
    match newest.limit(settings) {
        Err(error @ TrainError::OtherSetting { .. }) => Err(error.into()),
        Ok(Some((name, limit))) if is_complete() => {
            Ok(Some(format!("--{} {limit}", name.replace('_', "-"))))
        }
        // A damaged one is set aside when the run resumes.
        Ok(_) | Err(_) => Ok(None),
    }
}

struct Train<'a> {
    settings: &'a Settings,
    processes: &'a Processes,
    out: Option<&'a Path>,
    resume: bool,
    remeasure: bool,
    measure_memory: bool,
    /// What to choose so that it fits, if asked to.
    open: Option<Open>,
    quick_check: bool,
    on_device_lost: OnDeviceLost,
    /// The checkpoint that it resumes from, unless that is damaged.
    newest: Option<&'a Checkpoint>,
    /// Weights to start from.
    weights: Option<OpenWeights<'a>>,
}

impl Work for Train<'_> {
    type Done = ExitCode;

    fn on<L: Layer<Side = ()>, T: Flow>(
        mut self,
        mut model: ModelWithData<L, T>,
    ) -> Result<ExitCode, CliError>
    where
        CrossEntropy: Objective<L::Output, T>,
    {
        let (settings, processes) = (self.settings, self.processes);
        let (source, task) = processes.agree(self.check(&mut model))?;
        let available = settings.pipeline.available_memory(processes)?;
        let fits = memory_check::of_run(&available, settings, &model);
        processes.agree(fits)?;
        let batch_size = settings.training.batch_size;
        let weights = (self.weights.take()).map(|weights| {
            let own = &settings.model.model;
            let own = (own, settings.image_size());
            weights.for_model(&model.layers, own, model.classes().as_deref())
        });
        let weights = weights.transpose()?;
        let measures = settings.pipeline.measures() || self.open.is_some() || self.measure_memory;
        let measured = measures
            .then(|| measure(settings, &model, (self.remeasure, processes)))
            .transpose()?;
        let measured = measured.as_ref().map(|measured| (measured, &available));
        let mut settings = settings.clone();
        // What is chosen is a cut by hand.
        let is_by_time =
            [BalanceSetting::Auto, BalanceSetting::Time].contains(&settings.pipeline.balance);
        let (mut pipeline, memory) = pipeline(
            &mut settings,
            model.layers,
            measured,
            (self.open, processes),
        )?;
        let settings = &settings;
        let base = weights.map(|weights| weights.load(&mut pipeline));
        let trainer = Trainer::new(pipeline, task, settings.training.clone())?;
        let trainer = trainer.with_base(base.transpose()?.unwrap_or_default());
        let mut trainer = trainer.on_epoch(|folder| Ok(write_report(folder)?));
        if let Some((measured, _)) = measured
            && is_by_time
        {
            trainer = trainer.expecting(measured);
        }
        if self.measure_memory {
            let counter = memory_picture::counter(&settings.pipeline.devices);
            trainer = trainer.measuring_memory(counter);
        }
        let in_job = processes.size() > 1;
        signals::on_stop(in_job, trainer.end_after_step()).map_err(CliError::Signal)?;
        let folder = RunFolder::open_in(processes, || self.folder())?;
        if self.resume {
            let from = settings.model.pretrained.from.as_deref();
            resume(&mut trainer, &folder, (processes, from))?;
        }
        let config = portable(settings).map_err(CliError::file(&folder.file(CONFIG)))?;
        folder.write(CONFIG, config.as_bytes())?;
        if let Some(picture) = &memory {
            folder.write(MEMORY, picture.draw(&[])?.as_bytes())?;
        }
        for (name, content) in model.files {
            folder.write(name, &content)?;
        }
        print_stages(trainer.pipeline());
        output::say(&experimental(trainer.pipeline())?);
        output::say(&writing_line(&folder));
        if self.quick_check {
            let first = data::FirstBatches {
                source: &*source,
                batches: QUICK,
                batch_size,
            };
            let epilogue = (model.epilogue, QUICK);
            run(&mut trainer, &first, (&folder, memory.as_ref()), epilogue)?;
            processes.agree(folder.discard())?;
            output::print(
                "quick check passed: all worked for two batches, and nothing was kept\n",
            )?;
            return Ok(ExitCode::SUCCESS);
        }
        let epilogue = (model.epilogue, usize::MAX);
        let trained = run(&mut trainer, &*source, (&folder, memory.as_ref()), epilogue);
        let (summary, remark) = match trained {
            Ok(trained) => trained,
            Err(error)
                if self.on_device_lost == OnDeviceLost::Continue && !trainer.is_asked_to_end() =>
            {
                let layers = trainer.pipeline().layers().len();
                return lost::go_on(error, (settings, self.open), layers, folder);
            }
            Err(error) => return Err(unfinished(error, &folder, self.on_device_lost.flag())),
        };
        let path = processes.agree(folder.finish())?;
        print_summary(&summary, remark.as_deref(), &path)?;
        if summary.stopped {
            let command = resume_command(&path, self.on_device_lost.flag());
            output::say(&format!("to go on: {command}\n"));
            return Ok(ExitCode::from(signals::INTERRUPTED));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Train<'_> {
    /// What can fail without measuring fails before.
    fn check<L: Layer<Side = ()>, T: Flow>(
        &self,
        model: &mut ModelWithData<L, T>,
    ) -> Result<(SourceOf<L, T>, Task<CrossEntropy>), CliError> {
        let settings = self.settings;
        model.layers = settings
            .training
            .freeze
            .apply(std::mem::take(&mut model.layers))?;
        if let (Some(newest), Some(source)) = (&self.newest, &model.source) {
            newest.check_data(&source.fingerprint()?)?;
        }
        settings.pipeline.check(model.layers.len())?;
        check_numbers(settings)?;
        let source = model
            .source
            .take()
            .ok_or(TrainError::EmptySet("training"))?;
        let batch_size = settings.training.batch_size;
        data::check(&*source, batch_size)?;
        settings.pipeline.check_batches(batch_size, model.samples)?;
        let is_asynchronous = settings.pipeline.schedule.is_asynchronous();
        let batches = model.samples.div_ceil(batch_size);
        settings.training.check_windows(is_asynchronous, batches)?;
        settings.check_offload()?;
        let several = [
            (is_asynchronous, "windows of mini-batches"),
            (self.processes.size() > 1, "several processes"),
        ];
        let mut several = several
            .into_iter()
            .filter(|(are, _)| *are && self.measure_memory);
        if let Some((_, what)) = several.next() {
            return Err(usage!("--measure-memory is not for {what}"));
        }
        let task = (model.task)(&settings.training);
        if let Some(newest) = self.newest {
            check_resume(newest, &task, &settings.training, model.samples)?;
        }
        Ok((source, task))
    }

    /// The run's folder, a new one or the one to resume.
    fn folder(&self) -> Result<RunFolder, TrainError> {
        match self.out {
            Some(path) if self.resume => RunFolder::resume(path),
            Some(path) => RunFolder::create(path),
            None => RunFolder::create_next(Path::new(RUNS), "train"),
        }
    }
}

fn resume<L: Layer<Side = ()>>(
    trainer: &mut Trainer<L, CrossEntropy>,
    folder: &RunFolder,
    (processes, from): (&Processes, Option<&Path>),
) -> Result<(), CliError> {
    let checkpoints = processes.first(|| folder.checkpoints().list())?;
    let has_checkpoint = !checkpoints.unwrap_or_default().is_empty();
    let resumed = trainer
        .resume(folder)
        .map_err(|error| of_base(error, from))?;
    output::say(&resumed_lines(&resumed, folder.path()));
    if processes.of_first(has_checkpoint && resumed.checkpoint.is_none())? {
        let path = folder.path().display();
        let what = if folder.path().exists() {
            "start another run with another --out"
        } else {
            "run the same command again to start over"
        };
        return Err(usage!("all checkpoints in {path} are damaged: {what}"));
    }
    Ok(())
}

/// Refuses to resume with another model or other data than those of the run, and says if it goes on without a
/// flush, or again with one.
fn check_same_run(folder: &Path, settings: &Settings) -> Result<(), CliError> {
    let config = folder.join(CONFIG);
    if !config.is_file() {
        return Ok(());
    }
    let before = Settings::load(&config)?;
    let model = |own: &Settings| {
        let mut table = Table::try_from(own.model.located()).unwrap_or_default();
        if own.model.model.has_frozen_base() {
            // They may have moved: their checksum is compared, and their configuration below.
            table.remove("from");
            let hub = own.model.model.hub();
            let shown = hub.map(|hub| format!("{:?}", hub.config));
            table.insert("architecture".to_owned(), shown.unwrap_or_default().into());
        }
        table
    };
    let change = changed(&model(&before), &model(settings));
    let of_data = || {
        let [then, now] = [&before, settings].map(|own| own.data.fixed_settings());
        changed(&then, &now)
    };
    let Some(change) = change.or_else(of_data) else {
        let [then, now] = [&before, settings].map(|own| &own.pipeline.schedule);
        if then.is_asynchronous() != now.is_asynchronous() {
            output::say(&changed_kind(then, now));
        }
        return Ok(());
    };
    Err(usage!(
        "{} was started with other settings: {change}: resume with those, or start another run \
         with another --out",
        folder.display()
    ))
}

/// The first setting that differs, with both values.
fn changed(then: &Table, now: &Table) -> Option<String> {
    let names = ["model", "data"].into_iter();
    let mut keys = names.chain(then.keys().chain(now.keys()).map(String::as_str));
    let key = keys.find(|key| then.get(*key) != now.get(*key))?;
    let value = |table: &Table| {
        table
            .get(key)
            .map_or("not set".to_owned(), ToString::to_string)
    };
    Some(format!(
        "{key} was {} and is now {}",
        value(then),
        value(now)
    ))
}

/// Builds the pipeline, and predicts the memory that it will need if layers were measured. Changes the settings to
/// what is chosen for it.
fn pipeline<L: Layer>(
    settings: &mut Settings,
    layers: Vec<L>,
    measured: Option<(&Measured, &AvailableMemory)>,
    (open, processes): (Option<Open>, &Processes),
) -> Result<(Pipeline<L>, Option<MemoryPicture>), CliError> {
    let mut fit = None;
    if let Some(measured) = measured {
        // The first process decides, for all.
        let found = processes
            .by_first(|| fitting(settings, &layers, measured, (open, processes.size())))?;
        if open.is_some() {
            found.apply(&mut settings.pipeline);
        }
        fit = Some(found);
    }
    let rest = memory_check::at_rest(settings, &layers);
    let of_measured = measured.map(|(own, _)| own);
    let mut builder = (settings.pipeline).builder_with(layers, of_measured)?;
    let mut memory = None;
    match (fit, measured) {
        (Some(fit), Some((measured, available))) => {
            let cut = Balance::Layers(fit.balance);
            builder = builder.balance(cut).recompute(fit.recompute);
            let (schedule, costs) = builder.costs(measured, settings.training.optimizer_state())?;
            memory = MemoryPicture::new(schedule, costs, available.shares());
        }
        _ => {
            let (cut, workers) = (builder.cut()?, builder.workers()?);
            output::say(&rest_lines(settings, &rest, &cut, &workers));
        }
    }
    if let Some(communicator) = processes.communicator() {
        builder = builder.communicator(communicator.clone());
    }
    let pipeline = builder.seed(settings.training.seed).build()?;
    Ok((pipeline, memory))
}

/// How a run is cut and what it recomputes, if it fits.
fn fitting<L: Layer>(
    settings: &Settings,
    layers: &[L],
    measured: (&Measured, &AvailableMemory),
    (open, processes): (Option<Open>, usize),
) -> Result<Fit, CliError> {
    let (pipeline, forecast) = fit::decide(settings, layers, measured, open)?;
    output::say(&fit::lines(measured.1, (&pipeline, &forecast), open));
    match measured.1.check(&forecast.memory) {
        Ok(()) => Ok(Fit::new(&pipeline, &forecast)),
        Err(error) => Err(fit::advised(error, settings, layers, measured, processes)?),
    }
}

/// Trains, and writes the files that a trainer does not. What the epilogue tests, it tests on at most
/// so many batches.
fn run<L: Layer<Side = ()>, T: Flow>(
    trainer: &mut Trainer<L, CrossEntropy>,
    source: &dyn Source<L::Input, T>,
    (folder, memory): (&RunFolder, Option<&MemoryPicture>),
    (epilogue, most): (Option<Epilogue<L>>, usize),
) -> Result<(Summary, Option<String>), CliError>
where
    CrossEntropy: Objective<L::Output, T>,
{
    let summary = trainer.run(source, folder, Progress::new)?;
    if let (Some(picture), measured @ [_, ..]) = (memory, trainer.measured_memory()) {
        folder.write(MEMORY, picture.draw(measured)?.as_bytes())?;
    }
    let say = |line: &str| output::say(&format!("{line}\n"));
    let remark = trainer.with_room(folder, say, || -> Result<_, CliError> {
        let remark = (epilogue.as_ref()).map(|epilogue| epilogue(trainer, folder, most));
        let remark = remark.transpose()?.flatten();
        trainer.processes().first(|| write_report(folder))?;
        Ok(remark)
    })?;
    Ok((summary, remark))
}

/// Makes the page of a run's files so far.
fn write_report(folder: &RunFolder) -> Result<(), CliError> {
    let report = Report::read(&folder.file(""))?;
    Ok(folder.write("report.html", report.to_html().as_bytes())?)
}
