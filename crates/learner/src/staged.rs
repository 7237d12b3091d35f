//! A pipeline as a model that Burn's Learner can train.

use std::fmt;

use burn::{
    module::{
        Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
    },
    tensor::{Bool, Device, Int, Tensor},
};
use burn_train::{InferenceStep, ItemLazy, TrainOutput, TrainStep};
use stovepipe_pipeline::{Batch, Flow, FlowMapper, Layer, Objective, Pipeline, StepError};

/// A pipeline, what it makes small, and how both fit a data loader and metrics: a model for burn-train's `Learner`.
///
/// `I` is what the data loader yields, `T` the target in it, `M` what metrics read, such as
/// [`ClassificationOutput`](burn_train::ClassificationOutput). A training step runs the mini-batch through all stages
/// in micro-batches and returns the gradients of every stage, each where its parameters lie. Metrics get the outputs of
/// the whole mini-batch, put together on the last stage's device.
///
/// As a module it *is* its pipeline, and so its layers: a checkpoint has the names `layers.0.…` and loads into a
/// [`Pipeline`] of any number of stages, or into a plain module with a field `layers`.
///
/// ```
/// # use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{Device, Int, Tensor}};
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
/// use burn_train::{ClassificationOutput, TrainStep};
/// use stovepipe_learner::Staged;
/// use stovepipe_pipeline::{Batch, CrossEntropy, Pipeline};
///
/// /// What a data loader yields.
/// struct Points { places: Tensor<2>, classes: Tensor<1, Int> }
///
/// let device = Device::flex();
/// let layers = [(3, 8), (8, 2)].map(|(from, to)| Dense { linear: LinearConfig::new(from, to).init(&device) });
/// let pipeline = Pipeline::builder(layers.to_vec())
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

/// What a loader's item is to a pipeline.
type ToBatch<L, I, T> = fn(I) -> Batch<<L as Layer>::Input, T, <L as Layer>::Side>;

impl<L: Layer, O, I, T, M> Staged<L, O, I, T, M>
where
    O: Objective<L::Output, T>,
{
    /// A model of `pipeline`, which makes `objective` small.
    ///
    /// `batch` says what in a data loader's item is input, target, and what stages read from the side; for pairs of
    /// input and target it is `Batch::from`. `output` makes what metrics read of the mean loss `[1]`, the model's output
    /// and the target, all on the last stage's device and without a graph; burn-train's own have such a function, as
    /// `ClassificationOutput::new`.
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

    /// Takes the pipeline out.
    #[must_use]
    pub fn into_pipeline(self) -> Pipeline<L> {
        self.pipeline
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
    /// If the step fails, since burn-train has no other way out. What it says names the stage, the layer and the
    /// micro-batch.
    fn step(&self, item: I) -> TrainOutput<M> {
        let batch = (self.batch)(item);
        let target = batch.target.clone();
        let step = (self.pipeline).train_step(batch.keep_outputs(), &self.objective);
        let mut step = step.unwrap_or_else(|error| fail("training", &error));
        let Some(output) = step.outputs.take() else {
            fail("training", &StepError::UnlikeOutputs)
        };
        let place = Place::of(&output);
        let (target, loss) = (place.take(target), place.number(step.loss));
        TrainOutput {
            grads: step.gradients,
            item: (self.output)(loss, output, target),
        }
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

    /// Runs a mini-batch forward, as evaluation does.
    ///
    /// # Panics
    ///
    /// If the step fails, as [`TrainStep::step`] does.
    fn step(&self, item: I) -> M {
        let Batch {
            input,
            target,
            side,
            ..
        } = (self.batch)(item);
        let output = self.pipeline.infer((input, side));
        let output = output.unwrap_or_else(|error| fail("validation", &error));
        let target = Place::of(&output).take(target);
        let weight = self.objective.weight(&target);
        let sum = self.objective.loss(output.clone(), target.clone());
        (self.output)(sum.div_scalar(weight), output, target)
    }
}

fn fail(what: &str, error: &StepError) -> ! {
    panic!("a {what} step of the pipeline failed: {error}")
}

/// Where metrics are computed: where the model's output is.
struct Place(Option<Device>);

impl Place {
    fn of<F: Flow>(output: &F) -> Self {
        struct Find(Option<Device>);

        impl FlowMapper for Find {
            fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
                self.0.get_or_insert_with(|| tensor.device());
                tensor
            }
            fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
                self.0.get_or_insert_with(|| tensor.device());
                tensor
            }
            fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
                self.0.get_or_insert_with(|| tensor.device());
                tensor
            }
        }

        let mut find = Find(None);
        let _ = output.clone().map(&mut find);
        Self(find.0)
    }

    fn number(&self, value: f64) -> Tensor<1> {
        Tensor::from_floats([value as f32], &self.0.clone().unwrap_or_default())
    }

    /// Data loaders put targets on the first stage's device.
    fn take<F: Flow>(&self, target: F) -> F {
        struct Take<'a>(&'a Device);

        impl FlowMapper for Take<'_> {
            fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
                tensor.inner().to_device(self.0)
            }
            fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
                tensor.inner().to_device(self.0)
            }
            fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
                tensor.inner().to_device(self.0)
            }
        }

        match &self.0 {
            Some(device) => target.map(&mut Take(device)),
            None => target,
        }
    }
}

impl<L: Layer, O: Clone, I, T, M> Clone for Staged<L, O, I, T, M> {
    fn clone(&self) -> Self {
        self.with(self.pipeline.clone())
    }
}

impl<L: Layer, O, I, T, M> fmt::Debug for Staged<L, O, I, T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staged")
            .field("pipeline", &self.pipeline)
            .finish_non_exhaustive()
    }
}

// By hand rather than derived: the derive would put the field's name in front of every parameter's, and checkpoints
// would no longer be those of the layers.
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
