//! The mini-batch in one piece.

use stovepipe_pipeline::{Flow, Layer, Objective};

use super::ROUNDING;
use crate::{
    case::{Case, CaseError},
    report::Check,
    snapshot::Snapshot,
    subject::{Subject, parts},
};

impl<L, T, O> Subject<L, T, O>
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    /// Whether loss and gradients are those that Burn computes without a pipeline: of the mini-batch in one
    /// piece or, if layers normalize over the batch, of its micro-batches one after another.
    pub(crate) fn check_mini_batch(&self, micro_batches: &[usize]) -> Check {
        let in_parts = self.has_batch_statistics();
        let compared = if in_parts {
            "loss and gradients with those of plain micro-batches, added up"
        } else {
            "loss and gradients with those of the mini-batch in one piece"
        };
        let mut check = Check::new("whole mini-batch", compared, ROUNDING);
        for &micro_batches in micro_batches {
            let pieces = if in_parts { micro_batches } else { 1 };
            let expected = self.plain_step(&parts(self.samples(), pieces));
            let case = Case::simplest(micro_batches);
            check.compare(&case, &self.loss_and_gradients(&case), &expected);
        }
        check.finished(
            "the objective's `weight` is not what its `loss` is a sum over, or a layer reads other \
             samples than its own",
        )
    }

    fn loss_and_gradients(&self, case: &Case) -> Result<Snapshot, CaseError> {
        let pipeline = self.build(case)?;
        let step = self.train(&pipeline)?;
        let mut snapshot = Snapshot::default();
        let layers = &pipeline.layers().to_vec();
        snapshot.loss_and_gradients("step 1", step.loss, layers, &step.gradients);
        Ok(snapshot)
    }
}
