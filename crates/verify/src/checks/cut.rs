//! Stages, schedules and recomputation.

use std::collections::BTreeMap;

use stovepipe_pipeline::{Flow, Held, Layer, Objective};

use super::{allowed, compare};
use crate::{case::Case, report::Check, subject::Subject};

/// Whether training, evaluation and training again show the same under every number of stages, schedule
/// and mode of recomputation.
/// Returns what each stage held, too.
pub(crate) fn cut<L, T, O>(
    subject: &Subject<L, T, O>,
    cases: &[Case],
    told: &dyn Fn(),
) -> (Check, Vec<(Case, Vec<Held>)>)
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    let compared = "stages × schedules × recomputation with one stage";
    let mut check = Check::new("same bits", compared, allowed(&subject.device));
    let (mut one_stage, mut held) = (BTreeMap::new(), Vec::new());
    for case in cases {
        let micro_batches = case.micro_batches;
        let expected = (one_stage.entry(micro_batches))
            .or_insert_with(|| subject.run(&Case::plainest(micro_batches)));
        match (subject.run(case), expected) {
            (Ok(found), Ok(expected)) => {
                let difference = compare(&subject.device, &found.seen, &expected.seen);
                let place = difference.place.unwrap_or_default();
                check.case(difference.size, || format!("{place} ({case})"));
                held.push((*case, found.held));
            }
            (Err(why), _) => check.failed(format!("{case}: {why}")),
            (_, Err(why)) => check.failed(format!("{}: {why}", Case::plainest(micro_batches))),
        }
        told();
    }
    let check = check.judged(
        "a layer does something else when it is run again, or on another thread, or next to other \
         layers: it must be a function of its parameters, its input and its context alone",
    );
    (check, held)
}
