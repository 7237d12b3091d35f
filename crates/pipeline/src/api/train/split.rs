//! The first phase of a training step: the mini-batch becomes micro-batches.

use std::sync::Arc;

use stovepipe_comm::Terms;

use crate::{
    api::{
        batch::Batch,
        error::StepError,
        gradient_store::GradientStore,
        objective::Objective,
        pipeline::Pipeline,
        tasks::{SplitBatch, StepInputs, sizes_term},
    },
    engine::schedules::StepSchedule,
    model::{flow::Flow, layer::Layer, unkeyed},
};

/// A mini-batch and how it is to be run.
pub(super) struct MiniBatch<L: Layer, T> {
    pub(super) inputs: StepInputs<L>,
    /// The samples of each micro-batch.
    pub(super) sizes: Vec<usize>,
    /// The target of each micro-batch.
    pub(super) targets: Vec<T>,
    /// What the sum of losses is divided by.
    pub(super) weight: f64,
    pub(super) keeps_outputs: bool,
    pub(super) schedule: Arc<StepSchedule>,
    /// The first layer that has something to train: of this process, until all have met.
    pub(super) trainable_from: usize,
    /// Of stages.
    pub(super) stores: Vec<Option<Arc<dyn GradientStore<L>>>>,
}

impl<L: Layer, T: Flow> MiniBatch<L, T> {
    pub(super) fn split(
        pipeline: &Pipeline<L>,
        batch: Batch<L::Input, T, L::Side>,
        objective: &impl Objective<L::Output, T>,
        stores: &[Option<Arc<dyn GradientStore<L>>>],
    ) -> Result<Self, StepError> {
        let engine = &pipeline.engine;
        let keeps_outputs = batch.keeps_outputs;
        let batch = SplitBatch::<L, T>::new(batch, engine.micro_batches, objective)?;
        // A layer that was frozen when the pipeline was built may draw random numbers now.
        let recompute = &engine.schedules.recompute;
        unkeyed::check(pipeline.layers(), engine.unkeyed_policy, recompute)?;
        let schedule = engine.schedules.of(batch.sizes.len())?;
        Ok(Self {
            trainable_from: pipeline.trainable_from(),
            inputs: batch.inputs,
            sizes: batch.sizes,
            targets: batch.targets,
            weight: batch.weight,
            keeps_outputs,
            schedule,
            stores: stores.to_vec(),
        })
    }

    /// What all processes must agree on.
    pub(super) fn terms(&self, pipeline: &Pipeline<L>) -> Terms {
        let term = |name: &str, value: String| (name.to_owned(), value);
        let mut terms = pipeline.call_terms("train_step");
        terms.extend([
            sizes_term(&self.sizes),
            term("the batch's weight", self.weight.to_string()),
            term("whether outputs are kept", self.keeps_outputs.to_string()),
        ]);
        terms
    }
}
