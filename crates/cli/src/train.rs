//! `stovepipe train`.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
};

use burn::{
    data::{dataloader::batcher::Batcher, dataset::Dataset},
    tensor::{Int, Tensor},
};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use stovepipe::{
    pipeline::{Balance, Pipeline, PipelineBuilder, StopHandle},
    plan::{Forecast, Machine, MemoryUse, Profile},
    train::{
        BalanceSetting, Data, DeviceMemory, Progress, RunFolder, Source, Summary, Trainer,
        show_layers,
    },
};
use stovepipe_amoebanet::AmoebaLayer;

use crate::{
    allocated,
    data::digits,
    error::CliError,
    output,
    settings::Settings,
    stage_table::{Costs, stage_table},
};

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
        .arg(path("out").value_name("DIR").help(
            "Folder for the run's files [default: runs/train-1, or the next number that is free]",
        ))
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
    let settings = Settings::read(path("config"), path("plan"), matches)?;
    settings.training.check()?;
    if matches.get_flag("dry-run") {
        return dry_run(&settings).map(|()| ExitCode::SUCCESS);
    }
    match settings.data.cifar_labels() {
        None => train(&settings, &digits()?, path("out")),
        Some(labels) => {
            let data = settings.data.cifar(labels, settings.training.seed)?;
            train(&settings, &data, path("out"))
        }
    }
}

/// Prints what each layer costs and what each stage is given.
fn dry_run(settings: &Settings) -> Result<(), CliError> {
    // A folder that is named should be right; without one, a model can still be looked at.
    if let (Some(labels), Some(_)) = (settings.data.cifar_labels(), &settings.data.data_dir) {
        settings.data.cifar(labels, settings.training.seed)?;
    }
    let layers = settings.model.layers(settings.data.classes())?;
    let pipeline = &settings.pipeline;
    pipeline.check(layers.len())?;
    let profile = match pipeline.balance {
        BalanceSetting::Even => None,
        _ => {
            let samples = settings.data.usual_samples();
            Some(measure(settings, &layers, samples)?)
        }
    };
    let mut builder = pipeline.builder_with(layers.clone(), profile.as_ref())?;
    let forecast = match &profile {
        Some(profile) => {
            let forecast = forecast(settings, &builder, profile)?;
            builder = builder.balance(found(&forecast));
            Some(forecast)
        }
        None => None,
    };
    let costs = match (&profile, &pipeline.balance) {
        (Some(profile), BalanceSetting::Size) => Costs::Memory(profile),
        (Some(profile), _) => Costs::Time(profile),
        (None, _) => Costs::Parameters,
    };
    let workers = builder.workers()?;
    let mut text = stage_table(&layers, &builder.cut()?, &workers, &pipeline.devices, costs);
    if let Some(forecast) = &forecast {
        text += &format!(
            "\nforetold: {} a step without the optimizer, bubble {:.1} %\n",
            output::seconds(forecast.step_time),
            100.0 * forecast.bubble
        );
        text += &memory_lines(settings, forecast);
    }
    output::print(&text);
    Ok(())
}

/// Measures what each layer costs for a micro-batch.
fn measure(
    settings: &Settings,
    layers: &[AmoebaLayer],
    samples: usize,
) -> Result<Profile, CliError> {
    let sample = settings.sample(samples);
    let profiler = settings.pipeline.profiler()?.counting(allocated);
    let shown = show_layers("a micro-batch", layers.len());
    Ok(profiler.on_progress(shown).measure(layers, sample)?)
}

/// What can be said of the run beforehand.
fn forecast(
    settings: &Settings,
    builder: &PipelineBuilder<AmoebaLayer>,
    profile: &Profile,
) -> Result<Forecast, CliError> {
    let machine = Machine::uniform(settings.pipeline.stages);
    let state = settings.training.optimizer_state();
    Ok(builder.forecast(profile, &machine, state)?)
}

/// The cut that was found for a forecast, so that it is not sought again.
fn found(forecast: &Forecast) -> Balance {
    Balance::Layers(forecast.balance.clone())
}

/// What each worker keeps, and each device has to hold.
fn memory_lines(settings: &Settings, forecast: &Forecast) -> String {
    let bytes = output::bytes;
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

fn train<I, D, B>(
    settings: &Settings,
    data: &Data<I, D, B>,
    out: Option<&Path>,
) -> Result<ExitCode, CliError>
where
    I: 'static,
    D: Dataset<I> + 'static,
    B: Batcher<I, (Tensor<4>, Tensor<1, Int>)> + 'static,
{
    let samples = data.training_samples();
    let path = match out {
        Some(path) => path.to_owned(),
        None => RunFolder::next(Path::new("runs"), "train"),
    };
    let folder = RunFolder::create(&path)?;
    let layers = settings.model.layers(settings.data.classes())?;
    settings.pipeline.check(layers.len())?;
    let profile = measure(settings, &layers, samples)?;
    let builder = settings.pipeline.builder_with(layers, Some(&profile))?;
    let forecast = forecast(settings, &builder, &profile)?;
    eprint!("{}", memory_lines(settings, &forecast));
    settings.pipeline.check_memory(&forecast)?;
    let builder = builder.balance(found(&forecast));
    let pipeline = builder.seed(settings.training.seed).build()?;
    folder.write_toml("config.toml", settings)?;
    print_stages(&pipeline);
    eprintln!("files go to {}", path.display());

    stop_on_interrupt(pipeline.stop_handle())?;
    let mut trainer = Trainer::new(pipeline, settings.training.clone())?;
    let summary = trainer.run(data, &folder, Progress::new)?;
    let path = folder.finish()?;
    print_summary(&summary, &path);
    Ok(match summary.stopped {
        true => ExitCode::from(INTERRUPTED),
        false => ExitCode::SUCCESS,
    })
}

/// The first Ctrl-C ends training after the step under way; the second ends the program.
fn stop_on_interrupt(stop: StopHandle) -> Result<(), CliError> {
    let asked = AtomicBool::new(false);
    ctrlc::set_handler(move || {
        if asked.swap(true, Ordering::SeqCst) {
            std::process::exit(INTERRUPTED.into());
        }
        eprintln!("stopping: testing and saving what was trained (Ctrl-C again to end at once)");
        stop.stop();
    })?;
    Ok(())
}

fn print_stages(pipeline: &Pipeline<AmoebaLayer>) {
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

fn print_summary(summary: &Summary, path: &Path) {
    println!(
        "test accuracy {:.2} %, loss {:.4} after {} epochs and {:.1} s \
         ({:.0} samples/s, bubble {:.1} %)",
        100.0 * summary.test.accuracy,
        summary.test.loss,
        summary.epochs,
        summary.seconds,
        summary.samples_per_second,
        100.0 * summary.bubble
    );
    println!("model, metrics and timeline in {}", path.display());
}
