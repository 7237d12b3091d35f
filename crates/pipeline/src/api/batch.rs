//! The input and the results of a step.

use burn::optim::GradientsParams;
use stovepipe_schedule::{Action, Timeline};

use crate::{
    api::error::StepError,
    engine::{panic::caught, pass_sums::PassSum, report::Held},
    model::{flow::Flow, layer::Layer},
};

/// A mini-batch: inputs, targets and side inputs.
///
/// Methods take a tuple, `(input, target)` or `(input, target, side)`, or a `Batch`. All three parts are
/// split along the batch; what is [`Replicated`](crate::Replicated) is not. A batch may also
/// [bring](Self::and) its own micro-batches.
#[derive(Clone, Debug)]
pub struct Batch<I, T, S = ()> {
    /// The model's input; of the first micro-batch, if the batch brings its own.
    pub input: I,
    /// The objective's target.
    pub target: T,
    /// What layers read beside their input, such as a mask.
    pub side: S,
    pub(crate) keeps_outputs: bool,
    /// The other micro-batches, if it brings its own.
    pub(crate) others: Vec<(I, T, S)>,
}

impl<I, T> Batch<I, T> {
    /// A batch without side inputs.
    pub fn new(input: I, target: T) -> Self {
        Self::from((input, target, ()))
    }
}

impl<I, T, S> Batch<I, T, S> {
    /// Makes a training step return the model's [outputs](Step::outputs), which need memory on the last
    /// stage.
    #[must_use]
    pub fn keep_outputs(mut self) -> Self {
        self.keeps_outputs = true;
        self
    }

    /// Adds a micro-batch. The batch is not split then: what it begins with is the first micro-batch. They
    /// may have unequal numbers of samples, and sequences of unequal lengths, so that little is padded.
    /// Their number is that of the batch, whatever the pipeline's is.
    ///
    /// The loss is still the mean over all: each micro-batch counts by its weight.
    ///
    /// ```
    /// use burn::tensor::{Device, Int, Tensor};
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use stovepipe_pipeline::{Batch, CrossEntropy, Pipeline};
    ///
    /// let device = Device::flex();
    /// let pipeline = Pipeline::builder(Dense::layers(&[3, 2])).devices([device.clone()]).build()?;
    /// let part = |n| (Tensor::<2>::ones([n, 3], &device), Tensor::<1, Int>::zeros([n], &device));
    /// let batch = Batch::from(part(3)).and(part(1));
    /// let step = pipeline.train_step(batch, &CrossEntropy::new())?;
    /// assert_eq!((step.micro_batches, step.weight), (vec![3, 1], 4.0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn and(mut self, micro_batch: impl Into<Self>) -> Self {
        let Self {
            input,
            target,
            side,
            others,
            ..
        } = micro_batch.into();
        self.others.push((input, target, side));
        self.others.extend(others);
        self
    }

    /// The input, the target and the side input: of all samples, or of each micro-batch if the batch brings
    /// its own.
    ///
    /// ```
    /// use stovepipe_pipeline::Batch;
    ///
    /// assert_eq!(Batch::new(1, 2).and((3, 4)).parts().count(), 2);
    /// ```
    pub fn parts(&self) -> impl Iterator<Item = (&I, &T, &S)> {
        let others = self
            .others
            .iter()
            .map(|(input, target, side)| (input, target, side));
        [(&self.input, &self.target, &self.side)]
            .into_iter()
            .chain(others)
    }
}

impl<I, T> From<(I, T)> for Batch<I, T> {
    fn from((input, target): (I, T)) -> Self {
        Self::new(input, target)
    }
}

impl<I, T, S> From<(I, T, S)> for Batch<I, T, S> {
    fn from((input, target, side): (I, T, S)) -> Self {
        Self {
            input,
            target,
            side,
            keeps_outputs: false,
            others: Vec::new(),
        }
    }
}

/// The inputs of inference: the model's input, or `(input, side)`.
#[derive(Clone, Debug)]
pub struct Inputs<I, S = ()> {
    /// The model's input.
    pub input: I,
    /// What layers read beside their input.
    pub side: S,
}

impl<I> From<I> for Inputs<I> {
    fn from(input: I) -> Self {
        Self { input, side: () }
    }
}

impl<I, S> From<(I, S)> for Inputs<I, S> {
    fn from((input, side): (I, S)) -> Self {
        Self { input, side }
    }
}

/// The results of a training step.
#[derive(Debug)]
#[must_use = "the gradients of a step change nothing until an optimizer applies them"]
pub struct Step<L: Layer> {
    /// The mean loss over the mini-batch, with auxiliary losses.
    pub loss: f64,
    /// The part of the loss that comes from auxiliary heads.
    pub auxiliary_loss: f64,
    /// The weight of the mini-batch: its samples, or its tokens that are not padding.
    pub weight: f64,
    /// The objective's [scores](crate::Objective::scores), summed over the mini-batch; empty if it has none.
    pub scores: Vec<f64>,
    /// The model's outputs if the batch [keeps](Batch::keep_outputs) them; without a graph, on the last
    /// stage's device.
    pub outputs: Option<L::Output>,
    /// The gradient of each parameter, on the device of its stage.
    pub gradients: GradientsParams,
    /// Whether this step must be skipped, in f16: its gradients were not finite. There are none then,
    /// running statistics did not change, and the [scale of the loss](crate::LossScaler) is halved.
    pub overflowed: bool,
    /// The number of samples in each micro-batch.
    pub micro_batches: Vec<usize>,
    /// What each worker did when.
    pub timeline: Timeline,
    /// The most that each stage kept at once.
    pub held: Vec<Held>,
    /// [Sums](crate::Pipeline::set_pass_sums) of what the passes computed, by micro-batch and in the order of its
    /// passes.
    pub passes: Vec<PassSum>,
}

impl<L: Layer> Step<L> {
    /// The share of the step in which workers were idle.
    #[must_use]
    pub fn bubble(&self) -> f64 {
        self.timeline.bubble()
    }
}

/// The progress of a step, reported after each action on the thread that called the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The worker that finished an action.
    pub worker: usize,
    /// The finished action.
    pub action: Action,
    /// Finished actions of all workers in this step.
    pub done: usize,
    /// All actions of this step.
    pub total: usize,
}

/// The results of an evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// The mean loss over the batch.
    pub loss: f64,
    /// The weight of the batch: its samples, or its tokens that are not padding.
    pub weight: f64,
    /// The objective's [scores](crate::Objective::scores), summed over the batch; empty if it has none.
    pub scores: Vec<f64>,
}

/// The sizes of at most `parts` parts, which differ by one at most; the first ones are larger.
pub(crate) fn even_parts(total: usize, parts: usize) -> Vec<usize> {
    let parts = parts.min(total);
    let size = |part| total / parts + usize::from(part < total % parts);
    (0..parts).map(size).collect()
}

/// The number of samples in an input; all its tensors must agree.
pub(crate) fn samples<F: Flow>(input: &F) -> Result<usize, StepError> {
    let mut sizes = Vec::new();
    input.batch_sizes(&mut sizes);
    let samples = sizes.first().copied().unwrap_or(0);
    if samples == 0 {
        return Err(StepError::EmptyBatch);
    }
    check_part(&sizes, samples, "input")?;
    Ok(samples)
}

/// Splits a part of a batch, which must have as many samples as the input.
pub(crate) fn split<F: Flow>(
    flow: F,
    sizes: &[usize],
    part: &'static str,
) -> Result<Vec<F>, StepError> {
    let mut own = Vec::new();
    flow.batch_sizes(&mut own);
    check_part(&own, sizes.iter().sum(), part)?;
    let parts = caught(|| flow.split(sizes)).map_err(StepError::panicked(part))?;
    let (found, expected) = (parts.len(), sizes.len());
    if found == expected {
        return Ok(parts);
    }
    Err(StepError::BadSplit {
        part,
        found,
        expected,
    })
}

fn check_part(sizes: &[usize], input: usize, part: &'static str) -> Result<(), StepError> {
    match sizes.iter().copied().find(|&size| size != input) {
        None => Ok(()),
        Some(other) => Err(StepError::UnevenBatch { input, other, part }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micro_batches_differ_by_one_at_most_and_are_never_empty() {
        let check = |samples, micro_batches, expected: &[usize]| {
            assert_eq!(even_parts(samples, micro_batches), expected);
        };
        check(8, 4, &[2, 2, 2, 2]);
        check(10, 4, &[3, 3, 2, 2]);
        check(3, 8, &[1, 1, 1]);
        check(1, 1, &[1]);
    }
}
