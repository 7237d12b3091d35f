//! What `train` says.

use std::path::Path;

use stovepipe::{
    pipeline::{Layer, Pipeline},
    train::{RunFolder, Summary, run::Resumed},
};

use crate::output;

/// Where a training continues.
pub fn resumed_lines(resumed: &Resumed, path: &Path) -> String {
    let damaged = resumed.damaged.iter().map(|damaged| {
        let (path, reason) = (damaged.path.display(), &damaged.reason);
        format!(
            "a checkpoint is damaged ({reason}) and was moved to {path}; trying the one before it\n"
        )
    });
    let begin = match &resumed.checkpoint {
        None => format!(
            "no checkpoint in {}: starting from the beginning\n",
            path.display()
        ),
        Some(checkpoint) => format!(
            "resuming after {} epochs and {} mini-batches of the next, from {checkpoint}\n",
            resumed.epochs, resumed.batches
        ),
    };
    damaged.chain([begin]).collect()
}

/// After an error.
pub fn print_what_is_kept(folder: &RunFolder) {
    let newest = folder.checkpoints().list().unwrap_or_default().pop();
    if let Some(newest) = newest {
        eprintln!(
            "the checkpoint {} is kept: resume from it with --resume --out {}",
            newest.name(),
            folder.path().display()
        );
    }
}

pub fn print_stages<L: Layer>(pipeline: &Pipeline<L>) {
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

pub fn print_summary(summary: &Summary, remark: Option<&str>, path: &Path) {
    let mut text = format!(
        "test {} after {} epochs and {:.1} s ({:.0} samples/s, bubble {:.1} %)\n",
        summary.test,
        summary.epochs,
        summary.seconds,
        summary.samples_per_second,
        100.0 * summary.bubble
    );
    if let Some(averaged) = &summary.averaged {
        text += &format!("with averaged weights {averaged}\n");
    }
    text += &output::visible(remark.unwrap_or_default());
    text += &format!("model, metrics and timeline in {}\n", path.display());
    output::print(&text);
}
