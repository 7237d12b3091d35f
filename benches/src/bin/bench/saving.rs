//! What a checkpoint costs a step.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench saving`

use std::{
    fs,
    path::{Path, PathBuf},
};

use burn::tensor::{Device, Int, Tensor};
use clap::Args;
use serde_json::{Value, json};
use stovepipe::{
    pipeline::{CrossEntropy, Flow, Layer, Objective},
    train::{
        Batches, EpochPass, PipelineSettings, Progress, RunFolder, Source, Task, TrainSettings,
        Trainer, settings::BalanceSetting,
    },
};
use stovepipe_amoebanet::{AmoebaLayer, AmoebaNetDConfig};
use stovepipe_benches::{
    Failure,
    measure::Seconds,
    report::{BenchReport, Cell, ReportTable, cell},
};
use stovepipe_transformer::{LmConfig, LmLayer};

/// What a checkpoint costs a step
#[derive(Args)]
pub struct Flags {
    /// Folder for the results, as JSON
    #[arg(long, value_name = "FOLDER", default_value = "benches/results")]
    out: PathBuf,
    /// Temporary folder for checkpoints, on the disk to measure
    #[arg(long, value_name = "FOLDER", default_value = "target/saving")]
    disk: PathBuf,
    /// Small sizes and few steps, to show that the program works
    #[arg(long)]
    quick: bool,
}

const NOTE: &str = "\
A training through two stages with AdamW, on two threads, that makes a checkpoint after every fourth step. A thread
writes it during the next steps; the first of them has the copy in its time. step: the last of each four; without: a
step of another training, which makes none. saving: the first of each four over the last. checkpoint: what the others
take more than the last, all together.";

/// Steps from one checkpoint to the next.
const EVERY: usize = 4;

/// A model to save, trained on the same batch again and again.
pub struct SavedModel<L: Layer, T> {
    pub name: &'static str,
    layers: Box<dyn Fn() -> Result<Vec<L>, Failure>>,
    batch: fn() -> (L::Input, T),
    samples: usize,
    pub steps: usize,
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
    let steps = if flags.quick { 9 } else { 85 };
    let (images, text) = models(flags.quick, steps);
    table.row(images.measure(&flags.disk)?);
    table.row(text.measure(&flags.disk)?);
    report.table(table);
    report.save(&flags.out)
}

type Images = SavedModel<AmoebaLayer, Tensor<1, Int>>;
type Text = SavedModel<LmLayer, Tensor<2, Int>>;

/// A model of images and one of text, whose trainings have so many steps.
pub fn models(quick: bool, steps: usize) -> (Images, Text) {
    let (width, blocks) = if quick { (16, 1) } else { (512, 8) };
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
    (images, text)
}

/// What a training took.
pub struct Trained {
    /// Of each step.
    pub seconds: Vec<f64>,
    /// Of a checkpoint.
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
    fn measure(&self, disk: &Path) -> Result<[Cell; 8], Failure> {
        let saving = |save_every, max_steps| TrainSettings {
            save_every,
            max_steps,
            ..TrainSettings::default()
        };
        let without = self.train(disk, saving(0, self.steps.div_ceil(EVERY)))?;
        let trained = self.train(disk, saving(EVERY, 0))?;
        // The first four come before the first checkpoint, and the first of all is slower.
        let four = trained.seconds[EVERY..].chunks_exact(EVERY);
        let each = |of: fn(&[f64]) -> f64| Seconds(four.clone().map(of).collect());
        let (first, last) = (each(|four| four[0]), each(|four| four[EVERY - 1]));
        let more = each(|four| four.iter().map(|own| own - four[EVERY - 1]).sum());
        let saving = first.over(&last);
        let without = Seconds(without.seconds[1..].to_vec());
        let mebibytes = trained.bytes as f64 / f64::from(1 << 20);
        Ok([
            cell("model", "model", 0, self.name),
            cell("parameters", "parameters", 0, trained.parameters),
            cell("mebibytes", "MiB", 1, mebibytes),
            cell("without_ms", "without ms", 1, 1e3 * without.median()),
            cell("step_ms", "step ms", 1, 1e3 * last.median()),
            cell("saving_ratio", "saving", 3, saving.median()),
            cell("spread_percent", "±%", 1, 100.0 * saving.spread()),
            cell("checkpoint_ms", "checkpoint ms", 1, 1e3 * more.median()),
        ])
    }

    /// Trains an epoch, with a checkpoint at its end.
    pub fn train(&self, disk: &Path, settings: TrainSettings) -> Result<Trained, Failure> {
        let settings = TrainSettings {
            epochs: 1,
            batch_size: self.samples,
            label_smoothing: 0.0,
            ..settings
        };
        let pipeline = PipelineSettings {
            balance: BalanceSetting::Even,
            ..PipelineSettings::default()
        };
        let builder = pipeline.builder((self.layers)()?, || (self.batch)().0)?;
        let folder = RunFolder::create(&disk.join(self.name))?;
        let mut trainer = Trainer::new(builder.build()?, (self.task)(&settings), settings)?;
        let summary = trainer.run(self, &folder, |_, _| Progress::silent())?;
        let newest = folder.checkpoints().list()?.pop();
        let bytes = newest.map_or(Ok(0), |newest| size(&newest.model(false)))?;
        let steps = fs::read_to_string(folder.file("steps.jsonl"))?;
        fs::remove_dir_all(folder.finish()?)?;
        let seconds = |line: &str| {
            let line: Value = serde_json::from_str(line)?;
            let rate = line["samples_per_second"].as_f64();
            let rate = rate.ok_or("a step without its time")?;
            Ok::<_, Failure>(self.samples as f64 / rate)
        };
        Ok(Trained {
            seconds: steps.lines().map(seconds).collect::<Result<_, _>>()?,
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
