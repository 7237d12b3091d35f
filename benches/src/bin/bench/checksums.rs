//! What sums of bits cost a step.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench checksums`

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use stovepipe::{
    pipeline::{CrossEntropy, Flow, Layer, Objective},
    train::{TrainSettings, settings::ChecksumSetting},
};
use stovepipe_benches::{
    Failure,
    measure::Seconds,
    report::{BenchReport, Cell, ReportTable, cell},
};

use crate::saving::{SavedModel, models};

/// What sums of bits cost a step
#[derive(Args)]
pub struct Flags {
    /// Folder for the results, as JSON
    #[arg(long, value_name = "FOLDER", default_value = "benches/results")]
    out: PathBuf,
    /// Temporary folder for runs
    #[arg(long, value_name = "FOLDER", default_value = "target/checksums")]
    disk: PathBuf,
    /// Small sizes and few steps, to show that the program works
    #[arg(long)]
    quick: bool,
}

const NOTE: &str = "\
Trainings through two stages with AdamW, on two threads: without checksums, with those of each step, and with those of
each pass too, one after the other in each round. steps, passes: the median step over that without, of each round.";

pub fn main(flags: Flags) -> Result<(), Failure> {
    let settings = json!({ "disk": flags.disk, "quick": flags.quick });
    let mut report = BenchReport::begin("checksums", &settings)?;
    report.note(NOTE);
    let mut table = ReportTable::new("checksums");
    let rounds = if flags.quick { 2 } else { 7 };
    let (mut images, mut text) = models(flags.quick, 5);
    if !flags.quick {
        (images.steps, text.steps) = (100, 6);
    }
    table.row(row(&images, rounds, &flags.disk)?);
    table.row(row(&text, rounds, &flags.disk)?);
    report.table(table);
    report.save(&flags.out)
}

fn row<L, T>(model: &SavedModel<L, T>, rounds: usize, disk: &Path) -> Result<[Cell; 6], Failure>
where
    L: Layer<Side = ()>,
    L::Input: 'static,
    T: Flow,
    CrossEntropy: Objective<L::Output, T>,
{
    let mut medians = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        let kinds = [
            ChecksumSetting::None,
            ChecksumSetting::Steps,
            ChecksumSetting::Passes,
        ];
        for (medians, checksums) in medians.iter_mut().zip(kinds) {
            let settings = TrainSettings {
                checksums,
                ..TrainSettings::default()
            };
            // The first step is slower.
            let seconds = model.train(disk, settings)?.seconds;
            medians.push(Seconds(seconds[1..].to_vec()).median());
        }
    }
    let [without, steps, passes] = medians.map(Seconds);
    let (steps, passes) = (steps.over(&without), passes.over(&without));
    Ok([
        cell("model", "model", 0, model.name),
        cell("without_ms", "without ms", 1, 1e3 * without.median()),
        cell("steps_ratio", "steps", 3, steps.median()),
        cell("steps_spread_percent", "±%", 1, 100.0 * steps.spread()),
        cell("passes_ratio", "passes", 3, passes.median()),
        cell("passes_spread_percent", "±%", 1, 100.0 * passes.spread()),
    ])
}
