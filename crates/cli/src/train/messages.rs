//! What `train` says.

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

use stovepipe::{
    pipeline::{Layer, Pipeline},
    schedule::count,
    train::{RunFolder, Summary, run::Resumed, settings::ScheduleSetting},
};

use crate::{error::CliError, output};

pub fn resumed_lines(resumed: &Resumed, path: &Path) -> String {
    let damaged = resumed.damaged.iter().map(|damaged| {
        let (path, reason) = (damaged.path.display(), &damaged.reason);
        format!(
            "a checkpoint is damaged ({reason}) and was moved to {path}; trying the one before it\n"
        )
    });
    let (path, epochs, batches) = (path.display(), resumed.epochs, resumed.batches);
    let begin = match &resumed.checkpoint {
        None => format!("no checkpoint in {path}: starting from the beginning\n"),
        Some(checkpoint) => format!(
            "resuming after {} and {}, from {checkpoint}\n",
            count(epochs, "epoch"),
            count(batches, "mini-batch of the next")
        ),
    };
    let lines = match resumed.damaged_lines {
        0 => String::new(),
        lines => {
            let lines = count(lines, "line of broken JSON");
            format!("metrics.jsonl, steps.jsonl and checksums.jsonl: removed {lines}\n")
        }
    };
    damaged.chain([lines, begin]).collect()
}

/// An error of a run that has a checkpoint says how to go on, with these flags.
pub fn unfinished(error: CliError, folder: &RunFolder, flags: &str) -> CliError {
    match folder.checkpoints().list().unwrap_or_default().pop() {
        Some(newest) => CliError::Unfinished {
            error: Box::new(error),
            checkpoint: newest.name().to_owned(),
            command: resume_command(folder.path(), flags),
        },
        None => error,
    }
}

/// What a shell takes to resume a run, with these flags, each after a space.
pub fn resume_command(path: &Path, flags: &str) -> String {
    let path = path.to_string_lossy();
    let quoted = shlex::try_quote(&path).unwrap_or(Cow::Borrowed(&path));
    format!("stovepipe train --resume --out {quoted}{flags}")
}

pub fn print_stages<L: Layer>(pipeline: &Pipeline<L>) {
    for (index, stage) in pipeline.stages().iter().enumerate() {
        let (first, last) = (stage.layers.start, stage.layers.end - 1);
        let parameters = stage.parameters;
        let workers = stage.replicas.iter().zip(&stage.devices);
        let workers = workers.map(|(worker, device)| format!("{device} (worker {worker})"));
        let workers = workers.collect::<Vec<_>>().join(", ");
        let layers = format!("layers {first}–{last}, {}", count(parameters, "parameter"));
        output::say(&format!("stage {index} on {workers}: {layers}\n"));
    }
}

/// What users of an asynchronous schedule should know; empty for others.
pub fn experimental<L: Layer>(pipeline: &Pipeline<L>) -> Result<String, CliError> {
    if !pipeline.is_asynchronous() {
        return Ok(String::new());
    }
    let staleness = pipeline.staleness()?;
    let staleness: Vec<_> = staleness.iter().map(ToString::to_string).collect();
    Ok(format!(
        "this schedule is experimental: it does not wait for updates, so the result is not that of one \
         device; in each stage, gradients are late by up to {} updates\n",
        staleness.join(", ")
    ))
}

/// That a training goes on under another kind of schedule.
pub fn changed_kind(then: &ScheduleSetting, now: &ScheduleSetting) -> String {
    let what = match now.is_asynchronous() {
        true => {
            "it goes on without waiting for updates, so the result will not be that of one device"
        }
        false => "it goes on as on one device, from weights that are not those of one device",
    };
    format!("the schedule was {then} and is now {now}: {what}\n")
}

/// Where files are during a run, and where they will be.
pub fn writing_line(folder: &RunFolder) -> String {
    let (path, now) = (folder.path().display(), folder.file(""));
    let now: PathBuf = now.components().collect();
    let now = now.display();
    format!("writing files to {now} ({path} at the end); report.html there shows each epoch\n")
}

pub fn print_summary(summary: &Summary, remark: Option<&str>, path: &Path) -> Result<(), CliError> {
    let mut text = format!(
        "test {} after {} and {:.1} s ({:.0} samples/s, bubble {:.1} %{})\n",
        summary.test,
        count(summary.epochs, "epoch"),
        summary.seconds,
        summary.samples_per_second,
        100.0 * summary.bubble,
        if summary.host_time {
            " in host time"
        } else {
            ""
        }
    );
    if let Some(averaged) = &summary.averaged {
        text += &format!("with averaged weights {averaged}\n");
    }
    let best = summary.best.as_ref().map(|best| best.epoch);
    if let Some(epoch) = best.filter(|epoch| *epoch < summary.epochs) {
        text += &format!("the test after epoch {epoch} was better: best.safetensors is of then\n");
    }
    text += remark.unwrap_or_default();
    text += &format!("model, metrics and timeline in {}\n", path.display());
    output::print(&text)?;
    Ok(())
}
