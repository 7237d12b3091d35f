//! What a step is given, and what it returns.

use burn::optim::GradientsParams;
use stovepipe_schedule::Timeline;

use crate::{
    api::error::StepError,
    engine::{guard, stage::Held},
    model::{flow::Flow, layer::Layer},
};

/// A mini-batch: input, target, and what stages read from the side.
///
/// Input and target are cut along the batch. So is `side`, but for what is
/// [`Replicated`](crate::Replicated) in it or brings a `split` of its own.
#[derive(Clone, Debug)]
pub struct Batch<I, T, S = ()> {
    /// What the model is given.
    pub input: I,
    /// What it should return.
    pub target: T,
    /// What stages read from the side.
    pub side: S,
}

impl<I, T> From<(I, T)> for Batch<I, T> {
    fn from((input, target): (I, T)) -> Self {
        let side = ();
        Self {
            input,
            target,
            side,
        }
    }
}

/// Whether a training step returns the model's outputs, which hold memory on the last stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outputs {
    /// It does not.
    Drop,
    /// It does.
    Keep,
}

/// What a training step returns.
#[derive(Debug)]
#[must_use = "the gradients of a step change nothing until an optimizer takes them"]
pub struct Step<L: Layer> {
    /// The objective's mean over the mini-batch, auxiliary losses included.
    pub loss: f64,
    /// The auxiliary losses' part of it.
    pub auxiliary_loss: f64,
    /// The weight that the mean was taken over: samples, or tokens that count.
    pub weight: f64,
    /// The objective's [scores](crate::Objective::scores), summed over the mini-batch; empty if it has none.
    pub scores: Vec<f64>,
    /// The model's outputs for the whole mini-batch, if asked for; without a graph, on the last
    /// stage's device.
    pub outputs: Option<L::Output>,
    /// The gradient of each parameter, on the device of its stage.
    pub gradients: GradientsParams,
    /// Whether the step is to be skipped: in f16, its gradients were not finite, so that there are none, running
    /// statistics are what they were, and the [scale of the loss](crate::LossScaler) is halved. An optimizer
    /// that takes no gradients changes nothing.
    pub overflowed: bool,
    /// The number of samples in each micro-batch.
    pub micro_batches: Vec<usize>,
    /// What each worker did when.
    pub timeline: Timeline,
    /// The most that each stage held.
    pub held: Vec<Held>,
}

impl<L: Layer> Step<L> {
    /// The share of the step in which workers were idle.
    #[must_use]
    pub fn bubble(&self) -> f64 {
        self.timeline.bubble()
    }
}

/// How good a model's outputs for a batch are.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// The objective's mean over the batch.
    pub loss: f64,
    /// The weight that the mean was taken over: samples, or tokens that count.
    pub weight: f64,
    /// The objective's [scores](crate::Objective::scores), summed over the batch; empty if it has none.
    pub scores: Vec<f64>,
}

/// The sizes of at most `micro_batches` parts of a batch, which differ by one at most.
pub(crate) fn micro_batch_sizes(samples: usize, micro_batches: usize) -> Vec<usize> {
    let parts = micro_batches.min(samples);
    (0..parts)
        .map(|part| samples / parts + usize::from(part < samples % parts))
        .collect()
}

/// The number of samples in an input; all its tensors must agree.
pub(crate) fn samples<F: Flow>(input: &F) -> Result<usize, StepError> {
    let mut sizes = Vec::new();
    input.batch_sizes(&mut sizes);
    let samples = sizes.first().copied().unwrap_or(0);
    if samples == 0 {
        return Err(StepError::EmptyBatch);
    }
    check_part(&sizes, samples, "input").map(|()| samples)
}

/// Cuts a part of a batch, which must hold as many samples as the input.
pub(crate) fn split<F: Flow>(
    flow: F,
    sizes: &[usize],
    part: &'static str,
) -> Result<Vec<F>, StepError> {
    let mut own = Vec::new();
    flow.batch_sizes(&mut own);
    check_part(&own, sizes.iter().sum(), part)?;
    let parts = guard::guarded(part, || flow.split(sizes))?;
    match parts.len() == sizes.len() {
        true => Ok(parts),
        false => Err(StepError::BadSplit {
            part,
            found: parts.len(),
            expected: sizes.len(),
        }),
    }
}

fn check_part(sizes: &[usize], samples: usize, part: &'static str) -> Result<(), StepError> {
    match sizes.iter().find(|&&size| size != samples) {
        None => Ok(()),
        Some(&other) => Err(StepError::UnevenBatch {
            input: samples,
            other,
            part,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micro_batches_differ_by_one_at_most_and_are_never_empty() {
        let check = |samples, micro_batches, expected: &[usize]| {
            assert_eq!(micro_batch_sizes(samples, micro_batches), expected);
        };
        check(8, 4, &[2, 2, 2, 2]);
        check(10, 4, &[3, 3, 2, 2]);
        check(3, 8, &[1, 1, 1]);
        check(1, 1, &[1]);
    }
}
