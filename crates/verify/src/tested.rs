//! What is under test: an objective, and a training step.

use burn::tensor::Tensor;
use stovepipe_pipeline::{Batch, Layer, Objective, Pipeline, Step, StepError};

/// Trains a step.
pub(crate) type TrainingStep<L, T, O> = Box<
    dyn Fn(
        &Pipeline<L>,
        Batch<<L as Layer>::Input, T, <L as Layer>::Side>,
        &Tested<O>,
    ) -> Result<Step<L>, StepError>,
>;

/// The objective of a [`Verifier`](crate::Verifier). Its loss is NaN where a check wants a step to fail.
#[derive(Clone, Debug)]
pub struct Tested<O> {
    objective: O,
    fails: bool,
}

impl<O> Tested<O> {
    pub(crate) fn new(objective: O) -> Self {
        let fails = false;
        Self { objective, fails }
    }

    pub(crate) fn failing(objective: O) -> Self {
        let fails = true;
        Self { objective, fails }
    }
}

impl<Out, T, O: Objective<Out, T>> Objective<Out, T> for Tested<O> {
    fn loss(&self, output: Out, target: T) -> Tensor<1> {
        let loss = self.objective.loss(output, target);
        if self.fails {
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

    fn scores(&self, output: Out, target: T) -> Option<Tensor<1>> {
        self.objective.scores(output, target)
    }
}
