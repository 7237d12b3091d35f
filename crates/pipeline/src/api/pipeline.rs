//! The pipeline: its layers, its stages, and its state.

use std::{
    fmt,
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

use burn::tensor::Device;

use crate::{
    api::{
        batch::micro_batch_sizes,
        control::StopHandle,
        error::StepError,
        precision::{LossScaler, Precision},
    },
    engine::core::{Engine, StagePlacement},
    model::{layer::Layer, parameters::count_parameters, unkeyed::Unkeyed},
};

/// A Burn module whose layers run in stages, on workers with a thread and a device each.
///
/// It holds a flat list of layers. Records, optimizers and displays do not see stages, so a model
/// saved with one number of stages loads with any other. Clones share the workers.
///
/// ```
/// use burn::{optim::SgdConfig, tensor::{Device, Int, Tensor}};
/// # use stovepipe_pipeline::doc_example::Dense;
/// use stovepipe_pipeline::{CrossEntropy, Pipeline};
///
/// let device = Device::flex();
/// let mut pipeline = Pipeline::builder(Dense::layers(&[4, 8, 8, 3]))
///     .devices([device.clone(), device.clone()])
///     .micro_batches(2)
///     .build()?;
///
/// let images = Tensor::ones([6, 4], &device);
/// let targets = Tensor::<1, Int>::from_ints([0, 1, 2, 0, 1, 2], &device);
/// let step = pipeline.train_step((images, targets), &CrossEntropy::new())?;
///
/// let mut optimizer = SgdConfig::new().init();
/// pipeline = optimizer.step(0.1, pipeline, step.gradients);
/// # let _ = pipeline;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Pipeline<L: Layer> {
    pub(crate) layers: Vec<L>,
    pub(crate) engine: Arc<Engine>,
}

/// A stage: consecutive layers on one device.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The indices of its layers in the model.
    pub layers: Range<usize>,
    /// The worker that runs it.
    pub worker: usize,
    /// The worker's device.
    pub device: Device,
    /// The name of the device in pictures and errors.
    pub device_name: String,
    /// The number of its parameters, without running statistics.
    pub parameters: usize,
}

impl<L: Layer> Pipeline<L> {
    pub(crate) fn new(layers: Vec<L>, engine: Engine) -> Self {
        let engine = Arc::new(engine);
        Self { layers, engine }
    }

    /// The same pipeline with other layers, for Burn's module mapping. Layers are moved, so an optimizer
    /// can change them in place.
    pub(crate) fn with_layers(self, change: impl FnOnce(Vec<L>) -> Vec<L>) -> Self {
        let layers = self.engine.ties.tie(change(self.layers));
        Self { layers, ..self }
    }

    /// The layers, in order.
    #[must_use]
    pub fn layers(&self) -> &[L] {
        &self.layers
    }

    /// The layers, in order, each on its stage's device.
    #[must_use]
    pub fn into_layers(self) -> Vec<L> {
        self.layers
    }

    /// The stages, in order.
    #[must_use]
    pub fn stages(&self) -> Vec<Stage> {
        (self.engine.stages.iter().zip(self.engine.owners()))
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

    /// The layers of a stage; none if a failed change dropped them.
    pub(crate) fn layers_of(&self, stage: &StagePlacement) -> &[L] {
        self.layers.get(stage.layers.clone()).unwrap_or_default()
    }

    /// The number of successful training steps, or the one that was [set](Self::set_steps). Random
    /// numbers of a step depend on it.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.engine.steps.load(Ordering::Acquire)
    }

    /// Sets the number of training steps, to resume a training. Clones share it.
    pub fn set_steps(&self, steps: u64) {
        self.engine.steps.store(steps, Ordering::Release);
    }

    /// The finished share of the training, as [set](Self::set_progress); 1 before that.
    #[must_use]
    pub fn progress(&self) -> f64 {
        f64::from_bits(self.engine.training_progress.load(Ordering::Acquire))
    }

    /// Sets the finished share of the training, from 0 to 1. Layers can depend on it, as drop-path
    /// does ([`nn::DropPath::growing`](crate::nn::DropPath::growing)).
    pub fn set_progress(&self, share: f64) {
        let share = share.clamp(0.0, 1.0).to_bits();
        (self.engine.training_progress).store(share, Ordering::Release);
    }

    /// The type that stages compute in.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.engine.precision
    }

    /// A copy of the scaler of the loss, in f16.
    #[must_use]
    pub fn loss_scaler(&self) -> Option<LossScaler> {
        self.engine.loss_scaler().as_deref().copied()
    }

    /// Sets the scaler of the loss, to resume a training; no effect except in f16. Clones share it.
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

    /// Layers that draw random numbers outside of a [`KeyedRng`](crate::KeyedRng), which the builder
    /// [allowed](crate::PipelineBuilder::allow_unkeyed). If there are any, training does not give the same
    /// bits for other stages, schedules or runs. Print them as warnings.
    #[must_use]
    pub fn unkeyed(&self) -> &[Unkeyed] {
        &self.engine.unkeyed
    }

    /// Checks that there is a schedule for a mini-batch of `samples` samples. A fixed schedule has one
    /// number of micro-batches only.
    ///
    /// # Errors
    ///
    /// If there is none, or there are no samples.
    pub fn check_batch(&self, samples: usize) -> Result<(), StepError> {
        match micro_batch_sizes(samples, self.engine.micro_batches).len() {
            0 => Err(StepError::EmptyBatch),
            micro_batches => self.engine.schedules.of(micro_batches).map(|_| ()),
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
