//! `checksums.jsonl`: sums of bits, by which two runs are compared.

use std::collections::BTreeMap;

use serde::Serialize;
use stovepipe_pipeline::{Layer, PassSum};
use stovepipe_schedule::SpanKind;

use super::{
    folder::{CHECKSUMS, RunFolder},
    progress::Progress,
    trainer::Trainer,
};
use crate::{optimizer::LayerSums, settings::ChecksumSetting};

/// A line, of a mini-batch. Numbers of 64 bits are hexadecimal: JSON has none.
#[derive(Serialize)]
struct Line {
    step: u64,
    loss: String,
    /// By layer; none if nothing was updated.
    gradients: Vec<String>,
    parameters: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    passes: Vec<(usize, SpanKind, usize, String)>,
}

impl<L: Layer, O> Trainer<L, O> {
    /// Writes the sums of a mini-batch, if they are asked for. Processes that update the same layers have the same sums.
    pub(super) fn log_sums(
        &mut self,
        (step, loss): (u64, f64),
        updated: impl Iterator<Item = LayerSums>,
        passes: &[PassSum],
        (folder, progress): (&RunFolder, &mut Progress),
    ) {
        if self.settings.checksums == ChecksumSetting::None {
            return;
        }
        let updated: BTreeMap<_, _> = updated.map(|own| (own.layer, own)).collect();
        let passes = passes.iter();
        let line = Line {
            step,
            loss: hex(loss.to_bits()),
            gradients: updated.values().map(|own| hex(own.gradients)).collect(),
            parameters: updated.values().map(|own| hex(own.parameters)).collect(),
            passes: passes
                .map(|own| (own.micro_batch, own.kind, own.layer, hex(own.sum)))
                .collect(),
        };
        let appended = folder.append_json_line(CHECKSUMS, &line);
        self.warn_of_log(appended, progress);
    }
}

fn hex(sum: u64) -> String {
    format!("{sum:016x}")
}
