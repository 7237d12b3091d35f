//! The third phase of a training step: how it went.

use crate::{api::pipeline::Pipeline, engine::step::StepResult, model::layer::Layer};

pub(super) enum Outcome {
    Succeeded,
    /// In f16: the model does not change, but a smaller scale of the loss may help.
    Overflowed,
    /// What is NaN or infinite.
    NotFinite(String),
}

impl<L: Layer> Pipeline<L> {
    /// Finds how a step went, and drops what it computed if it overflowed.
    pub(super) fn agree(&self, result: &mut StepResult<L>) -> Outcome {
        let not_finite = self.not_finite(result);
        if self.update_scaler(not_finite.is_some()) {
            for stage in &mut result.stages {
                stage.gradients.clear();
                stage.statistics.clear();
            }
            return Outcome::Overflowed;
        }
        let not_finite = not_finite.filter(|_| self.engine.check_finite);
        not_finite.map_or(Outcome::Succeeded, Outcome::NotFinite)
    }

    /// Tells the scaler of the loss how a step ended. Returns whether a smaller scale may help.
    fn update_scaler(&self, not_finite: bool) -> bool {
        let Some(mut scaler) = self.engine.loss_scaler() else {
            return false;
        };
        let overflowed = not_finite && scaler.is_above_floor();
        if overflowed || !not_finite {
            scaler.update(overflowed);
        }
        overflowed
    }

    /// What is NaN or infinite in the results of a step.
    fn not_finite(&self, result: &StepResult<L>) -> Option<String> {
        for stage in &result.reports {
            let losses = stage.losses.iter().chain(&stage.auxiliary);
            if let Some((micro_batch, _)) = losses.into_iter().find(|(_, loss)| !loss.is_finite()) {
                return Some(format!("loss of micro-batch {micro_batch}"));
            }
        }
        let stages = result.reports.iter().zip(&self.engine.stages).rev();
        let mut gradients = stages.clone().filter_map(|(stage, placement)| {
            let (_, layer) = stage.not_finite?;
            Some(placement.of_layer("gradient", layer))
        });
        let mut statistics = stages.filter_map(|(stage, placement)| {
            Some(placement.of_layer("running statistics", stage.overflowed?))
        });
        gradients.next().or_else(|| statistics.next())
    }
}
