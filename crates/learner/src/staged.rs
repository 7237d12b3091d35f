//! A pipeline as a model that Burn's Learner can train.

use std::fmt;

use burn::{
    module::{
        Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
    },
    tensor::{Device, Tensor},
};
use burn_train::{InferenceStep, ItemLazy, TrainOutput, TrainStep};
use stovepipe_pipeline::{
    Batch, Flow, Layer, Objective, Pipeline, StepError,
    flows::{detach, to_device},
};

/// A model for burn-train's `Learner`: a pipeline, its objective, and functions that connect both with a
/// data loader and with metrics.
///
/// `I` is what the data loader yields, `T` the target in it, `M` what metrics read, such as
/// [`ClassificationOutput`](burn_train::ClassificationOutput). A training step runs the mini-batch through
/// all stages in micro-batches. It returns the gradients, each on the device of its parameter, and the
/// outputs of the whole mini-batch, on the last stage's device.
///
/// As a module, it has the parameters of its pipeline under the same names. A checkpoint has the names
/// `layers.0.…` and loads into a [`Pipeline`] with any number of stages, or into a module with a field
/// `layers`.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// # use stovepipe_pipeline::doc_example::Dense;
/// use burn_train::{ClassificationOutput, TrainStep};
/// use stovepipe_learner::Staged;
/// use stovepipe_pipeline::{Batch, CrossEntropy, Pipeline};
///
/// /// What a data loader yields.
/// struct Points { places: Tensor<2>, classes: Tensor<1, Int> }
///
/// let device = Device::flex();
/// let pipeline = Pipeline::builder(Dense::layers(&[3, 8, 2]))
///     .devices([device.clone(), device.clone()])
///     .micro_batches(2)
///     .build()?;
/// let model = Staged::new(
///     pipeline,
///     CrossEntropy::new(),
///     |points: Points| Batch::new(points.places, points.classes),
///     ClassificationOutput::new,
/// );
///
/// let points = Points { places: Tensor::ones([4, 3], &device), classes: Tensor::zeros([4], &device) };
/// let step = TrainStep::step(&model, points);
/// assert_eq!(step.item.output.dims(), [4, 2]);
/// assert_eq!(step.grads.len(), 4); // of two weights and two biases
/// # Ok::<(), stovepipe_pipeline::BuildError>(())
/// ```
pub struct Staged<L: Layer, O, I, T, M> {
    pipeline: Pipeline<L>,
    objective: O,
    batch: ToBatch<L, I, T>,
    output: fn(Tensor<1>, L::Output, T) -> M,
}

/// Makes a batch of a data loader's item.
type ToBatch<L, I, T> = fn(I) -> Batch<<L as Layer>::Input, T, <L as Layer>::Side>;

impl<L: Layer, O, I, T, M> Staged<L, O, I, T, M>
where
    O: Objective<L::Output, T>,
{
    /// A model that trains `pipeline` with `objective`.
    ///
    /// `batch` makes a batch of a data loader's item; for pairs of input and target it is `Batch::from`.
    /// `output` makes what metrics read, such as `ClassificationOutput::new`. It gets the mean loss `[1]`, the
    /// model's output and the target, all on the last stage's device and without a graph.
    #[must_use]
    pub fn new(
        pipeline: Pipeline<L>,
        objective: O,
        batch: ToBatch<L, I, T>,
        output: fn(Tensor<1>, L::Output, T) -> M,
    ) -> Self {
        Self {
            pipeline,
            objective,
            batch,
            output,
        }
    }
}

impl<L: Layer, O: Clone, I, T, M> Staged<L, O, I, T, M> {
    /// The pipeline.
    #[must_use]
    pub fn pipeline(&self) -> &Pipeline<L> {
        &self.pipeline
    }

    /// Returns the pipeline.
    #[must_use]
    pub fn into_pipeline(self) -> Pipeline<L> {
        self.pipeline
    }

    /// The device of inputs.
    pub(crate) fn first_device(&self) -> Device {
        let first = self.pipeline.stages().into_iter().next();
        first.map_or_else(Device::flex, |first| first.device.inner())
    }

    /// The device of outputs. Data loaders put targets on that of the first stage.
    fn last_device(&self) -> Device {
        let last = self.pipeline.stages().pop();
        last.map_or_else(Device::flex, |last| last.device.inner())
    }

    fn with(&self, pipeline: Pipeline<L>) -> Self {
        Self {
            pipeline,
            objective: self.objective.clone(),
            ..*self
        }
    }

    fn map_pipeline(self, change: impl FnOnce(Pipeline<L>) -> Pipeline<L>) -> Self {
        Self {
            pipeline: change(self.pipeline),
            ..self
        }
    }
}

impl<L, O, I, T, M> Staged<L, O, I, T, M>
where
    L: Layer,
    O: Objective<L::Output, T> + Clone,
    T: Flow,
{
    /// Runs a mini-batch forward and backward.
    pub(crate) fn try_train(&self, item: I) -> Result<TrainOutput<M>, StepError> {
        let batch = (self.batch)(item);
        let target = batch.target.clone();
        let mut step = (self.pipeline).train_step(batch.keep_outputs(), &self.objective)?;
        let output = step.outputs.take().ok_or(StepError::UnlikeOutputs)?;
        let device = self.last_device();
        let loss = Tensor::from_floats([step.loss as f32], &device);
        Ok(TrainOutput {
            grads: step.gradients,
            item: (self.output)(loss, output, to_device(detach(target), &device)),
        })
    }

    /// Evaluates a mini-batch.
    pub(crate) fn try_infer(&self, item: I) -> Result<M, StepError> {
        let Batch {
            input,
            target,
            side,
            ..
        } = (self.batch)(item);
        let output = self.pipeline.infer((input, side))?;
        let target = to_device(detach(target), &self.last_device());
        let weight = self.objective.weight(&target);
        let sum = self.objective.loss(output.clone(), target.clone());
        Ok((self.output)(sum.div_scalar(weight), output, target))
    }
}

impl<L, O, I, T, M> TrainStep for Staged<L, O, I, T, M>
where
    L: Layer,
    O: Objective<L::Output, T>,
    I: Send + 'static,
    T: Flow,
    M: ItemLazy + 'static,
{
    type Input = I;
    type Output = M;

    /// Runs a mini-batch forward and backward.
    ///
    /// # Panics
    ///
    /// If the step fails, since burn-train does not take errors. The message names stage, layer and
    /// micro-batch.
    fn step(&self, item: I) -> TrainOutput<M> {
        (self.try_train(item)).unwrap_or_else(|error| fail("training", &error))
    }
}

impl<L, O, I, T, M> InferenceStep for Staged<L, O, I, T, M>
where
    L: Layer,
    O: Objective<L::Output, T>,
    I: Send + 'static,
    T: Flow,
    M: ItemLazy + 'static,
{
    type Input = I;
    type Output = M;

    /// Evaluates a mini-batch.
    ///
    /// # Panics
    ///
    /// If the step fails, as [`TrainStep::step`] does.
    fn step(&self, item: I) -> M {
        (self.try_infer(item)).unwrap_or_else(|error| fail("validation", &error))
    }
}

fn fail(what: &str, error: &StepError) -> ! {
    panic!("a {what} step of the pipeline failed: {error}")
}

impl<L: Layer, O: Clone, I, T, M> Clone for Staged<L, O, I, T, M> {
    fn clone(&self) -> Self {
        self.with(self.pipeline.clone())
    }
}

impl<L: Layer, O, I, T, M> fmt::Debug for Staged<L, O, I, T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Staged");
        shown
            .field("pipeline", &self.pipeline)
            .finish_non_exhaustive()
    }
}

// A derive would prefix the names of parameters with that of the field.
impl<L: Layer, O: Clone + Send, I, T, M> Module for Staged<L, O, I, T, M> {
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.pipeline.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        self.map_pipeline(|pipeline| pipeline.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.map_pipeline(|pipeline| pipeline.to_device(device))
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.pipeline.visit(visitor);
    }

    fn map<Mapper: ModuleMapper>(self, mapper: &mut Mapper) -> Self {
        self.map_pipeline(|pipeline| pipeline.map(mapper))
    }

    fn train(self) -> Self {
        self.map_pipeline(Module::train)
    }

    fn valid(&self) -> Self {
        self.with(self.pipeline.valid())
    }

    fn materialize(self) -> Self {
        self.map_pipeline(Module::materialize)
    }
}

impl<L: Layer, O: Clone + Send, I, T, M> ModuleDisplayDefault for Staged<L, O, I, T, M> {
    fn content(&self, content: Content) -> Option<Content> {
        self.pipeline.content(content)
    }

    fn num_params(&self) -> usize {
        Module::num_params(&self.pipeline)
    }
}

impl<L: Layer, O: Clone + Send, I, T, M> ModuleDisplay for Staged<L, O, I, T, M> {}

impl<L: Layer, O, I, T, M> fmt::Display for Staged<L, O, I, T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pipeline.fmt(f)
    }
}
