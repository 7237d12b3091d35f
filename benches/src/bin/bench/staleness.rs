//! What training without a flush gives: accuracy after equal epochs, and time, next to 1F1B.
//!
//! `cargo build --release -p stovepipe-benches -p stovepipe-cli && target/release/bench staleness`

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use clap::Args;
use serde_json::{Value, json};
use stovepipe_benches::{
    Failure,
    curves::{CurvePanel, draw},
    report::{BenchReport, Cell, ReportTable, cell},
};

/// Training without a flush (PipeDream) next to 1F1B: accuracy, time and throughput
#[derive(Args)]
pub struct Flags {
    /// Folder for the results, as JSON
    #[arg(long, value_name = "FOLDER", default_value = "benches/results")]
    out: PathBuf,
    /// The program `stovepipe`
    #[arg(long, value_name = "PATH", default_value = "target/release/stovepipe")]
    program: PathBuf,
    /// Numbers of stages
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [2, 4])]
    stages: Vec<usize>,
    /// Micro-batches of an update
    #[arg(long, value_name = "N", default_value_t = 4)]
    micro_batches: usize,
    /// Trainings of each kind, with seeds from 0 on
    #[arg(long, value_name = "N", default_value_t = 5)]
    seeds: usize,
    /// [default: 4 for digits, 2 for text]
    #[arg(long, value_name = "N")]
    epochs: Option<usize>,
    /// Digits or text alone
    #[arg(long, value_name = "DATA", value_parser = ["digits", "text"])]
    data: Option<String>,
    /// Small sizes, to show that the program works
    #[arg(long)]
    quick: bool,
}

const NOTE: &str = "\
AmoebaNet-D on handwritten digits, as `stovepipe train` trains it by default, and the language model on the text that
is part of the program, without shared parameters. All trainings with one seed start from the same weights and see the
same samples. Kinds take turns. Nothing is recomputed, but where weights are not stashed: there, all is.
score:     of the test set after the last epoch, the mean over seeds and the standard deviation: the accuracy in per
           cent of digits, the loss of text.
to enough: seconds of training until a test after an epoch is good enough, 97 % of digits, a loss of 2 of text;
           in how many seeds that happens.
over 1f1b: samples/s of all seeds together, relative to 1F1B with as many stages.";

/// What is learned, with flags, the score, and whether a score is good enough.
struct Data {
    name: &'static str,
    scored: &'static str,
    epochs: usize,
    /// The learning rate of SGD.
    rate: &'static str,
    flags: &'static str,
    score: fn(&Value) -> Option<f64>,
    is_enough: fn(f64) -> bool,
}

const DATA: [Data; 2] = [
    Data {
        name: "digits",
        scored: "accuracy (%)",
        epochs: 4,
        rate: "0.05",
        flags: "",
        score: |test| Some(100.0 * test["accuracy"].as_f64()?),
        is_enough: |accuracy| accuracy >= 97.0,
    },
    Data {
        name: "text",
        scored: "loss",
        epochs: 2,
        rate: "0.1",
        flags: "--data text --model transformer-lm --tied false --layers 2 --width 48 --length 64 --batch-size 32",
        score: |test| test["loss"].as_f64(),
        is_enough: |loss| loss <= 2.0,
    },
];

/// Seconds between two points of a curve.
const PITCH: f64 = 0.1;

/// The flags of each kind of training; the first is what the others are compared with.
const KINDS: [(&str, &str); 4] = [
    ("1f1b", "--schedule 1f1b --recompute never"),
    ("stashing", "--schedule pipedream --recompute never"),
    (
        "vertical sync",
        "--schedule pipedream --vertical-sync --recompute never",
    ),
    (
        "not stashed",
        "--schedule pipedream --no-stashing --recompute always",
    ),
];

/// The flags of an optimizer, given SGD's learning rate.
type OptimizerFlags = fn(&str) -> String;

const OPTIMIZERS: [(&str, OptimizerFlags); 2] = [
    ("sgd, momentum", |rate| {
        format!("--optimizer sgd --lr {rate}")
    }),
    ("adamw", |_| "--optimizer adamw".to_owned()),
];

/// A row and a curve of each kind of training.
type RowsAndCurves = (Vec<Vec<Cell>>, Vec<Vec<f64>>);

/// A training that is over.
struct Trained {
    score: f64,
    /// Seconds to a score that is good enough.
    enough: Option<f64>,
    samples_per_second: f64,
    /// The seconds of training until each test, and its score.
    tests: Vec<(f64, f64)>,
}

pub fn main(flags: Flags) -> Result<(), Failure> {
    let settings = json!({
        "data": flags.data, "stages": flags.stages, "micro_batches": flags.micro_batches, "seeds": flags.seeds,
        "epochs": flags.epochs, "quick": flags.quick,
    });
    let mut report = BenchReport::begin("staleness", &settings)?;
    report.note(NOTE);
    fs::create_dir_all(&flags.out)?;
    let names = KINDS.map(|(name, _)| name);
    let is_chosen = |data: &&Data| flags.data.as_deref().is_none_or(|own| own == data.name);
    for data in DATA.iter().filter(is_chosen) {
        let mut panels = Vec::new();
        for (optimizer, of_optimizer) in OPTIMIZERS {
            let of_optimizer = of_optimizer(data.rate);
            let mut table = ReportTable::new(format!("{}, {optimizer}", data.name));
            for &stages in &flags.stages {
                let (rows, curves) = flags.measure(data, stages, &of_optimizer)?;
                rows.into_iter().for_each(|row| table.row(row));
                panels.push(CurvePanel {
                    title: format!("{optimizer}, {stages} stages"),
                    curves,
                    axis: ("seconds of training", PITCH),
                });
            }
            report.table(table);
        }
        let title = format!("{}: {} of the test set over time", data.name, data.scored);
        let picture = draw(&title, &names, &panels);
        fs::write(
            flags.out.join(format!("staleness-{}.svg", data.name)),
            picture,
        )?;
    }
    report.save(&flags.out)
}

impl Flags {
    fn measure(
        &self,
        data: &Data,
        stages: usize,
        of_optimizer: &str,
    ) -> Result<RowsAndCurves, Failure> {
        let (seeds, epochs) = if self.quick {
            (1, 1)
        } else {
            (self.seeds, self.epochs.unwrap_or(data.epochs))
        };
        let mut all: Vec<Vec<Trained>> = KINDS.iter().map(|_| Vec::new()).collect();
        for seed in 0..seeds {
            for ((_, of_kind), trained) in KINDS.iter().zip(&mut all) {
                let flags = [data.flags, of_optimizer, of_kind].join(" ");
                trained.push(self.train(data, stages, &flags, (seed, epochs))?);
            }
        }
        let rate = |own: &[Trained]| own.iter().map(|own| own.samples_per_second).sum::<f64>();
        let base = rate(&all[0]);
        let rows = KINDS.iter().zip(&all).map(|((kind, _), all)| {
            let scores: Vec<_> = all.iter().map(|own| own.score).collect();
            let (mean, deviation) = mean_and_deviation(&scores);
            let times: Vec<_> = all.iter().filter_map(|own| own.enough).collect();
            vec![
                cell("stages", "stages", 0, stages),
                cell("kind", "kind", 0, *kind),
                cell("score", "score", 3, mean),
                cell("deviation", "±", 3, deviation),
                cell(
                    "seconds_to_enough",
                    "to enough, s",
                    1,
                    mean_and_deviation(&times).0,
                ),
                cell("reached", "of seeds", 0, times.len()),
                cell("over_1f1b", "over 1f1b", 3, rate(all) / base),
            ]
        });
        let longest = all.iter().flatten().filter_map(|own| own.tests.last());
        let longest = longest.map(|test| test.0).fold(0.0, f64::max);
        let curves = all.iter().map(|own| mean_over_time(own, longest));
        Ok((rows.collect(), curves.collect()))
    }

    fn train(
        &self,
        data: &Data,
        stages: usize,
        flags: &str,
        (seed, epochs): (usize, usize),
    ) -> Result<Trained, Failure> {
        let folder = tempfile::tempdir()?;
        let run = folder.path().join("run");
        let mut command = Command::new(&self.program);
        command
            .arg("train")
            .arg("--out")
            .arg(&run)
            .args(flags.split_whitespace());
        for (flag, value) in [
            ("--stages", stages),
            ("--micro-batches", self.micro_batches),
            ("--seed", seed),
            ("--epochs", epochs),
        ] {
            command.args([flag, &value.to_string()]);
        }
        // An even cut does not depend on measurements.
        command.args(["--balance", "even"]);
        if self.quick {
            command.args(["--max-steps", "4"]);
        }
        let ran = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output()?;
        if !ran.status.success() {
            let errors = String::from_utf8_lossy(&ran.stderr).into_owned();
            return Err(format!("{command:?} failed: {errors}").into());
        }
        trained(&run, data)
    }
}

/// Reads a run's folder.
fn trained(run: &Path, data: &Data) -> Result<Trained, Failure> {
    let summary: Value = serde_json::from_str(&fs::read_to_string(run.join("summary.json"))?)?;
    let number = |value: &Value| value.as_f64().ok_or("a number is missing");
    let (mut seconds, mut enough, mut tests) = (0.0, None, Vec::new());
    for line in fs::read_to_string(run.join("metrics.jsonl"))?.lines() {
        let epoch: Value = serde_json::from_str(line)?;
        seconds += number(&epoch["seconds"])?;
        if let Some(score) = (data.score)(&epoch["test"]) {
            tests.push((seconds, score));
            if (data.is_enough)(score) {
                enough = enough.or(Some(seconds));
            }
        }
    }
    Ok(Trained {
        score: (data.score)(&summary["test"]).ok_or("a score is missing")?,
        enough,
        samples_per_second: number(&summary["samples_per_second"])?,
        tests,
    })
}

/// The mean over trainings of the score, every [`PITCH`] seconds: between tests on a straight line, none
/// before the first or after the last.
fn mean_over_time(all: &[Trained], longest: f64) -> Vec<f64> {
    let at = |tests: &[(f64, f64)], now: f64| {
        let pair = tests
            .windows(2)
            .find(|pair| (pair[0].0..=pair[1].0).contains(&now));
        pair.map_or(f64::NAN, |pair| {
            let share = (now - pair[0].0) / (pair[1].0 - pair[0].0);
            pair[0].1 + share * (pair[1].1 - pair[0].1)
        })
    };
    let steps = (longest / PITCH).ceil() as usize;
    let mean = |step: usize| {
        let now = step as f64 * PITCH;
        all.iter().map(|own| at(&own.tests, now)).sum::<f64>() / all.len() as f64
    };
    (1..=steps).map(mean).collect()
}

/// NaN and 0 for none.
fn mean_and_deviation(numbers: &[f64]) -> (f64, f64) {
    let count = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    let squares: f64 = numbers.iter().map(|number| (number - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0)).sqrt())
}
