//! A training step.

use std::sync::{Arc, PoisonError, atomic::Ordering};

use burn::optim::GradientsParams;

use crate::{
    api::{
        batch::{self, Batch, Inputs, Step},
        error::StepError,
        objective::Objective,
        pipeline::Pipeline,
        tasks::{join_outputs, loss_on, sum_losses, sum_scores, weight_of},
    },
    engine::{
        stage::{OutputUse, Training},
        statistics::Statistics,
        step::{self, StepResult},
    },
    model::{
        flow::Flow,
        keyed_rng::StepKey,
        layer::Layer,
        parameters::{is_trainable, move_gradients},
        unkeyed,
    },
};

impl<L: Layer> Pipeline<L> {
    /// Runs a mini-batch forward and backward. The batch is a tuple, `(input, target)` or `(input, target,
    /// side)`, or a [`Batch`].
    ///
    /// Parameters do not change: an optimizer applies the gradients. Running statistics change once, by
    /// those of the whole mini-batch.
    ///
    /// # Errors
    ///
    /// If the batch is empty or its parts have different sizes, a layer fails, the loss or a gradient is
    /// NaN or infinite (in f16: with a [scale](crate::LossScaler) below 1), or the step is stopped or
    /// stalls. The model does not change then, and neither do running statistics.
    pub fn train_step<T: Flow>(
        &self,
        batch: impl Into<Batch<L::Input, T, L::Side>>,
        objective: &impl Objective<L::Output, T>,
    ) -> Result<Step<L>, StepError> {
        let batch = batch.into();
        let _turn = self.engine.begin_step()?;
        let samples = batch::samples(&batch.input)?;
        let sizes = batch::micro_batch_sizes(samples, self.engine.micro_batches);
        let weight = weight_of(objective, &batch.target)?;
        // A layer that was frozen when the pipeline was built may draw random numbers now.
        let recompute = self.engine.schedules.recompute;
        unkeyed::check(&self.layers, self.engine.unkeyed_policy, recompute)?;
        let targets = batch::split(batch.target, &sizes, "target")?;
        let schedule = self.engine.schedules.of(sizes.len())?;
        let loss_scale = self.loss_scaler().map(|scaler| scaler.scale());
        let training = |inspect| Training {
            schedule: schedule.clone(),
            key: StepKey {
                seed: self.engine.seed,
                step: self.steps(),
                progress: self.progress(),
            },
            trainable_from: (self.layers.iter().position(is_trainable))
                .unwrap_or(self.layers.len()),
            momenta: self.engine.momenta.clone(),
            inspect,
            loss_scale,
        };
        let run = |inspect| {
            let inputs = Inputs::from((batch.input.clone(), batch.side.clone()));
            let tasks = self.tasks(
                inputs,
                &sizes,
                Some(&Arc::new(training(inspect))),
                |stage| OutputUse {
                    loss: Some(loss_on::<L, T>(stage, objective, &targets, weight)),
                    keep_outputs: batch.keeps_outputs,
                },
            )?;
            step::run(&self.engine, &schedule.schedule, tasks)
        };
        let mut result = run(false)?;
        let not_finite = self.not_finite(&result);
        let overflowed = self.update_scaler(not_finite.is_some());
        if overflowed {
            for stage in &mut result.stages {
                stage.gradients.clear();
                stage.statistics.clear();
            }
        } else if let Some(what) = not_finite.filter(|_| self.engine.check_finite) {
            // The step draws the same numbers again, so the same layer fails, now with checks.
            let place = match run(true) {
                Ok(_) => None,
                Err(StepError::Failed(failure)) => Some(failure),
                Err(other) => return Err(other),
            };
            return Err(StepError::NotFinite { what, place });
        }
        let step = self.gather(result, sizes, weight, batch.keeps_outputs)?;
        Ok(Step { overflowed, ..step })
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
        for stage in &result.stages {
            let losses = stage.losses.iter().chain(&stage.auxiliary);
            if let Some((micro_batch, _)) = losses.into_iter().find(|(_, loss)| !loss.is_finite()) {
                return Some(format!("loss of micro-batch {micro_batch}"));
            }
        }
        let stages = result.stages.iter().zip(&self.engine.stages).rev();
        let mut layers = stages.filter_map(|(stage, placement)| {
            let layer = stage.not_finite?;
            let (index, name) = (placement.layers.start + layer, &placement.names[layer]);
            Some(format!("gradient of layer {index} ({name})"))
        });
        layers.next()
    }

    /// Combines the results of the stages, and commits their statistics to the model.
    fn gather(
        &self,
        result: StepResult<L>,
        micro_batches: Vec<usize>,
        weight: f64,
        keep_outputs: bool,
    ) -> Result<Step<L>, StepError> {
        let StepResult {
            mut stages,
            timeline,
        } = result;
        let (auxiliary_loss, main) = sum_losses(&stages, micro_batches.len());
        let scores = sum_scores(&stages, micro_batches.len());
        let mut gradients = GradientsParams::new();
        let own = stages
            .iter_mut()
            .flat_map(|stage| stage.gradients.drain(..));
        for (layer, mut from) in self.layers.iter().zip(own) {
            move_gradients(layer, &mut from, &mut gradients);
        }
        self.engine.ties.settle(&self.layers, &mut gradients);
        let held = stages.iter().map(|stage| stage.held).collect();
        let statistics: Vec<Statistics> = (stages.iter_mut())
            .flat_map(|stage| std::mem::take(&mut stage.statistics))
            .collect();
        let outputs = if keep_outputs {
            Some(join_outputs(stages, micro_batches.len())?)
        } else {
            None
        };
        // Nothing can fail from here on: the model changes now or not at all.
        let momenta = (self.engine.momenta.lock()).unwrap_or_else(PoisonError::into_inner);
        for (layer, statistics) in self.layers.iter().zip(statistics) {
            statistics.commit(layer, &momenta, &micro_batches);
        }
        self.engine.steps.fetch_add(1, Ordering::AcqRel);
        Ok(Step {
            loss: main + auxiliary_loss,
            auxiliary_loss,
            weight,
            scores,
            outputs,
            gradients,
            overflowed: false,
            micro_batches,
            timeline,
            held,
        })
    }
}
