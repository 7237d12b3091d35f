//! What a user's model is to a pipeline: a list of layers.

use std::fmt;

use burn::module::{Module, ModuleVisitor};

use crate::model::{context::Context, flow::Flow, wiring::SkipUse};

/// One layer of a pipelined model: a Burn module with one `forward`.
///
/// A model of unlike layers is an enum of Burn modules with `#[derive(Module)]`; a model of like
/// layers is a list of the same struct. [`Flow`](Self::Flow) is what passes between layers, and the
/// compiler checks it; where it is an enum itself, a layer that receives the wrong variant returns
/// [`LayerError`], and the engine adds which layer that was.
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
    /// What the model is given.
    type Input: Flow;
    /// What passes from layer to layer.
    type Flow: Flow;
    /// What the model returns.
    type Output: Flow;
    /// What any layer may read from the side, such as a mask; `()` if nothing.
    type Side: Flow;

    /// Makes the first layer's input of the model's.
    fn enter(input: Self::Input) -> Self::Flow;

    /// Runs the layer.
    ///
    /// It must be a function of its parameters, of what it is given and of the context alone: the
    /// engine may run it again to recompute what it did not keep, and in the first training step to see
    /// how batch norms keep their statistics.
    ///
    /// A batch norm normalizes each micro-batch by itself, and its running statistics move once a
    /// mini-batch, as if it had come in one piece. For that, a layer uses a norm once: what a second
    /// use adds to the running variance is not exact.
    ///
    /// # Errors
    ///
    /// [`LayerError`] if the layer cannot take what it was given.
    fn forward(
        &self,
        flow: Self::Flow,
        context: &mut Context<'_, Self>,
    ) -> Result<Self::Flow, LayerError>;

    /// Makes the model's output of what the last layer returned.
    ///
    /// # Errors
    ///
    /// [`LayerError`] if that is no output.
    fn leave(flow: Self::Flow) -> Result<Self::Output, LayerError>;

    /// The values that the layer sends to later layers past those between, and those that it takes:
    /// declared, so that a mistake in the wiring is found when the pipeline is built. None by default.
    /// Whether a layer then does what it declares is seen when it runs, so also when the pipeline is
    /// built with a [sample](crate::PipelineBuilder::sample).
    fn skips(&self) -> Vec<SkipUse> {
        Vec::new()
    }

    /// What errors and tables call the layer: by default the enum's variant or the struct's name.
    fn name(&self) -> String {
        let mut namer = Namer(None);
        self.visit(&mut namer);
        namer.0.unwrap_or_else(short_type_name::<Self>)
    }
}

/// A layer was given a value that it cannot take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerError {
    expected: String,
    found: String,
}

impl LayerError {
    /// Says what the layer takes and what it was given.
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

impl fmt::Display for LayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, found {}", self.expected, self.found)
    }
}

impl std::error::Error for LayerError {}

/// Remembers the name of the first thing that a module enters.
struct Namer(Option<String>);

impl ModuleVisitor for Namer {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.0
            .get_or_insert_with(|| match container_type.split_once(':') {
                Some(("Struct", struct_name)) => struct_name.to_owned(),
                _ => name.to_owned(),
            });
    }
}

fn short_type_name<T: ?Sized>() -> String {
    let name = std::any::type_name::<T>();
    let name = name.split('<').next().unwrap_or(name);
    name.rsplit("::").next().unwrap_or(name).to_owned()
}
