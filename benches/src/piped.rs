//! Training through a pipeline.

use std::{sync::Arc, time::Instant};

use burn::tensor::{Device, Int, Tensor};
use serde::{Deserialize, Serialize};
use stovepipe::{
    pipeline::{Held, NamedDevice, Precision, device::DeviceError},
    plan::{BUCKET, Forecast, Machine, OptimizerState, PlanError, Profile, Setup},
    prelude::*,
    schedule::{Costs, DataParallel, Rule, RuleOptions, Scheduler, Timeline, WeightPolicy},
    train::{TrainSettings, optimizer::StagedOptimizer},
};
use stovepipe_comm::Communicator;

use crate::{
    Failure,
    job::{self, Job},
    plain::RATE,
    recipe::{Classifier, ModelRecipe},
};

/// Equal CPUs without links.
pub fn cpus(count: usize) -> Machine {
    let mut machine = Machine::uniform(count);
    for device in &mut machine.devices {
        device.name = "cpu".to_owned();
    }
    machine
}

/// The pipeline of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PipedSettings {
    /// The layers of each stage.
    pub cut: Vec<usize>,
    /// Micro-batches, each of the model's number of samples.
    pub micro_batches: usize,
    /// The rule of the schedule.
    pub schedule: Rule,
    /// A schedule that replaces the rule's.
    pub given: Option<Schedule>,
    /// The recompute mode.
    pub recompute: Recompute,
    pub threads: usize,
    /// The device of each worker, by name; empty for the CPU.
    pub devices: Vec<String>,
    /// The type of numbers that stages compute with.
    pub precision: Precision,
    /// The replicas of the whole pipeline.
    pub replicas: usize,
    /// The processes that share the workers.
    pub processes: usize,
    /// What connects them.
    pub network: Network,
    /// Bytes of gradients that replicas in several processes add up at once.
    pub bucket: usize,
    /// Without a flush: the mini-batches of a window, which is then a step.
    pub window: usize,
    pub vertical_sync: bool,
}

/// What connects processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// MPI.
    Mpi,
    /// They are threads of one process; a link between two has so many bytes a second in each direction,
    /// if it has a limit.
    Threads { bytes_per_second: Option<u64> },
}

impl PipedSettings {
    /// Stages of one thread each on the CPU, under 1F1B, without recomputation.
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
            replicas: 1,
            processes: 1,
            network: Network::Mpi,
            bucket: BUCKET as usize,
            window: 1,
            vertical_sync: false,
        }
    }

    /// Without a flush, in windows of so many mini-batches.
    pub fn windows(cut: Vec<usize>, micro_batches: usize, window: usize) -> Self {
        Self {
            schedule: Rule::PipeDream,
            window,
            ..Self::new(cut, micro_batches)
        }
    }

    /// The processes of the operating system that `mpirun` starts.
    pub fn launched(&self) -> usize {
        match self.network {
            Network::Mpi => self.processes,
            Network::Threads { .. } => 1,
        }
    }

    /// GPipe and 1F1B, each with every mode of recomputation.
    pub fn modes(cut: &[usize], micro_batches: usize) -> Vec<Self> {
        let mut modes = Vec::new();
        for schedule in [Rule::GPipe, Rule::OneForwardOneBackward] {
            for recompute in [Recompute::Never, Recompute::ExceptLast, Recompute::Always] {
                modes.push(Self {
                    schedule,
                    recompute,
                    ..Self::new(cut.to_vec(), micro_batches)
                });
            }
        }
        modes
    }

    fn placed(&self, workers: usize) -> Result<Vec<NamedDevice>, Failure> {
        if self.processes > 1 {
            let name = |worker| format!("{}/cpu", worker * self.processes / workers).parse();
            return Ok((0..workers).map(name).collect::<Result<_, DeviceError>>()?);
        }
        if self.devices.is_empty() {
            return Ok(vec![NamedDevice::from(Device::flex()); workers]);
        }
        let devices = self.devices.iter().map(|name| name.parse());
        Ok(devices.collect::<Result<_, DeviceError>>()?)
    }

    pub fn actions(&self) -> Result<Schedule, Failure> {
        if let Some(schedule) = &self.given {
            return Ok(schedule.clone());
        }
        let scheduler = self.scheduler();
        if !self.schedule.is_synchronous() {
            return Ok(scheduler.schedule(self.cut.len(), self.window * self.micro_batches)?);
        }
        let scheduler = DataParallel::equal(scheduler, self.replicas);
        Ok(scheduler.schedule(self.cut.len(), self.micro_batches)?)
    }

    fn scheduler(&self) -> Box<dyn Scheduler> {
        self.schedule.scheduler(&RuleOptions {
            update_every: Some(self.micro_batches),
            ..RuleOptions::with_chunks(1)
        })
    }

    /// The planner's forecast for equal devices: of the given cut, or of the best one.
    pub fn predict(&self, profile: &Profile, cut: Option<&[usize]>) -> Result<Forecast, Failure> {
        let machine = cpus(self.actions()?.workers().len());
        self.plan_with(profile, &machine, |setup| match cut {
            Some(cut) => setup.forecast(cut),
            None => setup.best_cut(),
        })
    }

    /// The costs of the given cut on equal devices.
    pub fn costs(&self, profile: &Profile) -> Result<Costs, Failure> {
        let machine = cpus(self.actions()?.workers().len());
        self.plan_with(profile, &machine, |setup| setup.costs(&self.cut))
    }

    /// What the planner finds on a machine.
    pub fn plan_with<R>(
        &self,
        profile: &Profile,
        machine: &Machine,
        plan: impl FnOnce(&Setup) -> Result<R, PlanError>,
    ) -> Result<R, Failure> {
        let schedule = self.actions()?;
        let workers = schedule.workers().len();
        let setup = Setup {
            profiles: std::slice::from_ref(profile),
            machine,
            devices: &(0..workers).collect::<Vec<_>>(),
            schedule: &schedule,
            recompute: &self.recompute,
            weights: self.weights(),
            state: OptimizerState::new(2),
            bucket: BUCKET,
        };
        Ok(plan(&setup)?)
    }

    fn weights(&self) -> WeightPolicy {
        match self.vertical_sync {
            true => WeightPolicy::VerticalSync,
            false => WeightPolicy::Stashing,
        }
    }

    /// Whether a stage recomputes a micro-batch's forward pass.
    pub fn recomputes(&self, schedule: &Schedule, stage: usize, micro_batch: usize) -> bool {
        !self.recompute.kept(schedule, stage)[micro_batch]
    }
}

/// A pipeline and one mini-batch, trained again and again.
pub struct Piped<L: Classifier> {
    job: Job,
    model: ModelRecipe<L>,
    pipeline: Pipeline<L>,
    input: L::Input,
    labels: Tensor<1, Int>,
    optimizer: Option<StagedOptimizer>,
    rate: f64,
    window: usize,
}

/// The results of a step, without its gradients.
pub struct PipedStep {
    pub loss: f64,
    /// The passes of each worker, and the updates if there is an optimizer.
    pub timeline: Timeline,
    /// The most inputs and activations that each stage held.
    pub held: Vec<Held>,
    /// Seconds of forward and backward, as the caller measured them.
    pub passes: f64,
    /// Seconds of the update, as the caller measured them.
    pub update: f64,
    /// Bytes that this process has sent to others.
    pub sent: u64,
}

impl<L: Classifier> Piped<L> {
    pub fn new(
        model: &ModelRecipe<L>,
        layers: Vec<L>,
        plan: &PipedSettings,
    ) -> Result<Self, Failure> {
        let communicator = (plan.processes > 1).then(job::join).transpose()?;
        Self::connected(model, layers, plan, communicator)
    }

    /// The part of one of several processes that are connected already.
    pub fn connected(
        model: &ModelRecipe<L>,
        layers: Vec<L>,
        plan: &PipedSettings,
        communicator: Option<Arc<Communicator>>,
    ) -> Result<Self, Failure> {
        let schedule = plan.actions()?;
        let mut builder = Pipeline::builder(layers)
            .devices(plan.placed(schedule.workers().len())?)
            .balance(Balance::Layers(plan.cut.clone()))
            .micro_batches(plan.micro_batches)
            .recompute(plan.recompute.clone())
            .threads_per_stage(plan.threads)
            .precision(plan.precision)
            .bucket(plan.bucket)
            // Burn's Transformer layers hold dropouts, whose probability is 0 here.
            .unkeyed_draws_nothing(true);
        builder = match plan.schedule.is_synchronous() {
            true => builder.schedule(schedule),
            false => builder
                .schedule(plan.scheduler())
                .weight_policy(plan.weights()),
        };
        if let Some(communicator) = &communicator {
            builder = builder.communicator(communicator.clone());
        }
        let (input, labels) = model.batch(plan.micro_batches * model.samples);
        let mut piped = Self {
            job: Job::new(communicator),
            model: model.clone(),
            pipeline: builder.build()?,
            input,
            labels,
            optimizer: None,
            rate: RATE,
            window: plan.window,
        };
        if piped.pipeline.is_asynchronous() {
            piped.add_optimizer(); // a window has updates
        }
        Ok(piped)
    }

    /// Sets the mini-batch, by its number, and the learning rate of the next steps.
    pub fn learn(&mut self, number: usize, rate: f64) {
        let [samples] = self.labels.dims();
        (self.input, self.labels) = self.model.batch_from(number * samples, samples);
        self.rate = rate;
    }

    /// The layers, each on the device of its stage.
    pub fn into_layers(self) -> Vec<L> {
        self.pipeline.into_layers()
    }

    /// Trains a window, whose mini-batches are all the same.
    fn train_window(&mut self) -> Result<PipedStep, Failure> {
        let sent = self.job.bytes_sent();
        let began = Instant::now();
        let batch = (self.input.clone(), self.labels.clone());
        let batches = vec![batch.into(); self.window].into_iter();
        let rates = vec![vec![self.rate; self.window]; self.pipeline.stage_layers().count()];
        let optimizer = self
            .optimizer
            .as_mut()
            .ok_or("a window needs an optimizer")?;
        let objective = CrossEntropy::new();
        let window = optimizer.train_window(rates, &mut self.pipeline, batches, &objective)?;
        self.wait()?;
        Ok(PipedStep {
            loss: window.losses.last().copied().unwrap_or(f64::NAN),
            timeline: window.timeline,
            held: window.held,
            passes: began.elapsed().as_secs_f64(),
            update: 0.0,
            sent: self.job.bytes_sent() - sent,
        })
    }

    /// Runs a mini-batch forward and backward.
    pub fn passes(&self) -> Result<Step<L>, Failure> {
        let (input, labels) = (self.input.clone(), self.labels.clone());
        Ok((self.pipeline).train_step((input, labels), &CrossEntropy::new())?)
    }

    /// Waits until devices have finished: a step returns when its loss is known, and an update when
    /// its kernels are in the queue.
    fn wait(&self) -> Result<(), Failure> {
        Ok(self.pipeline.sync()?)
    }

    pub fn layers(&self) -> &[L] {
        self.pipeline.layers()
    }
}

/// A pipeline that trains a mini-batch again and again.
pub trait PipedLoop {
    /// Trains one mini-batch forward and backward, and updates if there is an optimizer; or trains a window.
    fn step(&mut self) -> Result<PipedStep, Failure>;

    /// Adds an update by AdamW, on all stages at once, to each of the next steps.
    fn add_optimizer(&mut self);
}

impl<L: Classifier> PipedLoop for Piped<L> {
    fn step(&mut self) -> Result<PipedStep, Failure> {
        if self.pipeline.is_asynchronous() {
            return self.train_window();
        }
        let sent = self.job.bytes_sent();
        let began = Instant::now();
        self.job.begin_step()?;
        let step = self.passes()?;
        let passes = began.elapsed();
        let (loss, mut timeline, held) = (step.loss, step.timeline, step.held);
        if let Some(optimizer) = &mut self.optimizer {
            let (pipeline, gradients) = (&mut self.pipeline, step.gradients);
            let updates = optimizer.step(self.rate, pipeline, gradients, began)?;
            let stages = self.pipeline.stages();
            for (stage, update) in updates {
                timeline.workers[stages[stage].worker].push(update);
            }
        }
        self.wait()?;
        Ok(PipedStep {
            loss,
            timeline,
            held,
            passes: passes.as_secs_f64(),
            update: (began.elapsed() - passes).as_secs_f64(),
            sent: self.job.bytes_sent() - sent,
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
