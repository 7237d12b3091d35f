//! The number of stages, the schedule and recomputation never change the result: for models of every
//! kind and for random ones. Faulty models show that a change would be found.
#![allow(clippy::unwrap_used, missing_docs)]

mod broken;
mod gallery;
mod models;
mod palette;
mod precision;
mod random;
mod ranks;

use mimalloc::MiMalloc;
use stovepipe_pipeline::{Batch, Flow, Layer, Objective, error::WindowError};
use stovepipe_verify::{Outcome, Verifier};

/// As in the program. It saves a sixth of the time.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// One, and a number that does not divide the batch. Random models have more than there are samples, too.
const MICRO_BATCHES: [usize; 2] = [1, 4];
const SAMPLES: usize = 5;

/// Verifies a model in all ways to run it, and in several processes. Returns the number of cases in which
/// running statistics were compared.
fn check<L, T, O>(
    layers: Vec<L>,
    batch: Batch<L::Input, T, L::Side>,
    objective: O,
    stages: &[usize],
) -> usize
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    let most = stages.iter().copied().max().unwrap();
    let verifier = |(layers, batch, objective)| {
        Verifier::new(layers, batch, objective).stages(stages.iter().copied())
    };
    let subject: (Vec<L>, _, _) = (layers, batch, objective);
    // Two or three processes: the models have even and odd numbers of layers.
    let size = most.min(2 + subject.0.len() % 2);
    let report = ranks::report(size, subject.clone(), |subject| {
        verifier(subject).micro_batches([3])
    });
    assert!(report.holds(), "{size} ranks\n{report}");
    let report = verifier(subject)
        .micro_batches(MICRO_BATCHES)
        .run()
        .unwrap();
    assert!(report.holds(), "{report}");
    let named = |name| {
        let mut checks = report.checks.iter();
        checks.find(|check| check.name == name).unwrap()
    };
    let least = if most < 3 { 20 } else { 54 };
    assert!(named("same bits").cases >= least, "{report}");
    assert_eq!(named("whole mini-batch").cases, MICRO_BATCHES.len());
    for name in ["same bits", "evaluation", "failed step", "memory"] {
        assert!(!matches!(named(name).verdict, Outcome::Skipped(_)));
    }
    // All models have two stages, and windows of any but those that share parameters.
    let windows = named("windows");
    let shares = Outcome::Skipped(WindowError::SharedParameters.to_string());
    assert!(windows.verdict == shares || windows.cases >= 5, "{report}");
    let statistics = named("running statistics");
    assert!((statistics.cases > 0) == (statistics.verdict == Outcome::Holds));
    statistics.cases
}
