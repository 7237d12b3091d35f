//! Stages, schedules and recomputation.

use std::collections::BTreeMap;

use stovepipe_pipeline::{Flow, Held, Layer, Objective};

use super::allowed;
use crate::{case::Case, report::Check, subject::Subject};

impl<L, T, O> Subject<L, T, O>
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    /// Whether training and evaluation give the same for every number of stages, schedule and mode of
    /// recomputation. Also returns what each stage held. Calls `done` after each case.
    pub(crate) fn check_cut(
        &self,
        cases: &[Case],
        mut done: impl FnMut(),
    ) -> (Check, Vec<(Case, Vec<Held>)>) {
        let compared = "stages × schedules × recomputation with one stage";
        let mut check = Check::new("same bits", compared, allowed(&self.device));
        let (mut one_stage, mut held) = (BTreeMap::new(), Vec::new());
        for case in cases {
            let run = |case: &Case, held: &mut Vec<_>| {
                let (snapshot, stages) = self.run(case)?;
                held.push((*case, stages));
                Ok(snapshot)
            };
            let expected = (one_stage.entry(case.micro_batches))
                .or_insert_with_key(|&n| run(&Case::simplest(n), &mut Vec::new()));
            check.compare(case, &run(case, &mut held), expected);
            done();
        }
        let check = check.finished(
            "a layer computes something else when it runs again, on another thread, or next to \
             other layers: it must be a function of its parameters, its input and its context",
        );
        (check, held)
    }
}
