//! Burn's optimizers, stepped stage by stage in parallel.

use std::{
    collections::BTreeMap,
    io, mem,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use burn::{
    module::{ModuleMapper, ModuleVisitor, Param, ParamGroup, ParamId},
    optim::{
        AdamConfig, DynOptimizer, GradientsParams, RmsPropConfig, SgdConfig, StateSink,
        StateSource, decay::WeightDecayConfig, momentum::MomentumConfig,
    },
    store::burn_pack,
    tensor::{Device, Tensor},
};
use stovepipe_pipeline::{
    Batch, Flow, GradientStore, Layer, Objective, Pipeline, Stage, StepError, Window,
};
use stovepipe_schedule::{Span, SpanKind};

use super::{
    adam_w::{AdamW, BETA},
    gradients::{clipped, norm, norm_of_stage},
    groups::{Groups, Shares},
    offload::{Kept, Mover, OffloadError, OffloadedGradients, Storage},
    states::{Names, States},
    sums::{LayerSums, Summing},
    value::with_value,
};
use crate::{
    error::TrainError,
    settings::{ChecksumSetting, DecayedSetting, OptimizerSetting, TrainSettings},
};

/// One of Burn's optimizers, with the state of each stage on the stage's device, or [elsewhere](Self::offload).
/// All stages are updated at once.
///
/// Gradients are first clipped by their norm over *all* stages, as one device would clip them.
pub struct StagedOptimizer {
    optimizer: Optimizers,
    /// By stage.
    states: Vec<States>,
    clip: Option<f64>,
    layer_decay: f64,
    groups: Groups,
    gradient_norm: Option<f64>,
    /// Of the last update, or those of a window by its mini-batches, if they are asked for.
    sums: Option<Vec<(usize, LayerSums)>>,
}

impl StagedOptimizer {
    /// The optimizer that the settings name.
    #[must_use]
    pub fn new(settings: &TrainSettings, stages: usize) -> Self {
        Self {
            optimizer: Optimizers::new(settings),
            states: (0..stages).map(|_| States::default()).collect(),
            clip: Some(settings.clip).filter(|&clip| clip > 0.0),
            layer_decay: settings.layer_decay,
            groups: Groups::new(&settings.lr_of),
            gradient_norm: None,
            sums: (settings.checksums != ChecksumSetting::None).then(Vec::new),
        }
    }

    /// Gives the parameters of a group a share of their layer's learning rate: 2 for twice the rate, 0 to leave them
    /// as they are. Paths are names as in a model's file. Of several groups that have a parameter, the last holds. A
    /// [`Trainer`](crate::Trainer) has an optimizer of its own, and `TrainSettings::lr_of` for this.
    ///
    /// ```
    /// use burn::module::ParamGroup;
    /// use stovepipe_train::{TrainSettings, optimizer::StagedOptimizer};
    ///
    /// let optimizer = StagedOptimizer::new(&TrainSettings::default(), 2)
    ///     .with_group(ParamGroup::from_predicate("layers.3."), 10.0)
    ///     .with_group(ParamGroup::from_predicate("bias"), 2.0);
    /// ```
    ///
    /// # Panics
    ///
    /// If the share is negative or not finite.
    #[must_use]
    pub fn with_group(mut self, group: ParamGroup, share: f64) -> Self {
        assert!(share >= 0.0 && share.is_finite(), "a rate of {share}");
        self.groups.add(group, share);
        self
    }

    /// The norm of all gradients of the last step, before they were clipped.
    #[must_use]
    pub fn gradient_norm(&self) -> Option<f64> {
        self.gradient_norm
    }

    /// The sums of the last update, or those of the last window by its mini-batches, of this process's layers.
    pub(crate) fn take_sums(&mut self) -> Vec<(usize, LayerSums)> {
        self.sums.as_mut().map_or_else(Vec::new, mem::take)
    }

    /// Updates a pipeline's parameters with the learning rate `rate` for the last layer, and with
    /// the share `layer_decay` of the next layer's rate for each other layer (Howard and Ruder,
    /// "Universal Language Model Fine-tuning for Text Classification", 2018). Returns when each
    /// stage of this process was updated, in time since `started`.
    ///
    /// # Errors
    ///
    /// If gradients cannot be read from a device, and those of [`Pipeline::change_stages`].
    pub fn step<L: Layer>(
        &mut self,
        rate: f64,
        pipeline: &mut Pipeline<L>,
        gradients: GradientsParams,
        started: Instant,
    ) -> Result<Vec<(usize, Span)>, StepError> {
        let here = pipeline.split_gradients(gradients).into_iter();
        let (norm, gradients) = norm(pipeline, here.zip(self.gradients()).collect())?;
        self.gradient_norm = Some(norm);
        let factor = clipped(norm, self.clip);
        let states = mem::take(&mut self.states).into_iter().zip(gradients);
        let states = states.map(|(states, gradients)| (states, gradients, None));
        let states = states.collect();
        let (optimizer, rates) = (self.optimizer.clone(), self.rates(rate, pipeline));
        let shares = self.groups.shares(pipeline);
        let (sums, firsts) = (self.sums.is_some(), first_layers(pipeline));
        let stages = pipeline.change_stages(
            states,
            move |stage, layers: Vec<L>, (mut states, (gradients, away), _)| {
                let start = started.elapsed();
                states.begin(&layers, &gradients);
                let mut away =
                    (away.as_ref()).map(|away| away.in_order(Kept::Gradient, &layers, true));
                let mut update = Update {
                    optimizer: &optimizer,
                    rate,
                    shares: &shares,
                    factor,
                    gradients,
                    visiting: GradientsParams::new(),
                    states: &mut states,
                    summing: sums.then(Summing::default),
                    summed: Vec::new(),
                    failed: None,
                };
                let layers = (layers.into_iter().zip(&rates[stage]).enumerate())
                    .map(|(index, (layer, &rate))| {
                        if let Some(away) = &mut away {
                            let visiting = away.next(&layer);
                            update.visiting = update.note(visiting).unwrap_or_default();
                        }
                        update.layer(firsts[stage] + index, layer, rate)
                    })
                    .collect();
                let summed = update.summed;
                update.failed.map_or(Ok(()), Err)?;
                states.end()?;
                let span = Span {
                    action: None,
                    kind: SpanKind::Update,
                    version: None,
                    start,
                    end: started.elapsed(),
                };
                Ok((layers, (states, Default::default(), Some((span, summed)))))
            },
        )?;
        let mut spans = Vec::new();
        let mut all = Vec::new();
        for (stage, (states, _, updated)) in stages.into_iter().enumerate() {
            self.states.push(states);
            if let Some((span, summed)) = updated {
                spans.push((stage, span));
                all.extend(summed.into_iter().map(|own| (0, own)));
            }
        }
        self.sums = sums.then_some(all);
        Ok(spans)
    }

    /// Trains a window: each stage updates as soon as it has a mini-batch's gradients, with one of its rates
    /// after another. `rates` are by stage and mini-batch. Gradients are clipped by the norm of their stage
    /// alone: others have not got that far.
    ///
    /// ```
    /// use burn::tensor::{Device, Int, Tensor};
    /// use stovepipe_pipeline::{CrossEntropy, Pipeline};
    /// use stovepipe_schedule::PipeDream;
    /// use stovepipe_train::{TrainSettings, example::Dense, optimizer::StagedOptimizer};
    ///
    /// let device = Device::flex();
    /// let mut pipeline = Pipeline::builder(vec![Dense::new(3, 4), Dense::new(4, 2)])
    ///     .devices([device.clone(), device.clone()])
    ///     .schedule(PipeDream::default())
    ///     .micro_batches(1)
    ///     .build()?;
    /// let mut optimizer = StagedOptimizer::new(&TrainSettings::default(), 2);
    /// let labels = Tensor::<1, Int>::zeros([5], &device);
    /// let batches = vec![(Tensor::ones([5, 3], &device), labels).into(); 3];
    /// let rates = vec![vec![1e-3; 3]; 2];
    /// let objective = CrossEntropy::new();
    /// let window =
    ///     optimizer.train_window(rates, &mut pipeline, batches.into_iter(), &objective)?;
    /// assert_eq!(window.losses.len(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Pipeline::train_window`]; states are then those before the window.
    ///
    /// # Panics
    ///
    /// If there are no rates for a stage or a mini-batch, or states are [elsewhere](Self::offload): when a window fails,
    /// earlier ones are needed again.
    pub fn train_window<L: Layer, T: Flow, B>(
        &mut self,
        rates: Vec<Vec<f64>>,
        pipeline: &mut Pipeline<L>,
        batches: B,
        objective: &impl Objective<L::Output, T>,
    ) -> Result<Window, StepError>
    where
        B: ExactSizeIterator<Item = Batch<L::Input, T, L::Side>>,
    {
        self.gradient_norm = None;
        let mut stages = self.states.iter();
        assert!(
            stages.all(States::is_on_device),
            "a window needs all states on their devices"
        );
        let (optimizer, clip_at) = (self.optimizer.clone(), self.clip);
        let of_layers = self.rates(1.0, pipeline);
        let shares = self.groups.shares(pipeline);
        let firsts = first_layers(pipeline);
        let summed = self.sums.is_some().then(Arc::<Mutex<Vec<_>>>::default);
        let all = summed.clone();
        let update = move |stage: usize, layers: Vec<L>, gradients, states, number: usize| {
            let mut states = States::on_device(states);
            let gradients = (gradients, None);
            let norm = clip_at.map(|_| norm_of_stage(&layers, &gradients));
            let mut update = Update {
                optimizer: &optimizer,
                rate: 0.0,
                shares: &shares,
                factor: norm.and_then(|norm| clipped(norm, clip_at)),
                gradients: gradients.0,
                visiting: GradientsParams::new(),
                states: &mut states,
                summing: all.as_ref().map(|_| Summing::default()),
                summed: Vec::new(),
                failed: None,
            };
            let layers = layers.into_iter().zip(&of_layers[stage]).enumerate();
            let layers = layers.map(|(index, (layer, share))| {
                update.layer(firsts[stage] + index, layer, share * rates[stage][number])
            });
            let layers = layers.collect();
            if let Some(all) = &all {
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                all.extend(update.summed.into_iter().map(|own| (number, own)));
            }
            (layers, states.take_on_device())
        };
        let mut states: Vec<_> = self.states.iter_mut().map(States::take_on_device).collect();
        let window = pipeline.train_window(batches, objective, &mut states, update);
        self.states = states.into_iter().map(States::on_device).collect();
        self.sums = summed.map(|all| {
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            mem::take(&mut *all)
        });
        window
    }

    /// The learning rate of each layer of each stage.
    fn rates<L: Layer>(&self, rate: f64, pipeline: &Pipeline<L>) -> Vec<Vec<f64>> {
        let last = pipeline.layers().len().saturating_sub(1);
        let of_layer = |layer: usize| rate * self.layer_decay.powi((last - layer) as i32);
        let rates = |layers: Range<usize>| layers.map(of_layer).collect();
        let stages = pipeline.stages().into_iter();
        stages.map(|stage| rates(stage.layers)).collect()
    }

    /// Has the state of each stage lie in a storage between updates, if it gets one. States that are there already are
    /// lost. [Gradients](Self::gradient_stores) may lie there as well.
    ///
    /// While a parameter is updated, the state of the next one comes and that of the last one goes, so at most three are on
    /// the device.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use stovepipe_pipeline::Pipeline;
    /// use stovepipe_train::{
    ///     TrainSettings, example::Dense,
    ///     optimizer::{HostMemory, StagedOptimizer},
    /// };
    ///
    /// let pipeline = Pipeline::builder(vec![Dense::new(3, 4), Dense::new(4, 2)])
    ///     .devices([Device::flex(), Device::flex()])
    ///     .build()?;
    /// let optimizer = StagedOptimizer::new(&TrainSettings::default(), 2);
    /// let optimizer = optimizer.offload(&pipeline.stages(), |_| Ok(Some(HostMemory::default())))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a storage or a thread cannot be made.
    pub fn offload<S: Storage>(
        mut self,
        stages: &[Stage],
        mut storage: impl FnMut(&Stage) -> io::Result<Option<S>>,
    ) -> io::Result<Self> {
        let states = stages.iter().map(|stage| {
            let Some(storage) = storage(stage)? else {
                return Ok(States::default());
            };
            let mover = Mover::new(Box::new(storage), stage.device.clone())?;
            let has_replicas = stage.replicas.len() > 1;
            Ok(States::offloaded(
                mover,
                self.optimizer.usual.clone(),
                has_replicas,
            ))
        });
        self.states = states.collect::<io::Result<_>>()?;
        Ok(self)
    }

    /// Where the gradients of each stage may lie until [`step`](Self::step) takes them, one layer after the other: for
    /// [`Pipeline::train_step_into`]. Stages whose state is on their device have none.
    ///
    /// ```
    /// use std::time::Instant;
    ///
    /// use burn::tensor::{Device, Int, Tensor};
    /// use stovepipe_pipeline::{CrossEntropy, Pipeline};
    /// use stovepipe_train::{
    ///     TrainSettings, example::Dense,
    ///     optimizer::{HostMemory, StagedOptimizer},
    /// };
    ///
    /// let device = Device::flex();
    /// let mut pipeline = Pipeline::builder(vec![Dense::new(3, 4), Dense::new(4, 2)])
    ///     .devices([device.clone(), device.clone()])
    ///     .build()?;
    /// let optimizer = StagedOptimizer::new(&TrainSettings::default(), 2);
    /// let mut optimizer =
    ///     optimizer.offload(&pipeline.stages(), |_| Ok(Some(HostMemory::default())))?;
    /// let batch = (Tensor::ones([5, 3], &device), Tensor::<1, Int>::zeros([5], &device));
    /// let stores = optimizer.gradient_stores();
    /// let step = pipeline.train_step_into(batch, &CrossEntropy::new(), &stores)?;
    /// optimizer.step(1e-3, &mut pipeline, step.gradients, Instant::now())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn gradient_stores<L: Layer>(&self) -> Vec<Option<Arc<dyn GradientStore<L>>>> {
        let store = |own: Arc<OffloadedGradients>| own as Arc<dyn GradientStore<L>>;
        self.gradients().map(|own| own.map(store)).collect()
    }

    /// What of each stage's gradients is off its device.
    pub(super) fn gradients(&self) -> impl Iterator<Item = Option<Arc<OffloadedGradients>>> {
        self.states.iter().map(States::gradients)
    }

    /// The state of a stage, by the names of parameters: `NAME.momentum.moment_1` and so on.
    pub(crate) fn state(&self, stage: usize, names: &Names) -> Vec<burn_pack::Tensor> {
        let states = self.states.get(stage);
        let optimizer = &*self.optimizer.usual;
        states.map_or(Vec::new(), |states| states.tensors(optimizer, names))
    }

    /// Restores the state of a stage, of which `read` reads that of a parameter. Parameters without saved state restart as
    /// in the first step.
    pub(crate) fn restore<L: Layer>(
        &mut self,
        stage: usize,
        (layers, device): (&[L], &Device),
        names: &Names,
        read: impl FnMut(&str) -> Result<StateSink, TrainError>,
    ) -> Result<(), TrainError> {
        let states = &mut self.states[stage];
        states.clear();
        let mut restore = Restore {
            optimizer: &*self.optimizer.usual,
            names,
            device,
            read,
            states,
            failed: None,
        };
        for layer in layers {
            layer.visit(&mut restore);
        }
        restore.failed.map_or(Ok(()), Err)?;
        Ok(self.states[stage].end()?)
    }
}

/// The first layer of each stage.
fn first_layers<L: Layer>(pipeline: &Pipeline<L>) -> Vec<usize> {
    let stages = pipeline.stages().into_iter();
    stages.map(|stage| stage.layers.start).collect()
}

/// One update of a stage's parameters.
///
/// Burn's `ModuleOptimizer` hides its state: it could not be named by layer, or put on a device.
struct Update<'a> {
    optimizer: &'a Optimizers,
    /// Of the current layer.
    rate: f64,
    shares: &'a Shares,
    /// For clipped gradients.
    factor: Option<f64>,
    gradients: GradientsParams,
    /// Those of the current layer that lay off the device.
    visiting: GradientsParams,
    states: &'a mut States,
    /// Of the current layer, if sums are asked for.
    summing: Option<Summing>,
    /// Of the layers before.
    summed: Vec<LayerSums>,
    /// Why a state or a gradient could not be had. What follows stays as it is.
    failed: Option<OffloadError>,
}

impl Update<'_> {
    /// Updates a layer, by its index in the model.
    fn layer<L: Layer>(&mut self, index: usize, layer: L, rate: f64) -> L {
        self.rate = rate;
        let layer = layer.map(self);
        if let Some(summing) = &mut self.summing {
            self.summed.extend(mem::take(summing).of_layer(index));
        }
        layer
    }

    fn note<T>(&mut self, result: Result<T, OffloadError>) -> Option<T> {
        let note = |error| {
            self.failed.get_or_insert(error);
        };
        result.map_err(note).ok()
    }
}

impl ModuleMapper for Update<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let visiting = self.visiting.remove::<D>(param.id);
        let here = self.gradients.remove::<D>(param.id);
        if visiting.is_some() && here.is_some() {
            self.failed.get_or_insert(OffloadError::Twice);
        }
        let Some(gradient) = visiting.or(here) else {
            return param;
        };
        if self.failed.is_some() {
            return param;
        }
        let state = self.states.take(param.id);
        let Some(state) = self.note(state) else {
            return param;
        };
        if let Some(summing) = &mut self.summing {
            summing.gradient(&gradient);
        }
        let gradient = match self.factor {
            Some(factor) => gradient.mul_scalar(factor),
            None => gradient,
        };
        let share = self.shares.get(&param.id).copied().unwrap_or(1.0);
        with_value(param, |id, value| {
            let (value, state) = self.optimizer.of(D).step_dyn(
                D,
                self.rate * share,
                value.into_bridge(),
                gradient.into_bridge(),
                state,
            );
            if let Some(state) = state {
                let put = self.states.put(id, state);
                self.note(put);
            }
            let value = Tensor::<D>::from_bridge(value);
            if let Some(summing) = &mut self.summing {
                summing.parameter(&value);
            }
            value
        })
    }
}

/// Finds the state of a stage's parameters among named tensors.
struct Restore<'a, R> {
    optimizer: &'a dyn DynOptimizer,
    names: &'a Names,
    device: &'a Device,
    read: R,
    states: &'a mut States,
    failed: Option<TrainError>,
}

impl<R: FnMut(&str) -> Result<StateSink, TrainError>> Restore<'_, R> {
    fn restore(&mut self, id: ParamId, rank: usize, name: &str) -> Result<(), TrainError> {
        let state = (self.read)(name)?;
        let scalars: BTreeMap<_, _> = state.scalars.into_iter().collect();
        let mut source = StateSource::new(scalars);
        for (name, data) in state.tensors {
            source.insert_tensor(name, data);
        }
        if source.has_under(name) {
            let device = self.device;
            let state = (self.optimizer).state_unflatten(rank, name, &mut source, device);
            state.map_or(Ok(()), |state| self.states.restore(id, state))?;
        }
        Ok(())
    }
}

impl<R: FnMut(&str) -> Result<StateSink, TrainError>> ModuleVisitor for Restore<'_, R> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let (names, is_well) = (self.names, self.failed.is_none());
        if let Some(name) = names.get(&param.id).filter(|_| is_well) {
            self.failed = self.restore(param.id, D, name).err();
        }
    }
}

/// An optimizer with weight decay, and for some parameters without. Both have the same state.
#[derive(Clone)]
struct Optimizers {
    usual: Arc<dyn DynOptimizer>,
    of_vectors: Arc<dyn DynOptimizer>,
}

impl Optimizers {
    fn new(settings: &TrainSettings) -> Self {
        let usual = optimizer(settings, settings.weight_decay);
        let of_vectors = match settings.weight_decay_of {
            DecayedSetting::All => usual.clone(),
            DecayedSetting::Matrices => optimizer(settings, 0.0),
        };
        Self { usual, of_vectors }
    }

    /// That of parameters with so many dimensions.
    fn of(&self, rank: usize) -> &dyn DynOptimizer {
        match rank {
            0 | 1 => &*self.of_vectors,
            _ => &*self.usual,
        }
    }
}

fn optimizer(settings: &TrainSettings, decay: f64) -> Arc<dyn DynOptimizer> {
    let weight_decay = Some(decay)
        .filter(|&rate| rate > 0.0)
        .map(|rate| WeightDecayConfig::new(rate as f32));
    let epsilon = settings.epsilon as f32;
    match settings.optimizer {
        OptimizerSetting::RmsProp => {
            let config = RmsPropConfig::new().with_alpha(0.9).with_epsilon(epsilon);
            let config = config.with_momentum(settings.momentum as f32);
            Arc::new(config.with_weight_decay(weight_decay).build())
        }
        OptimizerSetting::Sgd => {
            // Burn dampens momentum by 0.1 by default; PyTorch does not.
            let momentum = MomentumConfig::new().with_momentum(settings.momentum);
            let momentum = momentum.with_dampening(0.0);
            let momentum = Some(momentum).filter(|_| settings.momentum > 0.0);
            let config = SgdConfig::new().with_momentum(momentum);
            Arc::new(config.with_weight_decay(weight_decay).build())
        }
        OptimizerSetting::Adam => {
            let config = AdamConfig::new().with_epsilon(epsilon);
            let config = config.with_beta_1(BETA).with_beta_2(settings.beta2 as f32);
            Arc::new(config.with_weight_decay(weight_decay).build())
        }
        OptimizerSetting::AdamW => Arc::new(AdamW::new(settings, decay as f32)),
    }
}
