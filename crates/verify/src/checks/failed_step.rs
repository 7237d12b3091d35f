//! A step that fails.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use burn::tensor::Tensor;
use stovepipe_pipeline::{Flow, Layer, Objective, Pipeline, StepError};

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
    /// Whether a step with a loss of NaN fails with an error that names the place, and changes neither the
    /// model nor the next step.
    pub(crate) fn check_failed_step(&self, cases: &[Case]) -> Check {
        let compared = "the step after a failed one with a first step";
        let mut check = Check::new("failed step", compared, allowed(&self.device));
        let has_more_workers = cases.iter().any(|case| case.workers > 1);
        // One number of micro-batches is enough: the place of the failure does not depend on it.
        let micro_batches = cases.last().map(|last| last.micro_batches);
        for case in cases {
            let is_tried = case.workers > 1 || !has_more_workers;
            if is_tried && Some(case.micro_batches) == micro_batches {
                check.compare(case, &self.step_after_failure(case), &self.first_step(case));
            }
        }
        check.finished("a layer keeps something of a step that failed")
    }

    fn step_after_failure(&self, case: &Case) -> Result<Snapshot, CaseError> {
        let pipeline = self.build(case)?;
        let fails = Arc::new(AtomicBool::new(true));
        let objective = Spoilt {
            objective: self.objective.clone(),
            fails: fails.clone(),
        };
        let model = |pipeline: &Pipeline<L>| {
            let mut snapshot = Snapshot::default();
            snapshot.module("", &pipeline.layers().to_vec());
            snapshot
        };
        let before = model(&pipeline);
        let batch = self.batch.clone().keep_outputs();
        match pipeline.train_step(batch.clone(), &objective) {
            Err(StepError::NotFinite {
                place: Some(failure),
                ..
            }) if failure.stage + 1 == pipeline.stages().len() => {}
            Err(error) => return Err(CaseError::WrongError(error)),
            Ok(_) => return Err(CaseError::NoError),
        }
        let change = model(&pipeline).difference(&before, true);
        if change.size > 0.0 {
            return Err(CaseError::Changed(change.place));
        }
        fails.store(false, Ordering::SeqCst);
        let step = pipeline.train_step(batch, &objective)?;
        let mut snapshot = Snapshot::default();
        snapshot.step("step 1", &pipeline, &step);
        Ok(snapshot)
    }
}

/// An objective with a loss of NaN while `fails` is set.
#[derive(Clone)]
struct Spoilt<O> {
    objective: O,
    fails: Arc<AtomicBool>,
}

impl<Out, T, O: Objective<Out, T>> Objective<Out, T> for Spoilt<O> {
    fn loss(&self, output: Out, target: T) -> Tensor<1> {
        let loss = self.objective.loss(output, target);
        if self.fails.load(Ordering::SeqCst) {
            loss.mul_scalar(f32::NAN)
        } else {
            loss
        }
    }

    fn weight(&self, target: &T) -> f64 {
        self.objective.weight(target)
    }

    fn auxiliary_loss(&self, output: Out, target: T) -> Tensor<1> {
        self.objective.auxiliary_loss(output, target)
    }
}
