//! What checkpoints cost.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench saving`

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use burn::tensor::{Device, Int, Tensor};
use clap::Args;
use serde_json::json;
use stovepipe::{
    pipeline::{CrossEntropy, Flow, Layer, Objective},
    train::{
        Batches, EpochPass, PipelineSettings, Progress, RunFolder, Source, Task, TrainSettings,
        Trainer, settings::BalanceSetting,
    },
};
use stovepipe_amoebanet::AmoebaNetDConfig;
use stovepipe_benches::{
    Failure,
    measure::Seconds,
    report::{Report, Table, column, number},
};
use stovepipe_transformer::LmConfig;

/// What checkpoints cost
#[derive(Args)]
pub struct Flags {
    /// Folder for the figures, as JSON
    #[arg(long, value_name = "FOLDER", default_value = "benches/results")]
    out: PathBuf,
    /// Folder to save in, for a moment, on the disk that is to be measured
    #[arg(long, value_name = "FOLDER", default_value = "target/saving")]
    disk: PathBuf,
    /// Small sizes and few rounds, to show that the program works
    #[arg(long)]
    quick: bool,
}

const NOTE: &str = "\
Two trainings in turns, through two stages with AdamW: one makes a checkpoint after each step, the other one at the
end alone. save: their difference, a step. every 100: what that comes to if one step in a hundred is followed by a
checkpoint, as a share of the training's time.";

/// Mini-batches between two checkpoints, for the share that is reported.
const EVERY: f64 = 100.0;

/// A model to save, and what it is trained on.
struct Case<L: Layer, T> {
    name: &'static str,
    layers: Box<dyn Fn() -> Result<Vec<L>, Failure>>,
    batch: Box<dyn Fn() -> (L::Input, T)>,
    samples: usize,
}

/// The same batch again and again.
struct Same<'a, I, T> {
    batch: &'a dyn Fn() -> (I, T),
    samples: usize,
    steps: usize,
}

impl<I: 'static, T: 'static> Source<I, T> for Same<'_, I, T> {
    fn training_samples(&self) -> usize {
        self.samples * self.steps
    }

    fn test_samples(&self) -> usize {
        self.samples
    }

    fn train(&self, _: EpochPass) -> Batches<I, T> {
        let batches: Vec<_> = (0..self.steps).map(|_| Ok((self.batch)().into())).collect();
        Box::new(batches.into_iter())
    }

    fn test(&self, _: usize) -> Batches<I, T> {
        Box::new(std::iter::once(Ok((self.batch)().into())))
    }
}

pub fn main(flags: Flags) -> Result<(), Failure> {
    let settings = json!({ "disk": flags.disk, "quick": flags.quick });
    let mut report = Report::begin("saving", &settings)?;
    report.note(NOTE);
    let columns = [
        column("model", "model", 0),
        column("parameters", "parameters", 0),
        column("mebibytes", "MiB", 1),
        column("step_ms", "step ms", 1),
        column("save_ms", "save ms", 1),
        column("save_spread_percent", "±%", 0),
        column("every_100_percent", "every 100 %", 2),
    ];
    let mut table = Table::new("checkpoints", columns);
    let device = Device::flex();
    let images = Case {
        name: "amoebanet-32",
        layers: Box::new(|| Ok(AmoebaNetDConfig::new(3, 16, 10).init(&Device::flex())?)),
        batch: {
            let device = device.clone();
            Box::new(move || {
                let classes = Tensor::<1, Int>::arange(0..64, &device).remainder_scalar(10);
                (Tensor::ones([64, 3, 32, 32], &device), classes)
            })
        },
        samples: 64,
    };
    let (width, blocks) = if flags.quick { (16, 1) } else { (512, 8) };
    let text = Case {
        name: "transformer-lm",
        layers: Box::new(move || {
            let config = LmConfig::new(256, 128, blocks, width, 4);
            Ok(config.init(&Device::flex())?)
        }),
        batch: Box::new(move || {
            let tokens = Tensor::<2, Int>::zeros([16, 128], &device);
            (tokens.clone(), tokens)
        }),
        samples: 16,
    };
    table.row(measure(&images, &flags, Task::classification)?);
    table.row(measure(&text, &flags, Task::language_model)?);
    report.table(table);
    report.save(&flags.out)
}

/// A task under settings of a training.
type TaskOf = fn(&TrainSettings) -> Task<CrossEntropy>;

/// Trains in turns with many checkpoints and with one.
fn measure<L, T>(
    case: &Case<L, T>,
    flags: &Flags,
    task: TaskOf,
) -> Result<serde_json::Value, Failure>
where
    L: Layer<Side = ()>,
    L::Input: 'static,
    T: Flow,
    CrossEntropy: Objective<L::Output, T>,
{
    let (rounds, steps) = if flags.quick { (1, 2) } else { (4, 8) };
    let source = Same {
        batch: &*case.batch,
        samples: case.samples,
        steps,
    };
    let (mut saves, mut without) = (Seconds::default(), Seconds::default());
    let (mut bytes, mut parameters) = (0, 0);
    for _ in 0..rounds {
        let seldom = train(case, &source, task, &flags.disk, 0)?;
        let often = train(case, &source, task, &flags.disk, 1)?;
        let difference = often.took.as_secs_f64() - seldom.took.as_secs_f64();
        saves.0.push(difference / steps as f64);
        without.0.push(seldom.step);
        (bytes, parameters) = (often.bytes, often.parameters);
    }
    let (step, save) = (without.median(), saves.median());
    Ok(json!([
        case.name,
        parameters,
        number(bytes as f64 / f64::from(1 << 20)),
        number(1e3 * step),
        number(1e3 * save),
        number(100.0 * saves.spread().abs()),
        number(100.0 * save / (EVERY * step)),
    ]))
}

/// What a training took.
struct Took {
    took: Duration,
    /// Seconds of a step.
    step: f64,
    /// Of a checkpoint.
    bytes: u64,
    parameters: usize,
}

fn train<L, T>(
    case: &Case<L, T>,
    source: &Same<'_, L::Input, T>,
    task: TaskOf,
    disk: &Path,
    save_every: usize,
) -> Result<Took, Failure>
where
    L: Layer<Side = ()>,
    L::Input: 'static,
    T: Flow,
    CrossEntropy: Objective<L::Output, T>,
{
    let settings = TrainSettings {
        epochs: 1,
        batch_size: case.samples,
        save_every,
        label_smoothing: 0.0,
        ..TrainSettings::default()
    };
    let pipeline = PipelineSettings {
        balance: BalanceSetting::Even,
        ..PipelineSettings::default()
    };
    let pipeline = pipeline
        .builder((case.layers)()?, || (case.batch)().0)?
        .build()?;
    let folder = RunFolder::create(&disk.join(case.name))?;
    let mut trainer = Trainer::new(pipeline, task(&settings), settings)?;
    let began = Instant::now();
    let summary = trainer.run(source, &folder, |_, _| Progress::silent())?;
    let took = began.elapsed();
    let newest = folder.checkpoints().list()?.pop();
    let bytes = newest.map_or(Ok(0), |newest| size(&newest.model(false)))?;
    fs::remove_dir_all(folder.finish()?)?;
    Ok(Took {
        took,
        step: case.samples as f64 / summary.samples_per_second,
        bytes,
        parameters: summary.parameters,
    })
}

/// The bytes of all files beside this one, and its own.
fn size(file: &Path) -> Result<u64, Failure> {
    let mut bytes = 0;
    for entry in fs::read_dir(file.parent().unwrap_or(file))? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}
