//! The pipeline itself: a list of layers, and the engine that runs them.

use std::{
    collections::HashMap,
    fmt,
    ops::Range,
    sync::{Arc, PoisonError, atomic::Ordering},
};

use burn::{
    optim::GradientsParams,
    tensor::{Device, Tensor},
};
use crossbeam_channel::unbounded;
use stovepipe_schedule::{Action, Schedule};

use crate::{
    api::{
        batch::{self, Batch, Evaluation, Outputs, Step},
        builder::PipelineBuilder,
        control::StopHandle,
        error::{BuildError, StepError},
        objective::Objective,
        precision::{LossScaler, Precision},
    },
    engine::{
        Engine, Placement, guard, links,
        skips::SkipLinks,
        stage::{AtEnd, LossAndScores, LossFn, StageResult, StageTask, Training},
        statistics::Statistics,
        step::{self, Outcome},
        tape::Head,
        values, worker,
    },
    measure::{balance::Balance, device::NamedDevice, measured::Measured, profile::Profiler},
    model::{
        flow::Flow,
        keyed_rng::StepKey,
        layer::Layer,
        parameters::{ParameterVisitor, count_parameters, is_trainable, visit_parameters},
        unkeyed,
    },
};

/// A Burn module whose layers are spread over stages, and these over workers, each with a device and
/// a thread of its own.
///
/// It holds a flat list of layers: records, optimizers and displays see no stages, so a model saved
/// under one number of stages loads under any other. Clones share the workers.
///
/// ```
/// # use burn::{module::Module, nn::{Linear, LinearConfig}, optim::SgdConfig};
/// # use burn::tensor::{Device, Int, Tensor};
/// # use stovepipe_pipeline::*;
/// # #[derive(Module, Debug)]
/// # struct Dense { linear: Linear }
/// # impl Layer for Dense {
/// #     type Input = Tensor<2>; type Flow = Tensor<2>; type Output = Tensor<2>; type Side = ();
/// #     fn enter(input: Tensor<2>) -> Tensor<2> { input }
/// #     fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, LayerError> {
/// #         Ok(self.linear.forward(x).tanh())
/// #     }
/// #     fn leave(flow: Tensor<2>) -> Result<Tensor<2>, LayerError> { Ok(flow) }
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::flex();
/// let layers = [(4, 8), (8, 8), (8, 3)]
///     .map(|(from, to)| Dense { linear: LinearConfig::new(from, to).init(&device) });
/// let mut pipeline = Pipeline::builder(layers.to_vec())
///     .devices([device.clone(), device.clone()])
///     .micro_batches(2)
///     .build()?;
///
/// let images = Tensor::ones([6, 4], &device);
/// let targets = Tensor::<1, Int>::from_ints([0, 1, 2, 0, 1, 2], &device);
/// let step = pipeline.train_step(images, targets, &CrossEntropy::new())?;
///
/// let mut optimizer = SgdConfig::new().init();
/// pipeline = optimizer.step(0.1, pipeline, step.gradients);
/// # let _ = pipeline;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Pipeline<L: Layer> {
    layers: Vec<L>,
    engine: Arc<Engine>,
}

/// A stage of a pipeline: a run of layers on a device.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Its layers, by their place in the model.
    pub layers: Range<usize>,
    /// The worker that runs it.
    pub worker: usize,
    /// Its device: that of its worker.
    pub device: Device,
    /// What pictures and errors call the device.
    pub device_name: String,
    /// The number of its parameters, without running statistics.
    pub parameters: usize,
}

impl<L: Layer> Pipeline<L> {
    /// Begins to build a pipeline of `layers`.
    pub fn builder(layers: Vec<L>) -> PipelineBuilder<L> {
        PipelineBuilder::new(layers)
    }

    /// Begins to build a pipeline of `layers`, a worker for each device, cut where the time that the
    /// layers take for `sample` says: for a model that reads nothing from the side.
    ///
    /// The sample is measured on each device that is unlike those before it, with one CPU thread unless it says
    /// another; one of the size of a micro-batch tells most. For other costs, see [`Measured`] and
    /// [`Balance`](crate::Balance).
    ///
    /// ```
    /// # use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
    /// # use stovepipe_pipeline::{Context, Layer, LayerError};
    /// # #[derive(Module, Debug)]
    /// # struct Dense { linear: Linear }
    /// # impl Layer for Dense {
    /// #     type Input = Tensor<2>; type Flow = Tensor<2>; type Output = Tensor<2>; type Side = ();
    /// #     fn enter(input: Tensor<2>) -> Tensor<2> { input }
    /// #     fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, LayerError> {
    /// #         Ok(self.linear.forward(x))
    /// #     }
    /// #     fn leave(flow: Tensor<2>) -> Result<Tensor<2>, LayerError> { Ok(flow) }
    /// # }
    /// use stovepipe_pipeline::Pipeline;
    ///
    /// let device = Device::flex();
    /// let layer = || Dense { linear: LinearConfig::new(3, 3).init(&device) };
    /// let layers: Vec<_> = (0..4).map(|_| layer()).collect();
    /// let sample = Tensor::ones([8, 3], &device);
    /// let pipeline = Pipeline::auto(layers, [device.clone(), device], sample)?.build()?;
    /// assert_eq!(pipeline.stages().len(), 2);
    /// # Ok::<(), stovepipe_pipeline::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If there is no device, or the sample does not pass through the model.
    pub fn auto(
        layers: Vec<L>,
        devices: impl IntoIterator<Item = impl Into<NamedDevice>>,
        sample: L::Input,
    ) -> Result<PipelineBuilder<L>, BuildError>
    where
        L: Layer<Side = ()>,
    {
        let devices: Vec<NamedDevice> = devices.into_iter().map(Into::into).collect();
        let measured = Measured::on(&devices, |device| {
            Profiler::on(device).measure(&layers, sample.clone())
        })?;
        let builder = Self::builder(layers).devices(devices);
        Ok(builder.balance(Balance::Planned(measured)))
    }

    pub(crate) fn new(layers: Vec<L>, engine: Engine) -> Self {
        let engine = Arc::new(engine);
        Self { layers, engine }
    }

    /// The same pipeline with other layers: how a Burn module is mapped. The layers move, so that
    /// an optimizer finds no clone of them and can work in place.
    pub(crate) fn with_layers(self, change: impl FnOnce(Vec<L>) -> Vec<L>) -> Self {
        let layers = self.engine.ties.tie(change(self.layers));
        Self { layers, ..self }
    }

    /// The layers, in order.
    #[must_use]
    pub fn layers(&self) -> &[L] {
        &self.layers
    }

    /// Takes the layers out, each where its stage had it.
    #[must_use]
    pub fn into_layers(self) -> Vec<L> {
        self.layers
    }

    /// The stages, in order.
    #[must_use]
    pub fn stages(&self) -> Vec<Stage> {
        (self.engine.stages.iter().zip(&self.engine.owners))
            .map(|(stage, &worker)| Stage {
                layers: stage.layers.clone(),
                worker,
                device: stage.device.clone(),
                device_name: stage.device_name.clone(),
                parameters: self.layers_of(stage).iter().map(count_parameters).sum(),
            })
            .collect()
    }

    /// The layers of each stage, in order.
    pub fn stage_layers(&self) -> impl Iterator<Item = &[L]> {
        (self.engine.stages.iter()).map(|stage| self.layers_of(stage))
    }

    /// The layers of a stage; none if a failed change lost them.
    fn layers_of(&self, stage: &Placement) -> &[L] {
        self.layers.get(stage.layers.clone()).unwrap_or_default()
    }

    /// The number of training steps that have succeeded, or that it was [set](Self::set_steps) to. Random
    /// numbers of a step depend on it.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.engine.steps.load(Ordering::Acquire)
    }

    /// Says that so many training steps have been made: when a training goes on that began elsewhere.
    /// Clones of the pipeline count together.
    pub fn set_steps(&self, steps: u64) {
        self.engine.steps.store(steps, Ordering::Release);
    }

    /// The share of the training that is behind, as it was [set](Self::set_progress); 1 before that.
    #[must_use]
    pub fn progress(&self) -> f64 {
        f64::from_bits(self.engine.training_progress.load(Ordering::Acquire))
    }

    /// Says which share of the training is behind, from 0 to 1: layers may do something more and more
    /// while a model trains, as drop-path does ([`nn::DropPath::growing`](crate::model::nn::DropPath::growing)).
    pub fn set_progress(&self, share: f64) {
        let share = share.clamp(0.0, 1.0).to_bits();
        self.engine
            .training_progress
            .store(share, Ordering::Release);
    }

    /// What its stages compute in.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.engine.precision
    }

    /// What scales the loss, in f16: a copy of how it stands.
    #[must_use]
    pub fn loss_scaler(&self) -> Option<LossScaler> {
        self.engine.loss_scaler().as_deref().copied()
    }

    /// Has the scale of the loss go on from where it stood elsewhere; without effect but in f16. Clones of the
    /// pipeline scale together.
    pub fn set_loss_scaler(&self, scaler: LossScaler) {
        if let Some(mut own) = self.engine.loss_scaler() {
            *own = scaler;
        }
    }

    /// The handle that stops this pipeline's steps.
    #[must_use]
    pub fn stop_handle(&self) -> StopHandle {
        self.engine.stop.clone()
    }

    /// Runs a mini-batch forward and backward, for a model that reads nothing from the side.
    ///
    /// Parameters do not change: an optimizer takes the gradients. Running statistics do, once, by
    /// those of the whole mini-batch.
    ///
    /// # Errors
    ///
    /// If the batch is empty or its parts disagree, a layer fails, the loss or a gradient is not finite
    /// (in f16: with a [scale](LossScaler) less than 1), or the step is stopped or stalls. The model is then as it was, running statistics included.
    pub fn train_step<T: Flow>(
        &self,
        input: L::Input,
        target: T,
        objective: &impl Objective<L::Output, T>,
    ) -> Result<Step<L>, StepError>
    where
        L: Layer<Side = ()>,
    {
        let side = ();
        let batch = Batch {
            input,
            target,
            side,
        };
        self.train_step_with(batch, objective, Outputs::Drop)
    }

    /// Like [`train_step`](Self::train_step), with side inputs, and with the outputs if they are to
    /// be kept.
    ///
    /// # Errors
    ///
    /// Those of `train_step`.
    pub fn train_step_with<T: Flow>(
        &self,
        batch: Batch<L::Input, T, L::Side>,
        objective: &impl Objective<L::Output, T>,
        outputs: Outputs,
    ) -> Result<Step<L>, StepError> {
        let keep_outputs = outputs == Outputs::Keep;
        let _turn = self.engine.begin_step()?;
        let samples = batch::samples(&batch.input)?;
        let sizes = batch::micro_batch_sizes(samples, self.engine.micro_batches);
        let weight = weight_of(objective, &batch.target)?;
        if !self.engine.allow_unkeyed {
            unkeyed::check(&self.layers)?; // what was frozen may no longer be
        }
        let targets = batch::split(batch.target, &sizes, "target")?;
        let plan = self.engine.plan(sizes.len())?;
        let trainable_from = self.trainable_from();
        let loss_scale = self.loss_scaler().map(|scaler| scaler.scale());
        let run = |inspect| {
            let training = |stage: usize| Training {
                recorded: plan.recorded[stage].clone(),
                step: StepKey {
                    seed: self.engine.seed,
                    step: self.steps(),
                    progress: self.progress(),
                },
                trainable_from,
                cells: self.engine.stages[stage].cells.clone(),
                momenta: self.engine.momenta.clone(),
                inspect,
                loss_scale,
            };
            let at_end = |stage: usize| AtEnd {
                judge: Some(self.judge_on(stage, objective, &targets, weight)),
                keep_outputs,
            };
            let (input, side) = (batch.input.clone(), batch.side.clone());
            let mut tasks = self.tasks(input, side, &sizes, trainable_from, at_end)?;
            for task in &mut tasks {
                task.training = Some(training(task.index));
            }
            step::run(&self.engine, &plan.schedule, tasks)
        };
        let outcome = run(false)?;
        let not_finite = self.not_finite(&outcome);
        if self.overflowed(not_finite.is_some()) {
            return self.gather_skipped(outcome, sizes, weight, keep_outputs);
        }
        if let Some(what) = not_finite.filter(|_| self.engine.check_finite) {
            // The step draws the same numbers again: what went wrong will, before somebody's eyes.
            let place = match run(true) {
                Ok(_) => None,
                Err(StepError::Failed(failure)) => Some(failure),
                Err(other) => return Err(other),
            };
            return Err(StepError::NotFinite { what, place });
        }
        self.gather(outcome, sizes, weight, keep_outputs)
    }

    /// The first layer that has something to train.
    fn trainable_from(&self) -> usize {
        let first = self.layers.iter().position(is_trainable);
        first.unwrap_or(self.layers.len())
    }

    /// Tells the scaler of the loss, if there is one, how a step went. Returns whether a smaller scale may help.
    fn overflowed(&self, not_finite: bool) -> bool {
        let Some(mut scaler) = self.engine.loss_scaler() else {
            return false;
        };
        let overflowed = not_finite && scaler.is_above_floor();
        if overflowed || !not_finite {
            scaler.update(overflowed);
        }
        overflowed
    }

    /// What of a step is infinite or no number.
    fn not_finite(&self, outcome: &Outcome<L>) -> Option<String> {
        for stage in &outcome.stages {
            let losses = stage.losses.iter().chain(&stage.auxiliary);
            if let Some((micro_batch, _)) = losses.into_iter().find(|(_, loss)| !loss.is_finite()) {
                return Some(format!("loss of micro-batch {micro_batch}"));
            }
        }
        let stages = outcome.stages.iter().zip(&self.engine.stages).rev();
        let mut layers = stages.filter_map(|(stage, placement)| {
            let layer = stage.not_finite?;
            let (index, name) = (placement.layers.start + layer, &placement.names[layer]);
            Some(format!("gradient of layer {index} ({name})"))
        });
        layers.next()
    }

    /// Makes sure that there is a schedule for a mini-batch of so many samples. It may be missing if the
    /// schedule is a fixed one, for its own number of micro-batches.
    ///
    /// # Errors
    ///
    /// If there is none, or there are no samples.
    pub fn check_batch(&self, samples: usize) -> Result<(), StepError> {
        let sizes = batch::micro_batch_sizes(samples, self.engine.micro_batches);
        match sizes.len() {
            0 => Err(StepError::EmptyBatch),
            micro_batches => self.engine.plan(micro_batches).map(|_| ()),
        }
    }

    /// Runs a batch of any size forward, for a model that reads nothing from the side: as
    /// evaluation does, with running statistics and without dropout. The model does not change.
    ///
    /// # Errors
    ///
    /// Those of [`train_step`](Self::train_step).
    pub fn infer(&self, input: L::Input) -> Result<L::Output, StepError>
    where
        L: Layer<Side = ()>,
    {
        self.infer_with(input, ())
    }

    /// Like [`infer`](Self::infer), with side inputs.
    ///
    /// # Errors
    ///
    /// Those of `infer`.
    pub fn infer_with(&self, input: L::Input, side: L::Side) -> Result<L::Output, StepError> {
        let _turn = self.engine.begin_step()?;
        let samples = batch::samples(&input)?;
        let sizes = batch::micro_batch_sizes(samples, self.engine.micro_batches);
        let at_end = |_| AtEnd {
            judge: None,
            keep_outputs: true,
        };
        let outcome = self.run_forward(input, side, &sizes, at_end)?;
        join_outputs(outcome.stages, sizes.len())
    }

    /// Runs a batch of any size forward and says how good the outputs are, for a model that reads nothing
    /// from the side. The last stage judges each micro-batch as it comes and keeps no outputs.
    ///
    /// ```
    /// # use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{Device, Int, Tensor}};
    /// # use stovepipe_pipeline::{Context, CrossEntropy, Layer, LayerError, Pipeline};
    /// # #[derive(Module, Debug)]
    /// # struct Dense { linear: Linear }
    /// # impl Layer for Dense {
    /// #     type Input = Tensor<2>; type Flow = Tensor<2>; type Output = Tensor<2>; type Side = ();
    /// #     fn enter(input: Tensor<2>) -> Tensor<2> { input }
    /// #     fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, LayerError> {
    /// #         Ok(self.linear.forward(x))
    /// #     }
    /// #     fn leave(flow: Tensor<2>) -> Result<Tensor<2>, LayerError> { Ok(flow) }
    /// # }
    /// let device = Device::flex();
    /// let layers = vec![Dense { linear: LinearConfig::new(3, 2).init(&device) }];
    /// let pipeline = Pipeline::builder(layers).devices([device.clone()]).build()?;
    /// let (images, targets) = (Tensor::ones([4, 3], &device), Tensor::<1, Int>::zeros([4], &device));
    /// let judged = pipeline.evaluate(images, targets, &CrossEntropy::new().counting())?;
    /// assert_eq!(judged.weight, 4.0);
    /// assert!(judged.scores[0] == 0.0 || judged.scores[0] == 4.0); // all alike: all right, or none
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`train_step`](Self::train_step).
    pub fn evaluate<T: Flow>(
        &self,
        input: L::Input,
        target: T,
        objective: &impl Objective<L::Output, T>,
    ) -> Result<Evaluation, StepError>
    where
        L: Layer<Side = ()>,
    {
        let side = ();
        let batch = Batch {
            input,
            target,
            side,
        };
        self.evaluate_with(batch, objective)
    }

    /// Like [`evaluate`](Self::evaluate), with side inputs.
    ///
    /// # Errors
    ///
    /// Those of `evaluate`.
    pub fn evaluate_with<T: Flow>(
        &self,
        batch: Batch<L::Input, T, L::Side>,
        objective: &impl Objective<L::Output, T>,
    ) -> Result<Evaluation, StepError> {
        let _turn = self.engine.begin_step()?;
        let samples = batch::samples(&batch.input)?;
        let sizes = batch::micro_batch_sizes(samples, self.engine.micro_batches);
        let weight = weight_of(objective, &batch.target)?;
        let targets = batch::split(batch.target, &sizes, "target")?;
        let at_end = |stage| AtEnd {
            judge: Some(self.judge_on(stage, objective, &targets, weight)),
            keep_outputs: false,
        };
        let outcome = self.run_forward(batch.input, batch.side, &sizes, at_end)?;
        Ok(Evaluation {
            loss: sum_losses(&outcome.stages, sizes.len()).1,
            weight,
            scores: sum_scores(&outcome.stages, sizes.len()),
        })
    }

    /// Runs micro-batches forward, as evaluation does.
    fn run_forward(
        &self,
        input: L::Input,
        side: L::Side,
        sizes: &[usize],
        at_end: impl Fn(usize) -> AtEnd<L>,
    ) -> Result<Outcome<L>, StepError> {
        let schedule = self.inference_schedule(sizes.len())?;
        // Nothing is trained, so nothing wants a gradient.
        let tasks = self.tasks(input, side, sizes, usize::MAX, at_end)?;
        step::run(&self.engine, &schedule, tasks)
    }

    /// Runs `change` on the layers of every stage at once, each stage on its own worker, with a
    /// state of its own that is handed in and out: how optimizers step in parallel. Layers are
    /// moved, not cloned, so that a change can be made in place.
    ///
    /// # Errors
    ///
    /// If there is not one state for each stage, or a worker is stuck in an earlier step; or if
    /// `change` panics, returns another number of layers, or takes longer than the
    /// [limit](crate::PipelineBuilder::stall_timeout). The layers that it held are then lost,
    /// and with them the pipeline: keep a clone where that could happen.
    pub fn change_stages<S: Send + 'static>(
        &mut self,
        states: Vec<S>,
        change: impl Fn(usize, Vec<L>, S) -> (Vec<L>, S) + Clone + Send + 'static,
    ) -> Result<Vec<S>, StepError> {
        let engine = self.engine.clone();
        let stages = engine.stages.len();
        if states.len() != stages {
            let states = states.len();
            return Err(StepError::WrongStates { states, stages });
        }
        let _turn = engine.take_turn()?;
        let (results, inbox) = unbounded();
        let mut rest = std::mem::take(&mut self.layers);
        for (stage, state) in (0..engine.stages.len()).zip(states).rev() {
            let own = rest.split_off(engine.stages[stage].layers.start);
            let (change, results) = (change.clone(), results.clone());
            let device = engine.stages[stage].device.clone();
            engine.workers[engine.owners[stage]].run(move || {
                let changed = guard::caught(|| change(stage, own, state)).and_then(|changed| {
                    let flushed = device.flush(); // other threads read it
                    flushed.map_or_else(|error| Err(error.to_string()), |()| Ok(changed))
                });
                let _ = results.send((stage, changed));
            });
        }
        worker::settle(&engine.workers, engine.stall_timeout);
        let mut changed: HashMap<_, _> = inbox.try_iter().collect();
        let changed = (0..stages).map(|stage| engine.changed(stage, changed.remove(&stage)));
        let changed = changed.collect::<Result<Vec<_>, _>>()?;
        let (layers, states): (Vec<_>, _) = changed.into_iter().unzip();
        self.layers = (engine.ties).tie(layers.into_iter().flatten().collect());
        Ok(states)
    }

    /// Moves the gradients of each stage's parameters into a container of its own.
    #[must_use]
    pub fn split_gradients(&self, mut gradients: GradientsParams) -> Vec<GradientsParams> {
        self.stage_layers()
            .map(|layers| {
                let mut own = GradientsParams::new();
                for layer in layers {
                    let (from, to) = (&mut gradients, &mut own);
                    visit_parameters(layer, &mut MoveGradients { from, to });
                }
                own
            })
            .collect()
    }

    /// Each worker runs its stages one after the other, each with all micro-batches.
    fn inference_schedule(&self, micro_batches: usize) -> Result<Schedule, StepError> {
        let owners = &self.engine.owners;
        let actions = |worker: usize| {
            let own = (0..owners.len()).filter(move |&stage| owners[stage] == worker);
            own.flat_map(|stage| (0..micro_batches).map(move |i| Action::forward(stage, i)))
        };
        let workers = 0..self.engine.workers.len();
        Ok(Schedule::new(
            workers.map(|worker| actions(worker).collect()).collect(),
        )?)
    }

    /// What each stage is given for a step that does not train.
    fn tasks(
        &self,
        input: L::Input,
        side: L::Side,
        sizes: &[usize],
        trainable_from: usize,
        at_end: impl Fn(usize) -> AtEnd<L>,
    ) -> Result<Vec<StageTask<L>>, StepError> {
        if self.layers.is_empty() {
            return Err(StepError::LayersLost);
        }
        let mut feed = batch::split(input, sizes, "input")?;
        let side = batch::split(side, sizes, "side input")?;
        let samples: Arc<[_]> = ranges(sizes).collect();
        let placed = &self.engine.stages;
        let skips: Vec<_> = placed.iter().map(|stage| stage.skips.clone()).collect();
        let skip_links = SkipLinks::of_stages(&skips, trainable_from, &self.engine.transfers);
        Ok((placed.iter().enumerate())
            .zip(links::chain(placed.len(), &self.engine.transfers))
            .zip(skips.into_iter().zip(skip_links))
            .map(|(((index, stage), links), (skips, skip_links))| StageTask {
                index,
                device: stage.device.clone(),
                layers: self.layers_of(stage).to_vec(),
                names: stage.names.clone(),
                range: stage.layers.clone(),
                links,
                skips,
                skip_links,
                dtype: self.engine.precision.cast(),
                feed: std::mem::take(&mut feed),
                side: side.clone(),
                samples: samples.clone(),
                training: None,
                at_end: at_end(index),
            })
            .collect())
    }

    /// The loss of a micro-batch on a stage, its share of the mini-batch's mean, and its scores.
    fn judge_on<T: Flow>(
        &self,
        stage: usize,
        objective: &impl Objective<L::Output, T>,
        targets: &[T],
        weight: f64,
    ) -> LossFn<L> {
        let device = self.engine.stages[stage].device.clone();
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

    /// Makes a step of what the stages left that changes nothing: gradients and statistics are dropped.
    fn gather_skipped(
        &self,
        mut outcome: Outcome<L>,
        micro_batches: Vec<usize>,
        weight: f64,
        keep_outputs: bool,
    ) -> Result<Step<L>, StepError> {
        for stage in &mut outcome.stages {
            stage.gradients.clear();
            stage.statistics.clear();
        }
        let step = self.gather(outcome, micro_batches, weight, keep_outputs)?;
        Ok(Step {
            overflowed: true,
            ..step
        })
    }

    /// Makes the step of what the stages left, and commits their statistics to the model.
    fn gather(
        &self,
        outcome: Outcome<L>,
        micro_batches: Vec<usize>,
        weight: f64,
        keep_outputs: bool,
    ) -> Result<Step<L>, StepError> {
        let Outcome {
            mut stages,
            timeline,
        } = outcome;
        let (auxiliary_loss, main) = sum_losses(&stages, micro_batches.len());
        let scores = sum_scores(&stages, micro_batches.len());
        let mut gradients = GradientsParams::new();
        let own = stages
            .iter_mut()
            .flat_map(|stage| stage.gradients.drain(..));
        for (layer, mut from) in self.layers.iter().zip(own) {
            let to = &mut gradients;
            let from = &mut from;
            visit_parameters(layer, &mut MoveGradients { from, to });
        }
        self.engine.ties.settle(&self.layers, &mut gradients);
        let held = stages.iter().map(|stage| stage.held).collect();
        let statistics: Vec<Statistics> = (stages.iter_mut())
            .flat_map(|stage| std::mem::take(&mut stage.statistics))
            .collect();
        let outputs = match keep_outputs {
            true => Some(join_outputs(stages, micro_batches.len())?),
            false => None,
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

/// The auxiliary and the main losses of a mini-batch, added up in the order of micro-batches.
fn sum_losses<L: Layer>(stages: &[StageResult<L>], micro_batches: usize) -> (f64, f64) {
    let sum = |micro_batch| {
        let of = |losses: &std::collections::HashMap<usize, f64>| {
            losses.get(&micro_batch).copied().unwrap_or(0.0)
        };
        let auxiliary: f64 = stages.iter().map(|stage| of(&stage.auxiliary)).sum();
        let main: f64 = stages.iter().map(|stage| of(&stage.losses)).sum();
        (auxiliary, main)
    };
    (0..micro_batches)
        .map(sum)
        .fold((0.0, 0.0), |(a, b), (c, d)| (a + c, b + d))
}

/// The scores of a mini-batch, added up in the order of micro-batches.
fn sum_scores<L: Layer>(stages: &[StageResult<L>], micro_batches: usize) -> Vec<f64> {
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
fn weight_of<O, T>(objective: &impl Objective<O, T>, target: &T) -> Result<f64, StepError> {
    let weight = guard::guarded("objective's weight", || objective.weight(target))?;
    match weight.is_finite() && weight > 0.0 {
        true => Ok(weight),
        false => Err(StepError::NoWeight { weight }),
    }
}

/// Joins the outputs that the last stage kept.
fn join_outputs<L: Layer>(
    mut stages: Vec<StageResult<L>>,
    micro_batches: usize,
) -> Result<L::Output, StepError> {
    let outputs = stages
        .last_mut()
        .map(|stage| std::mem::take(&mut stage.outputs));
    let mut outputs = outputs.unwrap_or_default();
    let parts: Option<Vec<_>> = (0..micro_batches)
        .map(|micro_batch| outputs.remove(&micro_batch))
        .collect();
    parts.and_then(values::join).ok_or(StepError::UnlikeOutputs)
}

/// The samples of each micro-batch, by their place in the mini-batch.
fn ranges(sizes: &[usize]) -> impl Iterator<Item = Range<usize>> {
    sizes.iter().scan(0, |start, &size| {
        *start += size;
        Some(*start - size..*start)
    })
}

/// Moves the gradients of the parameters that it visits, and adds up those of a parameter that is
/// found in several places.
struct MoveGradients<'a> {
    from: &'a mut GradientsParams,
    to: &'a mut GradientsParams,
}

impl ParameterVisitor for MoveGradients<'_> {
    fn parameter<const D: usize>(&mut self, param: &burn::module::Param<Tensor<D>>) {
        if let Some(gradient) = self.from.remove::<D>(param.id) {
            let gradient = match self.to.remove::<D>(param.id) {
                Some(sum) => {
                    let device = sum.device();
                    sum + gradient.to_device(&device)
                }
                None => gradient,
            };
            self.to.register(param.id, gradient);
        }
    }
}

impl<L: Layer> fmt::Debug for Pipeline<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("layers", &self.layers)
            .field("engine", &self.engine)
            .finish()
    }
}
