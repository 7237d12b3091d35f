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
    /// By layer, of those that the update changed; none without an update.
    gradients: Vec<Option<String>>,
    parameters: Vec<Option<String>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    passes: Vec<(usize, SpanKind, usize, String)>,
}

impl<L: Layer, O> Trainer<L, O> {
    /// Writes the sums of a mini-batch, if they are asked for. Of processes that update the same layer, the first one's
    /// count.
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
        let mut by_layer = BTreeMap::new();
        for own in updated {
            by_layer.entry(own.layer).or_insert(own);
        }
        let layers = match by_layer.is_empty() {
            true => 0,
            false => self.pipeline.layers().len(),
        };
        let of_layers = |sum: fn(&LayerSums) -> u64| -> Vec<_> {
            let sums = (0..layers).map(|layer| by_layer.get(&layer).map(sum));
            sums.map(|sum| sum.map(hex)).collect()
        };
        let passes = passes.iter();
        let line = Line {
            step,
            loss: hex(loss.to_bits()),
            gradients: of_layers(|own| own.gradients),
            parameters: of_layers(|own| own.parameters),
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
