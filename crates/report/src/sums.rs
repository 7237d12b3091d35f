//! The sums of bits of `checksums.jsonl`, and the first ones in which two runs differ.

use std::{collections::HashMap, path::Path};

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
    /// By layer.
    gradients: Vec<String>,
    parameters: Vec<String>,
    /// By micro-batch, and for each in the order of its passes.
    #[serde(default)]
    passes: Vec<Pass>,
}

/// The micro-batch, what ran, the layer, and the sum.
type Pass = (usize, SpanKind, usize, String);

impl Line for Sums {
    const FILE: &str = "checksums.jsonl";
    // A model of a thousand layers has 60 KiB for each micro-batch.
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
    },
    /// The loss.
    Loss,
    /// The gradients of this layer, but not those of later layers, nor the loss.
    Gradients(usize),
    /// The parameters of this layer after the update, but neither those of earlier layers nor any gradients.
    Parameters(usize),
    /// The number of layers or passes: the models or the micro-batches are others.
    Layers,
}

/// The first step in which the sums of two runs differ ([`train --checksums`](https://docs.rs/stovepipe-cli)). What only
/// one run has is not compared.
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
        let passes = have_passes.then(|| first_other_pass(passes)).flatten();
        passes.or_else(|| {
            if self.loss != other.loss {
                return Some(OtherSum::Loss);
            }
            if self.gradients.len() != other.gradients.len() {
                return Some(OtherSum::Layers);
            }
            // Backward passes come to the last layer first.
            let gradients = self.gradients.iter().zip(&other.gradients);
            let mut gradients = gradients.enumerate().rev();
            let mut parameters = self.parameters.iter().zip(&other.parameters).enumerate();
            let gradients = gradients.find(|(_, (one, other))| one != other);
            let gradients = gradients.map(|(layer, _)| OtherSum::Gradients(layer));
            gradients.or_else(|| {
                let other = parameters.find(|(_, (one, other))| one != other);
                other.map(|(layer, _)| OtherSum::Parameters(layer))
            })
        })
    }
}

/// Recomputation is compared where both have it, and backward passes where both have the same kinds.
fn first_other_pass([first, second]: [&Vec<Pass>; 2]) -> Option<OtherSum> {
    let place = |pass: &Pass| (pass.0, pass.1, pass.2);
    let of_second: HashMap<_, _> = second.iter().map(|pass| (place(pass), &pass.3)).collect();
    let differs = |pass: &&Pass| {
        let other = of_second.get(&place(pass));
        other.is_some_and(|other| **other != pass.3)
    };
    let mut differ = first.iter().filter(differs);
    let (micro_batch, kind, layer, _) = differ.next()?;
    let mut micro_batches: Vec<_> = differ.map(|pass| pass.0).collect();
    micro_batches.push(*micro_batch);
    micro_batches.sort_unstable();
    micro_batches.dedup();
    Some(OtherSum::Pass {
        micro_batch: *micro_batch,
        kind: *kind,
        layer: *layer,
        micro_batches: micro_batches.len(),
    })
}
