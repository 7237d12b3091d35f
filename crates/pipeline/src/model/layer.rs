//! A layer, and the context in which it runs.

use std::ops::Range;

use burn::{
    module::{Module, ModuleVisitor},
    tensor::Tensor,
};
use thiserror::Error;

use crate::model::{flow::Flow, keyed_rng::KeyedRng, wiring::SkipUse};

/// One layer of a pipelined model: a Burn module with one `forward`.
///
/// A model with different layers is an enum of Burn modules with `#[derive(Module)]`; a model with equal
/// layers is a list of one struct. [`Flow`](Self::Flow) is the type that passes between layers. If it is
/// an enum, a layer that receives the wrong variant returns a [`LayerError`], and the engine adds the
/// name of the layer.
///
/// ```
/// use burn::{module::Module, nn::Linear, tensor::{Tensor, activation::relu}};
/// use stovepipe_pipeline::{Context, Layer, LayerError};
///
/// #[derive(Module, Debug)]
/// enum Mlp {
///     Hidden(Linear),
///     Head(Linear),
/// }
///
/// impl Layer for Mlp {
///     type Input = Tensor<2>;
///     type Flow = Tensor<2>;
///     type Output = Tensor<2>;
///     type Side = ();
///
///     fn enter(input: Tensor<2>) -> Tensor<2> {
///         input
///     }
///
///     fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, LayerError> {
///         Ok(match self {
///             Mlp::Hidden(linear) => relu(linear.forward(x)),
///             Mlp::Head(linear) => linear.forward(x),
///         })
///     }
///
///     fn leave(flow: Tensor<2>) -> Result<Tensor<2>, LayerError> {
///         Ok(flow)
///     }
/// }
/// ```
pub trait Layer: Module + 'static {
    /// The input of the model.
    type Input: Flow;
    /// The value that passes from layer to layer.
    type Flow: Flow;
    /// The output of the model.
    type Output: Flow;
    /// A side input that any layer can read, such as a mask; `()` if there is none.
    type Side: Flow;

    /// Turns the model's input into the first layer's.
    fn enter(input: Self::Input) -> Self::Flow;

    /// Runs the layer. The result may depend on the parameters, the arguments and the context only: the
    /// engine runs a layer again to recompute it, and in the first training step to learn how batch norms
    /// update their statistics. These move once per mini-batch, as if it came in one piece. A layer should
    /// use each norm once: with a second use the running variance is not exact.
    ///
    /// # Errors
    ///
    /// [`LayerError`] if the layer cannot take the value.
    fn forward(
        &self,
        flow: Self::Flow,
        context: &mut Context<'_, Self>,
    ) -> Result<Self::Flow, LayerError>;

    /// Turns the last layer's output into the model's.
    ///
    /// # Errors
    ///
    /// [`LayerError`] if the value is not a model output.
    fn leave(flow: Self::Flow) -> Result<Self::Output, LayerError>;

    /// The loss to measure the last layer with, if that returns something else where
    /// [`feeds_loss`](Context::feeds_loss), so that the loss does part of its work. By default, the last layer
    /// is measured without a loss, and not so.
    const MEASURED_LOSS: Option<fn(Self::Output) -> Tensor<1>> = None;

    /// The values that the layer sends past other layers, and those that it takes; none by default. Building
    /// a pipeline checks that they match. A layer that does not do what it declares fails when it runs.
    fn skips(&self) -> Vec<SkipUse> {
        Vec::new()
    }

    /// The layer's name in errors and tables; by default the enum's variant or the struct's name.
    fn name(&self) -> String {
        let mut namer = Namer(None);
        self.visit(&mut namer);
        namer.0.unwrap_or_else(short_type_name::<Self>)
    }
}

/// A layer got a value that it cannot take.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("expected {expected}, found {found}")]
pub struct LayerError {
    expected: String,
    found: String,
}

impl LayerError {
    /// Says what the layer takes and what it got.
    ///
    /// ```
    /// use stovepipe_pipeline::LayerError;
    ///
    /// let error = LayerError::new("a pair of states", "logits");
    /// assert_eq!(error.to_string(), "expected a pair of states, found logits");
    /// ```
    #[must_use]
    pub fn new(expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            expected: expected.into(),
            found: found.into(),
        }
    }
}

/// What a layer can use beside its input.
pub struct Context<'a, L: Layer> {
    side: &'a L::Side,
    rng: KeyedRng,
    pub(crate) feeds_loss: bool,
    pub(crate) auxiliary: Vec<L::Output>,
    /// The skips that can be taken, by name.
    pub(crate) available: Vec<(String, L::Flow)>,
    pub(crate) sent: Vec<(String, L::Flow)>,
}

impl<'a, L: Layer> Context<'a, L> {
    /// A context to run a layer outside of a pipeline. In training, it is layer 0 in step 0 for sample 0
    /// and seed 0, unless it gets another [generator](Self::with_rng).
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use stovepipe_pipeline::{Context, Layer};
    ///
    /// let layer = &Dense::layers(&[3, 2])[0];
    /// let y = layer.forward(Tensor::ones([4, 3], &Device::flex()), &mut Context::new(&(), false))?;
    /// assert_eq!(y.dims(), [4, 2]);
    /// # Ok::<(), stovepipe_pipeline::LayerError>(())
    /// ```
    #[must_use]
    pub fn new(side: &'a L::Side, training: bool) -> Self {
        let trains = || KeyedRng::new(0, 0, 0, Range { start: 0, end: 1 });
        Self {
            side,
            rng: training.then(trains).unwrap_or_else(KeyedRng::none),
            feeds_loss: false,
            auxiliary: Vec::new(),
            available: Vec::new(),
            sent: Vec::new(),
        }
    }

    /// Sets the random numbers, which also decide whether the step trains.
    #[must_use]
    pub fn with_rng(self, rng: KeyedRng) -> Self {
        Self { rng, ..self }
    }

    /// Adds a value that an earlier layer sent.
    #[must_use]
    pub fn with_skip(mut self, name: impl Into<String>, value: L::Flow) -> Self {
        self.available.push((name.into(), value));
        self
    }

    /// The side input of this micro-batch, on the layer's device.
    #[must_use]
    pub fn side(&self) -> &'a L::Side {
        self.side
    }

    /// Whether the step trains: false under `infer`.
    #[must_use]
    pub fn is_training(&self) -> bool {
        self.rng.is_training()
    }

    /// Whether an objective gets the model's output and nobody else does, so that the last layer may return
    /// what suits the objective best. Not under `infer`, with
    /// [`keep_outputs`](crate::Batch::keep_outputs), and where layers are measured without a
    /// [loss](Layer::MEASURED_LOSS).
    #[must_use]
    pub fn feeds_loss(&self) -> bool {
        self.feeds_loss
    }

    /// The layer's random numbers for this micro-batch: the same whenever and wherever the layer runs
    /// again.
    #[must_use]
    pub fn rng(&mut self) -> &mut KeyedRng {
        &mut self.rng
    }

    /// Sends a value, declared in [`Layer::skips`], to the later layers that take it by this name.
    pub fn send(&mut self, name: impl Into<String>, value: L::Flow) {
        self.sent.push((name.into(), value));
    }

    /// Takes the value, declared in [`Layer::skips`], that an earlier layer sent by this name.
    ///
    /// # Errors
    ///
    /// If it is not declared, or this layer has taken it already.
    pub fn take(&mut self, name: &str) -> Result<L::Flow, LayerError> {
        let found = (self.available.iter()).position(|(available, _)| available == name);
        let place = found.ok_or_else(|| {
            let expected = format!("a skip \"{name}\" that is declared and not taken yet");
            let names: Vec<_> = self.available.iter().map(|(name, _)| name).collect();
            LayerError::new(expected, format!("these skips: {names:?}"))
        })?;
        Ok(self.available.swap_remove(place).1)
    }

    /// Adds the output of an auxiliary head, for a loss before the last layer. In training, the objective's
    /// [`auxiliary_loss`](crate::Objective::auxiliary_loss) of it is added to the loss. Otherwise it is
    /// dropped.
    pub fn auxiliary(&mut self, output: L::Output) {
        if self.is_training() {
            self.auxiliary.push(output);
        }
    }

    /// The outputs of auxiliary heads so far.
    #[must_use]
    pub fn into_auxiliary(self) -> Vec<L::Output> {
        self.auxiliary
    }

    /// The values sent so far, by name, for [`with_skip`](Self::with_skip) of a later layer's context.
    #[must_use]
    pub fn into_sent(self) -> Vec<(String, L::Flow)> {
        self.sent
    }
}

/// Finds the name of the first struct or variant that a module enters.
struct Namer(Option<String>);

impl ModuleVisitor for Namer {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        let name = match container_type.split_once(':') {
            Some(("Struct", struct_name)) => struct_name,
            _ => name,
        };
        self.0.get_or_insert_with(|| name.to_owned());
    }
}

fn short_type_name<T: ?Sized>() -> String {
    let name = std::any::type_name::<T>();
    let name = name.split('<').next().unwrap_or(name);
    name.rsplit("::").next().unwrap_or(name).to_owned()
}
