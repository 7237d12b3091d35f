//! A training of many steps, which resumes again and again: what it holds must not grow.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench-memory long-run`

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use burn::tensor::{Device, Int, Tensor};
use clap::Args;
use serde_json::json;
use stovepipe::train::{
    Batches, EpochPass, PipelineSettings, Progress, RunFolder, Source, Task, TrainSettings,
    Trainer, settings::BalanceSetting,
};
use stovepipe_benches::{
    Failure,
    bench_progress::BenchProgress,
    measure::{Seconds, process_status},
    report::{BenchReport, Cell, ReportTable, cell},
};
use stovepipe_transformer::LmConfig;

use crate::ALLOCATOR;

/// A training of 100,000 steps with checkpoints, tests and resumes: memory, files, threads, time of a step
#[derive(Args)]
pub struct Flags {
    /// Folder for the results, as JSON
    #[arg(long, value_name = "FOLDER", default_value = "benches/results")]
    out: PathBuf,
    /// Temporary folder for the run
    #[arg(long, value_name = "FOLDER", default_value = "target/long-run")]
    disk: PathBuf,
    /// Few steps, to show that the program works
    #[arg(long)]
    quick: bool,
}

const NOTE: &str = "\
A small language model with dropout, in two stages, in one process. Every leg ends with a test and goes on
from a checkpoint in a new pipeline and a new trainer; there are ten checkpoints in a leg. Allocated are the
bytes in use, resident is what the system has given the process, files and threads are counted; all at the
end of a leg, and in the first row at its first checkpoint. ms: the median of the times of a step between
checkpoints.";

const SAMPLES: usize = 4;
const LENGTH: usize = 8;
const TOKENS: usize = 16;
const LEGS: usize = 10;
/// What may be allocated at the end that was not at the start: less than a byte a step.
const MOST_GROWTH: usize = 64 << 10;
const LONGEST_SAVE: Duration = Duration::from_secs(20);

/// What the process holds, after so many steps.
#[derive(Clone, Copy)]
struct Look {
    steps: usize,
    at: Instant,
    allocated: usize,
    resident: u64,
    files: usize,
    threads: usize,
}

impl Look {
    fn after(steps: usize) -> Result<Self, Failure> {
        // The thread of the last checkpoint, and its files, are not there for good.
        let began = Instant::now();
        while is_saving()? && began.elapsed() < LONGEST_SAVE {
            thread::sleep(Duration::from_millis(1));
        }
        // Others may just write a file.
        let mut files = usize::MAX;
        for _ in 0..5 {
            files = files.min(fs::read_dir("/proc/self/fd")?.count());
            thread::sleep(Duration::from_millis(1));
        }
        Ok(Self {
            steps,
            at: Instant::now(),
            allocated: ALLOCATOR.allocated(),
            resident: process_status("VmRSS")? << 10,
            files,
            threads: process_status("Threads")? as usize,
        })
    }

    fn cells(&self, seconds: f64) -> [Cell; 6] {
        [
            cell("steps", "steps", 0, self.steps),
            cell("allocated", "KiB", 0, self.allocated >> 10),
            cell("resident", "resident KiB", 0, self.resident >> 10),
            cell("files", "files", 0, self.files),
            cell("threads", "threads", 0, self.threads),
            cell("step_ms", "ms", 3, 1e3 * seconds),
        ]
    }
}

/// The same batch again and again. It looks at the process before the batches at which checkpoints are made.
struct Watched {
    steps: usize,
    every: usize,
    before: usize,
    looks: Arc<Mutex<Vec<Result<Look, String>>>>,
}

fn batch() -> (Tensor<2, Int>, Tensor<2, Int>) {
    let tokens = Tensor::<1, Int>::arange(0..(SAMPLES * LENGTH) as i64, &Device::flex());
    let tokens = tokens.remainder_scalar(TOKENS as i64);
    let tokens = tokens.reshape([SAMPLES, LENGTH]);
    (tokens.clone(), tokens)
}

impl Source<Tensor<2, Int>, Tensor<2, Int>> for Watched {
    fn training_samples(&self) -> usize {
        self.steps * SAMPLES
    }

    fn test_samples(&self) -> usize {
        SAMPLES
    }

    fn train(&self, _: EpochPass) -> Batches<Tensor<2, Int>, Tensor<2, Int>> {
        let (every, before, looks) = (self.every, self.before, self.looks.clone());
        Box::new((0..self.steps).map(move |step| {
            if step > 0 && step % every == 0 {
                let look = Look::after(before + step).map_err(|error| error.to_string());
                let mut looks = looks.lock().unwrap_or_else(PoisonError::into_inner);
                looks.push(look);
            }
            Ok(batch().into())
        }))
    }

    fn test(&self, _: usize) -> Batches<Tensor<2, Int>, Tensor<2, Int>> {
        Box::new(std::iter::once(Ok(batch().into())))
    }
}

pub fn main(flags: Flags) -> Result<(), Failure> {
    let settings = json!({ "disk": flags.disk, "quick": flags.quick });
    let mut report = BenchReport::begin("long_run", &settings)?;
    report.note(NOTE);
    let steps = if flags.quick { 40 } else { 10_000 };
    let path = flags.disk.join("long-run");
    let mut progress = BenchProgress::new(LEGS);
    let (mut table, mut looks, mut times) = (ReportTable::new("legs"), Vec::new(), Vec::new());
    for leg in 0..LEGS {
        let found = train(&path, leg, steps)?;
        let (Some(begin), Some(end)) = (found.first(), found.last()) else {
            return Err("a leg was too short to look at it".into());
        };
        let between = found.windows(2).map(|pair| {
            let steps = (pair[1].steps - pair[0].steps) as f64;
            (pair[1].at - pair[0].at).as_secs_f64() / steps
        });
        let median = Seconds(between.collect()).median();
        if leg == 0 {
            table.row(begin.cells(median));
            looks.push(*begin);
        }
        table.row(end.cells(median));
        looks.push(*end);
        times.push(median);
        progress.done(&format!("{} steps", (leg + 1) * steps));
    }
    fs::remove_dir_all(&path)?;
    let (first, last) = (looks[0], looks[LEGS]);
    let over = |last: u64, first: u64| last as f64 / first as f64;
    let mut growth = ReportTable::new("the last row over the first");
    growth.row([
        cell(
            "allocated",
            "allocated",
            3,
            over(last.allocated as u64, first.allocated as u64),
        ),
        cell(
            "resident",
            "resident",
            3,
            over(last.resident, first.resident),
        ),
        cell("files", "files", 0, last.files as i64 - first.files as i64),
        cell(
            "threads",
            "threads",
            0,
            last.threads as i64 - first.threads as i64,
        ),
        cell("time", "time of a step", 3, times[LEGS - 1] / times[0]),
    ]);
    report.table(table);
    report.table(growth);
    report.save(&flags.out)?;
    if (last.files, last.threads) != (first.files, first.threads) {
        return Err("files or threads are left over".into());
    }
    let grown = last.allocated.saturating_sub(first.allocated);
    if grown > MOST_GROWTH {
        return Err(format!("{grown} bytes more are allocated at the end").into());
    }
    Ok(())
}

/// Whether a checkpoint is being written.
fn is_saving() -> Result<bool, Failure> {
    for thread in fs::read_dir("/proc/self/task")? {
        // One that has just ended has no name.
        let name = fs::read_to_string(thread?.path().join("comm")).unwrap_or_default();
        if name.trim_end() == "checkpoint" {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A leg of so many steps. Looks at the process at its checkpoints.
fn train(path: &Path, leg: usize, steps: usize) -> Result<Vec<Look>, Failure> {
    let every = steps / 10;
    let settings = TrainSettings {
        epochs: LEGS,
        max_steps: (leg + 1) * steps,
        batch_size: SAMPLES,
        save_every: every,
        label_smoothing: 0.0,
        ..TrainSettings::default()
    };
    let pipeline = PipelineSettings {
        balance: BalanceSetting::Even,
        ..PipelineSettings::default()
    };
    let config = LmConfig::new(TOKENS, LENGTH, 2, 16, 2).with_dropout(0.1);
    let builder = pipeline.builder(config.init(&Device::flex())?, || batch().0)?;
    let folder = match leg {
        0 => RunFolder::create(path)?,
        _ => RunFolder::resume(path)?,
    };
    let task = Task::language_model(&settings);
    let mut trainer = Trainer::new(builder.build()?, task, settings)?;
    let resumed = trainer.resume(&folder)?;
    if resumed.epochs != leg {
        return Err(format!("leg {leg} begins after epoch {}", resumed.epochs).into());
    }
    let looks = Arc::default();
    let source = Watched {
        steps,
        every,
        before: leg * steps,
        looks: Arc::clone(&looks),
    };
    trainer.run(&source, &folder, |_, _| Progress::silent())?;
    folder.finish()?;
    let mut looks = looks.lock().unwrap_or_else(PoisonError::into_inner);
    let looks = looks.drain(..).collect::<Result<_, String>>();
    Ok(looks?)
}
