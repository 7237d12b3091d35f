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
    pipeline::{Pipeline, StopHandle},
    train::{BalanceSetting, Data, Progress, RunFolder, Summary, Trainer},
};
use stovepipe_amoebanet::AmoebaLayer;

use crate::{
    data::digits,
    error::CliError,
    plan::{Costs, plan_table},
    settings::Settings,
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
    let settings = Settings::read(path("config"), matches)?;
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
            eprintln!(
                "measuring {} layers (`--balance even` measures nothing); by time, forward passes \
                 that a stage computes again count twice in the cut",
                layers.len()
            );
            let samples = settings.data.usual_samples();
            Some(pipeline.profile(&layers, settings.sample(samples))?)
        }
    };
    let builder = pipeline.builder_with(layers.clone(), profile.as_ref())?;
    let costs = match (&profile, &pipeline.balance) {
        (Some(profile), BalanceSetting::Size) => Costs::Memory(profile),
        (Some(profile), _) => Costs::Time(profile),
        (None, _) => Costs::Parameters,
    };
    print!(
        "{}",
        plan_table(
            &layers,
            &builder.cut()?,
            &builder.workers()?,
            &pipeline.devices,
            costs
        )
    );
    Ok(())
}

fn train<I, D, B>(
    settings: &Settings,
    data: &Data<D, B>,
    out: Option<&Path>,
) -> Result<ExitCode, CliError>
where
    I: 'static,
    D: Dataset<I> + 'static,
    B: Batcher<I, (Tensor<4>, Tensor<1, Int>)> + 'static,
{
    let samples = data.check(settings.training.batch_size)?;
    let path = match out {
        Some(path) => path.to_owned(),
        None => RunFolder::next(Path::new("runs"), "train"),
    };
    let folder = RunFolder::create(&path)?;
    let pipeline = settings
        .pipeline
        .builder(settings.model.layers(settings.data.classes())?, || {
            settings.sample(samples)
        })?
        .seed(settings.training.seed)
        .build()?;
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
        100.0 * summary.test_accuracy,
        summary.test_loss,
        summary.epochs,
        summary.seconds,
        summary.samples_per_second,
        100.0 * summary.bubble
    );
    println!("model, metrics and timeline in {}", path.display());
}
