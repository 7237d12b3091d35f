//! The same step twice.

use burn::tensor::{Distribution, Tensor};
use stovepipe_pipeline::{Flow, Layer, Objective};

use super::allowed;
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
    /// Whether the model is a function of its parameters, its input and its key. All other checks need this.
    pub(crate) fn check_repeated(&self) -> Check {
        let compared = "two runs of the same step";
        let mut check = Check::new("repeatable", compared, allowed(&self.device));
        let case = Case::simplest(2);
        let first = self.step_after_draws(&case, 0);
        check.compare(&case, &self.step_after_draws(&case, 5), &first);
        check.finished(
            "a layer draws random numbers that are not keyed (use those of `Context::rng`), or keeps \
             something between runs",
        )
    }

    /// A first step, after something else drew numbers from Burn's generator.
    fn step_after_draws(&self, case: &Case, draws: usize) -> Result<Snapshot, CaseError> {
        let pipeline = self.build(case)?;
        let _ = Tensor::<1>::random([draws], Distribution::Default, &self.device);
        let step = self.train(&pipeline)?;
        let mut snapshot = Snapshot::default();
        snapshot.step("step 1", &pipeline, &step);
        Ok(snapshot)
    }

    /// A first step.
    pub(super) fn first_step(&self, case: &Case) -> Result<Snapshot, CaseError> {
        self.step_after_draws(case, 0)
    }
}
