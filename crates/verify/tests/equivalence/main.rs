//! The number of stages, the schedule and recomputation never change the result: for models of all
//! kinds, for random ones, and with models for which it is not so, to see that it would be found.
#![allow(clippy::unwrap_used, missing_docs)]

mod broken;
mod models;
mod palette;
mod precision;
mod random;

use std::ops::RangeInclusive;

use stovepipe_pipeline::{Batch, Flow, Layer, Objective};
use stovepipe_verify::{Report, Verdict, Verifier};

/// As many micro-batches as the claim is made for: dividing the batch or not, and more than it has
/// samples.
const MICRO_BATCHES: [usize; 6] = [1, 2, 3, 5, 8, 12];
/// Samples of a batch.
const SAMPLES: usize = 10;

/// Verifies a model in every way that the engine can run it in.
fn check<L, T, O>(
    layers: Vec<L>,
    batch: Batch<L::Input, T, L::Side>,
    objective: O,
    stages: RangeInclusive<usize>,
) -> Report
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    let most = *stages.end();
    let verifier = Verifier::new(layers, batch, objective).stages(stages);
    let report = verifier.micro_batches(MICRO_BATCHES).run().unwrap();
    assert!(report.holds(), "{report}");
    // Nothing passes by not having been looked at.
    let cases = |name| {
        report
            .checks
            .iter()
            .find(|check| check.name == name)
            .unwrap()
            .cases
    };
    let least = if most < 3 { 60 } else { 150 };
    assert!(cases("same bits") >= least, "{report}");
    assert_eq!(cases("whole mini-batch"), MICRO_BATCHES.len());
    let skipped = |name| {
        let check = report
            .checks
            .iter()
            .find(|check| check.name == name)
            .unwrap();
        matches!(check.verdict, Verdict::Skipped(_))
    };
    assert!(
        !["same bits", "evaluation", "mishap", "memory"]
            .into_iter()
            .any(skipped)
    );
    report
}
