//! The last phase of a training step: its results are combined, and the model changes.

use std::sync::{PoisonError, atomic::Ordering};

use burn::optim::GradientsParams;

use super::split::MiniBatch;
use crate::{
    api::{
        batch::Step,
        error::StepError,
        pipeline::Pipeline,
        tasks::{join_outputs, own_outputs, sum_losses, sum_scores},
    },
    engine::{shared::GradientsOfLayer, step::StepResult},
    model::{layer::Layer, parameters::move_gradients},
};

impl<L: Layer> Pipeline<L> {
    /// Combines the results of the stages, and commits their statistics to the model.
    pub(super) fn commit<T>(
        &self,
        result: StepResult<L>,
        batch: MiniBatch<L, T>,
        overflowed: bool,
    ) -> Result<Step<L>, StepError> {
        let micro_batches = batch.sizes;
        let mut result = result;
        let (auxiliary_loss, main) = sum_losses(&result.reports, 0..micro_batches.len());
        let scores = sum_scores(&result.reports, 0..micro_batches.len());
        let held = result.reports.iter().map(|stage| stage.held).collect();
        let timeline = std::mem::take(&mut result.timeline);
        let passes = std::mem::take(&mut result.passes);
        let mut gradients = self.of_other_processes(overflowed)?;
        let mut statistics = Vec::new();
        for stage in &mut result.stages {
            let placement = &self.engine.stages[stage.seat.stage];
            let of_layers = placement.layers.clone().zip(stage.gradients.drain(..));
            gradients.extend(of_layers.map(|(layer, gradients)| GradientsOfLayer {
                layer,
                owner: layer,
                gradients,
            }));
            statistics.extend((self.layers_of(placement).iter()).zip(stage.statistics.drain(..)));
        }
        let gradients = self.sum(gradients);
        let outputs = match batch.keeps_outputs {
            true => self.kept_outputs(result, micro_batches.len())?,
            false => None,
        };
        // Nothing can fail from here on: the model changes now or not at all.
        let mut momenta = (self.engine.momenta.lock()).unwrap_or_else(PoisonError::into_inner);
        for (layer, statistics) in statistics {
            statistics.commit(layer, &mut momenta, &micro_batches, false);
        }
        self.engine.steps.fetch_add(1, Ordering::AcqRel);
        Ok(Step {
            loss: main + auxiliary_loss,
            auxiliary_loss,
            weight: batch.weight,
            scores,
            outputs,
            gradients,
            overflowed,
            micro_batches,
            timeline,
            held,
            passes,
        })
    }

    /// The outputs of all micro-batches, in the processes that have the last stage.
    fn kept_outputs(
        &self,
        result: StepResult<L>,
        micro_batches: usize,
    ) -> Result<Option<L::Output>, StepError> {
        let (processes, seats) = (&self.engine.processes, self.engine.seats());
        let of_last = seats.of_stage(seats.stages() - 1);
        let own = own_outputs(result);
        let outputs = match processes.of_seats(of_last).len() {
            1 => Ok(own),
            _ => self.share_outputs(own),
        };
        let has_last = processes.home(of_last).is_some();
        let joined = outputs.and_then(|outputs| {
            let joined = has_last.then(|| join_outputs(outputs, micro_batches));
            joined.transpose()
        });
        processes.meet(joined, |_| Vec::new())
    }

    /// The gradients that other processes computed for parameters of this one.
    fn of_other_processes(&self, overflowed: bool) -> Result<Vec<GradientsOfLayer>, StepError> {
        match &self.engine.shared {
            Some(shared) if !overflowed => {
                let taken = shared.take_gradients(self.layers());
                Ok(self.engine.processes.meet(taken, |_| Vec::new())?)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Adds the gradients of each parameter in the order of layers.
    fn sum(&self, mut of_layers: Vec<GradientsOfLayer>) -> GradientsParams {
        of_layers.sort_by_key(|own| own.layer);
        let mut sum = GradientsParams::new();
        for mut own in of_layers {
            move_gradients(&self.layers()[own.owner], &mut own.gradients, &mut sum);
        }
        self.engine.ties.settle(self.layers(), &mut sum);
        sum
    }
}
