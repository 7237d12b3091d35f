//! Evaluation.

use std::collections::BTreeSet;

use burn::module::Module;
use stovepipe_pipeline::{Flow, KeyedRng, Layer, Objective, run_plain};
use stovepipe_schedule::Scheduler;

use super::ROUNDING;
use crate::{
    case::{Case, CaseError},
    report::Check,
    snapshot::Snapshot,
    subject::Subject,
};

impl<L, T, O> Subject<L, T, O>
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    /// Whether a pipeline evaluates like the plain model, and does not change it.
    pub(crate) fn check_evaluation(&self, cases: &[Case]) -> Check {
        let compared = "outputs with those of the plain model, and the model with itself";
        let mut check = Check::new("evaluation", compared, ROUNDING);
        let expected = self.evaluated_plainly();
        // Schedules and recomputation are for training.
        let mut checked = BTreeSet::new();
        for case in cases {
            if checked.insert((case.rule.stages(1), case.workers, case.micro_batches)) {
                check.compare(case, &self.evaluated(case), &expected);
            }
        }
        check.finished("a layer reads other samples than its own when it does not train")
    }

    fn evaluated_plainly(&self) -> Result<Snapshot, CaseError> {
        let layers = self.layers.valid();
        let (input, side) = self.evaluation.clone();
        let output = run_plain(&layers, input, &side, |_| KeyedRng::none())?.output;
        Ok(snapshot(&output, &layers))
    }

    fn evaluated(&self, case: &Case) -> Result<Snapshot, CaseError> {
        let pipeline = self.build(case)?;
        let output = self.evaluate(&pipeline)?;
        Ok(snapshot(&output, &pipeline.layers().to_vec()))
    }
}

fn snapshot(output: &impl Flow, layers: &impl Module) -> Snapshot {
    let mut snapshot = Snapshot::default();
    snapshot.flow("the output", output);
    snapshot.module("after evaluation, ", layers);
    snapshot
}
