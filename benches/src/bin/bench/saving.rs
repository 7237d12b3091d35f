//! The time of a checkpoint.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench saving`

use std::{
    fs,
    path::{Path, PathBuf},
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
    measure::{Seconds, time},
    report::{BenchReport, Cell, ReportTable, cell},
};
use stovepipe_transformer::LmConfig;

/// The time of a checkpoint
#[derive(Args)]
pub struct Flags {
    /// Folder for the results, as JSON
    #[arg(long, value_name = "FOLDER", default_value = "benches/results")]
    out: PathBuf,
    /// Temporary folder for checkpoints, on the disk to measure
    #[arg(long, value_name = "FOLDER", default_value = "target/saving")]
    disk: PathBuf,
    /// Small sizes and few rounds, to show that the program works
    #[arg(long)]
    quick: bool,
}

const NOTE: &str = "\
Two trainings in turns, through two stages with AdamW: one writes a checkpoint after each step, the
other one only at the end. save: their difference for each step. every 100: that difference for one
checkpoint in a hundred steps, as a share of the training's time.";

/// Mini-batches between two checkpoints, for the reported share.
const EVERY: f64 = 100.0;

/// A model to save, trained on the same batch again and again.
struct SavedModel<L: Layer, T> {
    name: &'static str,
    layers: Box<dyn Fn() -> Result<Vec<L>, Failure>>,
    batch: fn() -> (L::Input, T),
    samples: usize,
    steps: usize,
    task: fn(&TrainSettings) -> Task<CrossEntropy>,
}

impl<L: Layer, T: 'static> Source<L::Input, T> for SavedModel<L, T>
where
    L::Input: 'static,
{
    fn training_samples(&self) -> usize {
        self.samples * self.steps
    }

    fn test_samples(&self) -> usize {
        self.samples
    }

    fn train(&self, _: EpochPass) -> Batches<L::Input, T> {
        let batches: Vec<_> = (0..self.steps).map(|_| Ok((self.batch)().into())).collect();
        Box::new(batches.into_iter())
    }

    fn test(&self, _: usize) -> Batches<L::Input, T> {
        Box::new(std::iter::once(Ok((self.batch)().into())))
    }
}

pub fn main(flags: Flags) -> Result<(), Failure> {
    let settings = json!({ "disk": flags.disk, "quick": flags.quick });
    let mut report = BenchReport::begin("saving", &settings)?;
    report.note(NOTE);
    let mut table = ReportTable::new("checkpoints");
    let (rounds, steps) = if flags.quick { (1, 2) } else { (4, 8) };
    let (width, blocks) = if flags.quick { (16, 1) } else { (512, 8) };
    let images = SavedModel {
        name: "amoebanet-32",
        layers: Box::new(|| Ok(AmoebaNetDConfig::new(3, 16, 10).init(&Device::flex())?)),
        batch: || {
            let device = Device::flex();
            let classes = Tensor::<1, Int>::arange(0..64, &device).remainder_scalar(10);
            (Tensor::ones([64, 3, 32, 32], &device), classes)
        },
        samples: 64,
        steps,
        task: Task::classification,
    };
    let text = SavedModel {
        name: "transformer-lm",
        layers: Box::new(move || {
            let config = LmConfig::new(256, 128, blocks, width, 4);
            Ok(config.init(&Device::flex())?)
        }),
        batch: || {
            let tokens = Tensor::<2, Int>::zeros([16, 128], &Device::flex());
            (tokens.clone(), tokens)
        },
        samples: 16,
        steps,
        task: Task::language_model,
    };
    table.row(images.measure(rounds, &flags.disk)?);
    table.row(text.measure(rounds, &flags.disk)?);
    report.table(table);
    report.save(&flags.out)
}

struct Saved {
    seconds: f64,
    step: f64,
    bytes: u64,
    parameters: usize,
}

impl<L, T> SavedModel<L, T>
where
    L: Layer<Side = ()>,
    L::Input: 'static,
    T: Flow,
    CrossEntropy: Objective<L::Output, T>,
{
    /// Trains in turns, with many checkpoints and with one.
    fn measure(&self, rounds: usize, disk: &Path) -> Result<[Cell; 7], Failure> {
        let (mut saves, mut without) = (Seconds::default(), Seconds::default());
        let (mut bytes, mut parameters) = (0, 0);
        for _ in 0..rounds {
            let (seldom, often) = (self.save(disk, 0)?, self.save(disk, 1)?);
            let difference = often.seconds - seldom.seconds;
            saves.0.push(difference / self.steps as f64);
            without.0.push(seldom.step);
            (bytes, parameters) = (often.bytes, often.parameters);
        }
        let (step, save) = (without.median(), saves.median());
        let share = 100.0 * save / (EVERY * step);
        Ok([
            cell("model", "model", 0, self.name),
            cell("parameters", "parameters", 0, parameters),
            cell("mebibytes", "MiB", 1, bytes as f64 / f64::from(1 << 20)),
            cell("step_ms", "step ms", 1, 1e3 * step),
            cell("save_ms", "save ms", 1, 1e3 * save),
            cell("save_spread_percent", "±%", 0, 100.0 * saves.spread().abs()),
            cell("every_100_percent", "every 100 %", 2, share),
        ])
    }

    /// Trains with a checkpoint every `save_every` steps, and one at the end.
    fn save(&self, disk: &Path, save_every: usize) -> Result<Saved, Failure> {
        let settings = TrainSettings {
            epochs: 1,
            batch_size: self.samples,
            save_every,
            label_smoothing: 0.0,
            ..TrainSettings::default()
        };
        let pipeline = PipelineSettings {
            balance: BalanceSetting::Even,
            ..PipelineSettings::default()
        };
        let builder = pipeline.builder((self.layers)()?, || (self.batch)().0)?;
        let folder = RunFolder::create(&disk.join(self.name))?;
        let mut trainer = Trainer::new(builder.build()?, (self.task)(&settings), settings)?;
        let (seconds, summary) = time(|| trainer.run(self, &folder, |_, _| Progress::silent()));
        let summary = summary?;
        let newest = folder.checkpoints().list()?.pop();
        let bytes = newest.map_or(Ok(0), |newest| size(&newest.model(false)))?;
        fs::remove_dir_all(folder.finish()?)?;
        Ok(Saved {
            seconds,
            step: self.samples as f64 / summary.samples_per_second,
            bytes,
            parameters: summary.parameters,
        })
    }
}

fn size(file: &Path) -> Result<u64, Failure> {
    let mut bytes = 0;
    for entry in fs::read_dir(file.parent().unwrap_or(file))? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}
