//! What the stages get for a step, and how their results are combined.

use std::{collections::HashMap, ops::Range, sync::Arc};

use crate::{
    api::{
        batch::{self, Inputs},
        error::StepError,
        objective::Objective,
        pipeline::Pipeline,
    },
    engine::{
        core::StagePlacement,
        links::Links,
        panic::caught,
        stage::{MicroBatchLoss, OutputUse, StageResult, StageTask, Training},
        tape::{Head, LossAndScores},
        values,
    },
    model::{flow::Flow, layer::Layer},
};

impl<L: Layer> Pipeline<L> {
    /// The task of each stage; without `training`, it runs forward as in evaluation.
    pub(crate) fn tasks(
        &self,
        inputs: Inputs<L::Input, L::Side>,
        sizes: &[usize],
        training: Option<&Arc<Training>>,
        outputs: impl Fn(&StagePlacement) -> OutputUse<L>,
    ) -> Result<Vec<StageTask<L>>, StepError> {
        if self.layers.is_empty() {
            return Err(StepError::LayersLost);
        }
        let mut inputs_of_first = batch::split(inputs.input, sizes, "input")?;
        let side = batch::split(inputs.side, sizes, "side input")?;
        let samples: Arc<[_]> = ranges(sizes).collect();
        let engine = &self.engine;
        let skips: Vec<_> = (engine.stages.iter())
            .map(|stage| stage.skips.clone())
            .collect();
        let trainable_from = training.map_or(usize::MAX, |training| training.trainable_from);
        let links = Links::of_stages(&skips, trainable_from, &engine.transfers);
        let task = |(index, (stage, links)): (usize, (&StagePlacement, _))| StageTask {
            index,
            stage: stage.clone(),
            layers: self.layers_of(stage).to_vec(),
            links,
            dtype: engine.precision.cast(),
            inputs: std::mem::take(&mut inputs_of_first),
            side: side.clone(),
            samples: samples.clone(),
            training: training.cloned(),
            outputs: outputs(stage),
        };
        let stages = engine.stages.iter().zip(links).enumerate();
        Ok(stages.map(task).collect())
    }
}

/// The loss of a micro-batch on a stage, as a share of the mini-batch's mean, and its scores.
pub(crate) fn loss_on<L: Layer, T: Flow>(
    stage: &StagePlacement,
    objective: &impl Objective<L::Output, T>,
    targets: &[T],
    weight: f64,
) -> MicroBatchLoss<L> {
    let device = stage.device.clone();
    let (objective, targets) = (objective.clone(), targets.to_vec());
    Box::new(move |micro_batch, head, output| {
        let target = values::to_device(targets[micro_batch].clone(), &device);
        let output = values::widened(output);
        let (loss, scores) = match head {
            Head::Main => {
                let scores = objective.scores(values::detach(output.clone()), target.clone());
                (objective.loss(output, target), scores)
            }
            Head::Auxiliary => (objective.auxiliary_loss(output, target), None),
        };
        LossAndScores {
            loss: loss.div_scalar(weight),
            scores,
        }
    })
}

/// The auxiliary and the main losses of a mini-batch, added in the order of micro-batches.
pub(crate) fn sum_losses<L: Layer>(stages: &[StageResult<L>], micro_batches: usize) -> (f64, f64) {
    let sum = |micro_batch| {
        let of = |losses: &HashMap<usize, f64>| losses.get(&micro_batch).copied().unwrap_or(0.0);
        let auxiliary: f64 = stages.iter().map(|stage| of(&stage.auxiliary)).sum();
        let main: f64 = stages.iter().map(|stage| of(&stage.losses)).sum();
        (auxiliary, main)
    };
    (0..micro_batches)
        .map(sum)
        .fold((0.0, 0.0), |(a, b), (c, d)| (a + c, b + d))
}

/// The scores of a mini-batch, added in the order of micro-batches.
pub(crate) fn sum_scores<L: Layer>(stages: &[StageResult<L>], micro_batches: usize) -> Vec<f64> {
    let mut sums = Vec::new();
    let scores = stages.last().map(|stage| &stage.scores);
    for scores in (0..micro_batches).filter_map(|micro_batch| scores?.get(&micro_batch)) {
        sums.resize(scores.len().max(sums.len()), 0.0);
        for (sum, score) in sums.iter_mut().zip(scores) {
            *sum += score;
        }
    }
    sums
}

/// The weight of a mini-batch.
pub(crate) fn weight_of<O, T>(
    objective: &impl Objective<O, T>,
    target: &T,
) -> Result<f64, StepError> {
    let weight = caught(|| objective.weight(target));
    let weight = weight.map_err(StepError::panicked("objective's weight"))?;
    if weight.is_finite() && weight > 0.0 {
        Ok(weight)
    } else {
        Err(StepError::NoWeight { weight })
    }
}

/// Joins the outputs that the last stage kept.
pub(crate) fn join_outputs<L: Layer>(
    mut stages: Vec<StageResult<L>>,
    micro_batches: usize,
) -> Result<L::Output, StepError> {
    let last = stages.last_mut();
    let mut outputs = last.map_or_else(HashMap::new, |stage| std::mem::take(&mut stage.outputs));
    let parts: Option<Vec<_>> = (0..micro_batches)
        .map(|micro_batch| outputs.remove(&micro_batch))
        .collect();
    parts.and_then(values::join).ok_or(StepError::UnlikeOutputs)
}

/// The samples of each micro-batch, by their index in the mini-batch.
fn ranges(sizes: &[usize]) -> impl Iterator<Item = Range<usize>> {
    sizes.iter().scan(0, |start, &size| {
        *start += size;
        Some(*start - size..*start)
    })
}
