//! Computes how good a model is.

use stovepipe_pipeline::{Flow, Layer, Objective, Pipeline};

use super::{definition::Task, totals::Totals};
use crate::{data::Batches, error::TrainError};

/// Evaluates a model on batches, such as those of [`Source::test`](crate::Source::test), with the
/// task's test objective. `on_batch` gets the number of samples so far.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use stovepipe_pipeline::Pipeline;
/// use stovepipe_train::{Batches, Task, TrainSettings, evaluate, example::Dense};
///
/// let device = Device::flex();
/// let pipeline = Pipeline::builder(vec![Dense::new(3, 2)]).devices([device.clone()]).build()?;
/// let batch = (Tensor::ones([4, 3], &device), Tensor::<1, Int>::zeros([4], &device));
/// let batches: Batches<_, _> = Box::new([Ok(batch.into())].into_iter());
/// let task = Task::classification(&TrainSettings::default());
/// let totals = evaluate(&pipeline, batches, &task, |_| ())?;
/// assert_eq!(totals.samples, 4);
/// assert_eq!(task.metrics(&totals).get("top5"), Some(1.0)); // of two classes
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If a batch cannot be loaded, or a forward pass fails.
pub fn evaluate<L: Layer, T: Flow, O>(
    pipeline: &Pipeline<L>,
    batches: Batches<L::Input, T, L::Side>,
    task: &Task<O>,
    mut on_batch: impl FnMut(usize),
) -> Result<Totals, TrainError>
where
    O: Objective<L::Output, T>,
{
    let mut totals = task.zero();
    for batch in batches {
        let batch = batch?;
        let samples = batch.parts().map(|(input, ..)| samples(input)).sum();
        let found = pipeline.evaluate(batch, &task.test)?;
        let loss = (found.loss, found.weight);
        task.add(&mut totals, samples, loss, &found.scores)?;
        on_batch(totals.samples);
    }
    Ok(totals)
}

fn samples(input: &impl Flow) -> usize {
    let mut sizes = Vec::new();
    input.batch_sizes(&mut sizes);
    sizes.first().copied().unwrap_or(0)
}
