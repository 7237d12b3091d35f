//! The second phase of a training step: the stages run their schedule.

use std::sync::{Arc, atomic::Ordering};

use super::split::MiniBatch;
use crate::{
    api::{
        error::StepError, gradient_store::GradientStore, objective::Objective, pipeline::Pipeline,
        tasks::loss_on,
    },
    engine::{
        gradient_sums::Stored,
        parts::OutputUse,
        pass_sums::PassSums,
        stage::Training,
        step::{self, StepResult},
    },
    model::{flow::Flow, layer::Layer},
};

impl<L: Layer> Pipeline<L> {
    /// Runs a mini-batch, and checks each value if it is to `inspect`.
    pub(super) fn run<T: Flow>(
        &self,
        batch: &MiniBatch<L, T>,
        objective: &impl Objective<L::Output, T>,
        inspect: bool,
    ) -> Result<StepResult<L>, StepError> {
        let training = Arc::new(Training {
            schedule: batch.schedule.clone(),
            trainable_from: batch.trainable_from,
            momenta: self.engine.momenta.clone(),
            only_counts: false,
            checks_finite: self.engine.check_finite || self.loss_scaler().is_some(),
            inspect,
            sums: (!inspect && self.engine.sums_passes.load(Ordering::Acquire))
                .then(PassSums::default),
            loss_scale: self.loss_scaler().map(|scaler| scaler.scale()),
        });
        let inputs = batch.inputs.clone();
        let split = (&batch.sizes[..], &batch.schedule.turns);
        let tasks = self.tasks(inputs, split, Some(&training), |stage| {
            let (targets, weight) = (&batch.targets, batch.weight);
            Ok(OutputUse {
                loss: Some(loss_on::<L, T>(stage, objective, targets, weight)?),
                keep_outputs: batch.keeps_outputs,
            })
        });
        let tasks = tasks.map(|mut tasks| {
            for task in &mut tasks {
                let store = batch.stores.get(task.seat.stage).cloned().flatten();
                task.stored = store.and_then(|store| self.stored(task.seat.stage, store));
            }
            tasks
        });
        step::run(&self.engine, &batch.schedule, tasks, |_| Ok(()))
    }

    /// What of a stage's gradients lies in its store: not what is to be added to those of other layers or replicas.
    fn stored(&self, stage: usize, store: Arc<dyn GradientStore<L>>) -> Option<Stored<L>> {
        let layers = self.engine.stages[stage].layers.clone();
        let layers: Vec<bool> = layers.map(|layer| self.stores_gradients(layer)).collect();
        layers.contains(&true).then_some(Stored { store, layers })
    }
}
