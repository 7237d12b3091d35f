//! The sums of bits of `checksums.jsonl`, and the first ones in which two runs differ.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
};

use serde::Deserialize;
use stovepipe_schedule::SpanKind;

use crate::{
    error::ReportError,
    lines::{Line, first_other},
};

/// The sums of a step, as text.
#[derive(Deserialize)]
struct Sums {
    step: usize,
    loss: String,
    /// By layer, of those that the update changed; none without an update.
    gradients: Vec<Option<String>>,
    parameters: Vec<Option<String>>,
    /// By micro-batch, and for each in the order of its passes.
    #[serde(default)]
    passes: Vec<Pass>,
}

/// The micro-batch, what ran, the layer, and the sum.
type Pass = (usize, SpanKind, usize, String);

impl Line for Sums {
    const FILE: &str = "checksums.jsonl";
    // A model of a thousand layers has 200 KiB for each micro-batch.
    const LONGEST: u64 = 1 << 28;

    fn step(&self) -> usize {
        self.step
    }
}

/// The sums of two runs next to each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ComparedSums {
    /// How many steps have the same sums, before one differs.
    pub same: usize,
    /// The first step whose sums differ, and which of them come first in the step.
    pub other: Option<(usize, OtherSum)>,
}

/// The first thing in a step that two runs have computed differently.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OtherSum {
    /// The number of layers or of micro-batches: nothing else can be compared.
    Sizes,
    /// What a layer computed for a micro-batch. Of several micro-batches, the first one that differs.
    Pass {
        /// The micro-batch, counted from 0.
        micro_batch: usize,
        /// What ran.
        kind: SpanKind,
        /// The layer, counted from 0.
        layer: usize,
        /// How many of the step's micro-batches differ.
        micro_batches: usize,
        /// Whether the loss differs although all forward passes are the same: then its targets may.
        after_loss: bool,
    },
    /// The loss.
    Loss,
    /// Only one of the runs updated its parameters.
    Update,
    /// The gradients of this layer, but not those of later layers, nor the loss.
    Gradients(usize),
    /// The parameters of this layer after the update, but neither those of earlier layers nor any gradients.
    Parameters(usize),
}

/// The first step in which the sums of two runs differ, which `train --checksums` writes. Steps and passes that only
/// one run has are not compared.
///
/// ```
/// # let parent = tempfile::tempdir().unwrap();
/// use std::fs;
/// use stovepipe_report::{OtherSum, first_other_sum};
///
/// let folders = ["a", "b"].map(|name| parent.path().join(name));
/// for (folder, sum) in folders.iter().zip(["0f", "0e"]) {
///     fs::create_dir(folder)?;
///     let lines = format!(
///         "{{\"step\":1,\"loss\":\"00\",\"gradients\":[\"01\",\"02\"],\"parameters\":[\"03\",\"04\"]}}\n\
///          {{\"step\":2,\"loss\":\"05\",\"gradients\":[\"{sum}\",\"06\"],\"parameters\":[\"{sum}\",\"07\"]}}\n"
///     );
///     fs::write(folder.join("checksums.jsonl"), lines)?;
/// }
/// let compared = first_other_sum([&folders[0], &folders[1]])?;
/// assert_eq!((compared.same, compared.other), (1, Some((2, OtherSum::Gradients(0)))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If a `checksums.jsonl` cannot be read.
pub fn first_other_sum(folders: [&Path; 2]) -> Result<ComparedSums, ReportError> {
    let are_same = |one: &Sums, other: &Sums| one.first_other(other).is_none();
    let (same, other) = first_other(folders, are_same)?;
    let other = other.and_then(|[one, other]| Some((one.step, one.first_other(&other)?)));
    Ok(ComparedSums { same, other })
}

impl Sums {
    fn first_other(&self, other: &Self) -> Option<OtherSum> {
        let passes = [&self.passes, &other.passes];
        let have_passes = passes.iter().all(|passes| !passes.is_empty());
        let sizes = [&self.gradients, &other.gradients].map(Vec::len);
        let have_updated = sizes.map(|layers| layers > 0);
        let has_other_layers = have_updated == [true; 2] && sizes[0] != sizes[1];
        if has_other_layers || have_passes && forward(passes[0]).ne(forward(passes[1])) {
            return Some(OtherSum::Sizes);
        }
        let is_other_loss = self.loss != other.loss;
        if have_passes && let Some(pass) = first_other_pass(passes, is_other_loss) {
            return Some(pass);
        }
        if is_other_loss {
            return Some(OtherSum::Loss);
        }
        if have_updated[0] != have_updated[1] {
            return Some(OtherSum::Update);
        }
        let differ = |one: &[Option<String>], other: &[Option<String>]| -> Vec<usize> {
            let both = one.iter().zip(other).enumerate();
            let differ = both.filter(|(_, (one, other))| one != other);
            differ.map(|(layer, _)| layer).collect()
        };
        // Backward passes come to the last layer first.
        let gradients = differ(&self.gradients, &other.gradients);
        let parameters = differ(&self.parameters, &other.parameters);
        let gradients = gradients.last().map(|&layer| OtherSum::Gradients(layer));
        gradients.or(parameters.first().map(|&layer| OtherSum::Parameters(layer)))
    }
}

/// The micro-batches and layers that ran forward.
fn forward(passes: &[Pass]) -> impl Iterator<Item = (usize, usize)> {
    let forward = passes.iter().filter(|pass| pass.1 == SpanKind::Forward);
    forward.map(|pass| (pass.0, pass.2))
}

/// Recomputation is compared where both have it, and backward passes where both have the same kinds.
fn first_other_pass([first, second]: [&Vec<Pass>; 2], is_other_loss: bool) -> Option<OtherSum> {
    let place = |pass: &Pass| (pass.0, pass.1, pass.2);
    // Of repeated ones, which no training writes, the last counts.
    let [of_first, of_second] = [first, second].map(|passes| -> HashMap<_, _> {
        let sums = passes.iter().map(|pass| (place(pass), &pass.3));
        sums.collect()
    });
    let differs = |pass: &&Pass| {
        let sums = [&of_first, &of_second].map(|sums| sums.get(&place(pass)));
        sums[1].is_some() && sums[0] != sums[1]
    };
    let differ: Vec<_> = first.iter().filter(differs).collect();
    let &&(micro_batch, kind, layer, _) = differ.first()?;
    let micro_batches: BTreeSet<_> = differ.iter().map(|pass| pass.0).collect();
    let mut kinds = differ.iter().map(|pass| pass.1);
    Some(OtherSum::Pass {
        micro_batch,
        kind,
        layer,
        micro_batches: micro_batches.len(),
        after_loss: is_other_loss && kinds.all(|kind| kind != SpanKind::Forward),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const SAME: &str = "0000000000000000";
    const OTHER: &str = "0000000000000001";

    /// Two layers and two micro-batches.
    fn step() -> Value {
        let pass = |micro_batch, kind, layer| json!([micro_batch, kind, layer, SAME]);
        let of = |micro_batch: usize| {
            let kinds = [
                ("Forward", 0),
                ("Forward", 1),
                ("Backward", 1),
                ("Backward", 0),
            ];
            kinds.map(|(kind, layer)| pass(micro_batch, kind, layer))
        };
        let passes = [of(0), of(1)].concat();
        json!({
            "step": 1, "loss": SAME, "gradients": [SAME, SAME], "parameters": [SAME, SAME],
            "passes": passes,
        })
    }

    fn first_other(change: impl FnOnce(&mut Value)) -> Option<OtherSum> {
        let read = |line: Value| serde_json::from_value::<Sums>(line);
        let mut other = step();
        change(&mut other);
        let (one, other) = (read(step()).ok()?, read(other).ok()?);
        assert_eq!(one.first_other(&other), other.first_other(&one));
        one.first_other(&other)
    }

    #[test]
    fn what_comes_first_in_a_step_is_found() {
        assert_eq!(first_other(|_| ()), None);
        let of = |key: &'static str, layers: &'static [usize]| {
            first_other(|line| {
                line["passes"] = json!([]);
                layers
                    .iter()
                    .for_each(|&layer| line[key][layer] = json!(OTHER));
            })
        };
        // Backward passes come to the last layer first, updates have no order: the first layer is named.
        assert_eq!(of("gradients", &[0, 1]), Some(OtherSum::Gradients(1)));
        assert_eq!(of("gradients", &[0]), Some(OtherSum::Gradients(0)));
        assert_eq!(of("parameters", &[0, 1]), Some(OtherSum::Parameters(0)));
        let loss = first_other(|line| {
            line["passes"] = json!([]);
            (line["loss"], line["gradients"][1]) = (json!(OTHER), json!(OTHER));
        });
        assert_eq!(loss, Some(OtherSum::Loss));
        let models = first_other(|line| line["gradients"] = json!([SAME]));
        assert_eq!(models, Some(OtherSum::Sizes));
        let skipped = first_other(|line| {
            (line["gradients"], line["parameters"]) = (json!([]), json!([]));
        });
        assert_eq!(skipped, Some(OtherSum::Update));
        // A layer that one run alone trains.
        let frozen = first_other(|line| line["gradients"][1] = json!(null));
        assert_eq!(frozen, Some(OtherSum::Gradients(1)));
    }

    #[test]
    fn passes_say_more_than_sums_of_the_step() {
        let passes = |loss: &str, changed: &'static [usize]| {
            first_other(|line| {
                line["loss"] = json!(loss);
                (changed.iter()).for_each(|&index| line["passes"][index][3] = json!(OTHER));
            })
        };
        let expected = |micro_batch, kind, layer, micro_batches, after_loss| {
            Some(OtherSum::Pass {
                micro_batch,
                kind,
                layer,
                micro_batches,
                after_loss,
            })
        };
        use SpanKind::{Backward, Forward};
        assert_eq!(passes(OTHER, &[1, 2, 3]), expected(0, Forward, 1, 1, false));
        assert_eq!(
            passes(OTHER, &[3, 4, 5]),
            expected(0, Backward, 0, 2, false)
        );
        assert_eq!(passes(SAME, &[6, 7]), expected(1, Backward, 1, 1, false));
        assert_eq!(passes(OTHER, &[6, 7]), expected(1, Backward, 1, 1, true));
        // No pass differs: then the loss itself does.
        assert_eq!(passes(OTHER, &[]), Some(OtherSum::Loss));
        let other_micro_batches = first_other(|line| {
            let passes = line["passes"].as_array_mut();
            passes.into_iter().for_each(|passes| passes.truncate(4));
        });
        assert_eq!(other_micro_batches, Some(OtherSum::Sizes));
        // A pass that one run alone has, such as a recomputation, is no difference.
        let more = first_other(|line| {
            let passes = line["passes"].as_array_mut();
            passes
                .into_iter()
                .for_each(|passes| passes.push(json!([1, "Recompute", 0, OTHER])));
        });
        assert_eq!(more, None);
    }
}
