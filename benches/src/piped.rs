//! The same work through a pipeline.

use std::time::Instant;

use burn::tensor::{Device, Int, Tensor};
use serde::{Deserialize, Serialize};
use stovepipe::{
    pipeline::{Held, NamedDevice, Precision, device::DeviceError},
    prelude::*,
    schedule::{Rule, RuleOptions, Scheduler, Timeline},
    train::{TrainSettings, optimizer::StagedOptimizer},
};

use crate::{Failure, classifier::Classifier, plain::RATE, recipe::Recipe};

/// How a model is cut and run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PipelineSettings {
    /// The layers of each stage.
    pub cut: Vec<usize>,
    /// Micro-batches, each of the model's number of samples.
    pub micro_batches: usize,
    /// Who does what when.
    pub schedule: Rule,
    /// A schedule instead of that rule's.
    pub given: Option<Schedule>,
    /// What is computed twice.
    pub recompute: Recompute,
    /// Threads of each stage.
    pub threads: usize,
    /// The device of each worker, by name; the CPU if none is named.
    pub devices: Vec<String>,
    /// What is computed in.
    pub precision: Precision,
}

impl PipelineSettings {
    /// Stages cut so, with so many micro-batches, one thread each, 1F1B, nothing computed twice.
    #[must_use]
    pub fn new(cut: Vec<usize>, micro_batches: usize) -> Self {
        Self {
            cut,
            micro_batches,
            schedule: Rule::OneForwardOneBackward,
            given: None,
            recompute: Recompute::Never,
            threads: 1,
            devices: Vec::new(),
            precision: Precision::F32,
        }
    }

    /// The device of each of so many workers.
    ///
    /// # Errors
    ///
    /// If one is not available.
    fn placed(&self, workers: usize) -> Result<Vec<NamedDevice>, Failure> {
        if self.devices.is_empty() {
            return Ok(vec![NamedDevice::from(Device::flex()); workers]);
        }
        let devices = self.devices.iter().map(|name| name.parse());
        Ok(devices.collect::<Result<_, DeviceError>>()?)
    }

    /// What flags call the schedule.
    #[must_use]
    pub fn schedule_name(&self) -> &'static str {
        self.schedule.name()
    }

    /// The actions of each worker.
    ///
    /// # Errors
    ///
    /// If a number is zero.
    pub fn actions(&self) -> Result<Schedule, Failure> {
        if let Some(schedule) = &self.given {
            return Ok(schedule.clone());
        }
        let scheduler = self.schedule.scheduler(&RuleOptions::with_chunks(1));
        Ok(scheduler.schedule(self.cut.len(), self.micro_batches)?)
    }

    /// Whether a stage computes a micro-batch's forward pass twice.
    #[must_use]
    pub fn recomputes(&self, schedule: &Schedule, stage: usize, micro_batch: usize) -> bool {
        !self.recompute.kept(schedule, stage)[micro_batch]
    }

    /// The number of micro-batches whose forward pass a stage computes twice.
    ///
    /// # Errors
    ///
    /// If a number is zero.
    pub fn twice(&self, stage: usize) -> Result<usize, Failure> {
        let schedule = self.actions()?;
        let all = 0..self.micro_batches;
        Ok(all
            .filter(|&m| self.recomputes(&schedule, stage, m))
            .count())
    }
}

/// A pipeline and one mini-batch, trained again and again.
pub struct Piped<L: Classifier> {
    model: Recipe<L>,
    pipeline: Pipeline<L>,
    input: L::Input,
    labels: Tensor<1, Int>,
    optimizer: Option<StagedOptimizer>,
    rate: f64,
}

/// What a step leaves behind, but its gradients.
pub struct Done {
    /// The loss.
    pub loss: f64,
    /// What each worker did when; updates are in it if there is an optimizer.
    pub timeline: Timeline,
    /// The most that each stage held.
    pub held: Vec<Held>,
    /// Seconds of forward and backward, as the caller sees them.
    pub passes: f64,
    /// Seconds of the update, as the caller sees them.
    pub update: f64,
}

impl<L: Classifier> Piped<L> {
    /// Builds the pipeline.
    ///
    /// # Errors
    ///
    /// If the plan does not fit the model.
    pub fn new(
        model: &Recipe<L>,
        layers: Vec<L>,
        plan: &PipelineSettings,
    ) -> Result<Self, Failure> {
        let schedule = plan.actions()?;
        let builder = Pipeline::builder(layers)
            .devices(plan.placed(schedule.workers().len())?)
            .balance(Balance::Layers(plan.cut.clone()))
            .micro_batches(plan.micro_batches)
            .recompute(plan.recompute)
            .threads_per_stage(plan.threads)
            .precision(plan.precision)
            // Burn's Transformer layers hold dropouts, whose probability is 0 here.
            .unkeyed_draws_nothing(true)
            .schedule(schedule);
        let (input, labels) = model.batch(plan.micro_batches * model.samples);
        Ok(Self {
            model: model.clone(),
            pipeline: builder.build()?,
            input,
            labels,
            optimizer: None,
            rate: RATE,
        })
    }

    /// From now on takes the mini-batch of this number, and learns at this rate.
    pub fn learn(&mut self, number: usize, rate: f64) {
        let [samples] = self.labels.dims();
        (self.input, self.labels) = self.model.batch_from(number * samples, samples);
        self.rate = rate;
    }
}

impl<L: Classifier> Piped<L> {
    /// The layers, each where its stage had it.
    #[must_use]
    pub fn into_layers(self) -> Vec<L> {
        self.pipeline.into_layers()
    }

    /// A mini-batch forward and backward.
    ///
    /// # Errors
    ///
    /// If the step fails.
    pub fn passes(&self) -> Result<Step<L>, Failure> {
        let (input, labels) = (self.input.clone(), self.labels.clone());
        Ok((self.pipeline).train_step((input, labels), &CrossEntropy::new())?)
    }

    /// Waits until devices have done what they were told: a step returns when its loss is known, and the update
    /// only orders what there is to do.
    fn wait(&self) -> Result<(), Failure> {
        for stage in self.pipeline.stages() {
            stage
                .device
                .sync()
                .map_err(|error| format!("{}: {error:?}", stage.device_name))?;
        }
        Ok(())
    }

    /// The layers.
    #[must_use]
    pub fn layers(&self) -> &[L] {
        self.pipeline.layers()
    }
}

/// A pipeline that trains a mini-batch again and again.
pub trait PipedLoop {
    /// One mini-batch forward and backward, and the update if there is an optimizer.
    ///
    /// # Errors
    ///
    /// If the step fails.
    fn step(&mut self) -> Result<Done, Failure>;

    /// From now on with AdamW after the mini-batch, on all stages at once.
    fn add_optimizer(&mut self);
}

impl<L: Classifier> PipedLoop for Piped<L> {
    fn step(&mut self) -> Result<Done, Failure> {
        let began = Instant::now();
        let step = self.passes()?;
        let passes = began.elapsed();
        let (loss, mut timeline, held) = (step.loss, step.timeline, step.held);
        if let Some(optimizer) = &mut self.optimizer {
            let (pipeline, gradients) = (&mut self.pipeline, step.gradients);
            let updates = optimizer.step(self.rate, pipeline, gradients, began)?;
            for (stage, update) in self.pipeline.stages().iter().zip(updates) {
                timeline.workers[stage.worker].push(update);
            }
        }
        self.wait()?;
        Ok(Done {
            loss,
            timeline,
            held,
            passes: passes.as_secs_f64(),
            update: (began.elapsed() - passes).as_secs_f64(),
        })
    }

    fn add_optimizer(&mut self) {
        let settings = TrainSettings {
            clip: 0.0, // the plain loop does not clip either
            ..TrainSettings::default()
        };
        let stages = self.pipeline.stage_layers().count();
        self.optimizer = Some(StagedOptimizer::new(&settings, stages));
    }
}
