//! Forward and backward through the layers of a stage, for one micro-batch.
//!
//! The autodiff graph is cut at *every* layer boundary, wherever the stages lie: a value that
//! several layers read would otherwise add up its gradients in an order that depends on the cut.
//! So a tape is a list of small graphs, one a layer, and backward walks them from the last to the
//! first: the gradient of a layer's output seeds its graph, whose leaves give the gradient of its
//! input.

use burn::{
    optim::GradientsParams,
    tensor::{Gradients, Tensor},
};

use crate::{
    engine::{
        late::{self, Late},
        values::{self, FlowGradients},
    },
    flow::Flow,
    layer::{Context, Layer, Miswired},
};

/// Runs the loss of a micro-batch on the output of the model or of an auxiliary head.
pub(crate) type Loss<'a, L> = dyn Fn(Head, <L as Layer>::Output) -> Tensor<1> + 'a;

/// Which output a loss is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Head {
    Main,
    Auxiliary,
}

/// Told about each layer before and after it runs, so that an error can name it.
pub(crate) trait Watch {
    fn enter(&self, layer: usize);
    fn leave(&self);
}

/// Why a pass ended early.
pub(crate) struct Refused(pub(crate) String);

impl From<Miswired> for Refused {
    fn from(error: Miswired) -> Self {
        Self(error.to_string())
    }
}

/// Runs `layers` without a tape on detached values.
pub(crate) fn forward<L: Layer>(
    layers: &[L],
    input: L::Flow,
    side: &L::Side,
    training: bool,
    watch: &impl Watch,
) -> Result<L::Flow, Refused> {
    let mut flow = match training {
        true => values::attach(input, false),
        false => input,
    };
    for (index, layer) in layers.iter().enumerate() {
        watch.enter(index);
        // Auxiliary outputs are dropped here: the loss is taken where the tape is recorded.
        flow = layer.forward(flow, &mut Context::new(side, training))?;
    }
    watch.leave();
    Ok(values::detach(flow))
}

/// Makes the output of the last layer the model's; what is wrong with it is that layer's doing.
pub(crate) fn leave<L: Layer>(
    flow: L::Flow,
    layers: usize,
    watch: &impl Watch,
) -> Result<L::Output, Refused> {
    watch.enter(layers - 1);
    let output = L::leave(flow)?;
    watch.leave();
    Ok(output)
}

/// What a micro-batch left behind for its backward pass.
pub(crate) struct Tape<L: Layer> {
    layers: Vec<LayerTape<L>>,
    head: Option<HeadTape<L>>,
}

struct LayerTape<L: Layer> {
    module: L,
    input: L::Flow,
    output: L::Flow,
    auxiliary: Option<Tensor<1>>,
}

struct HeadTape<L: Layer> {
    input: L::Flow,
    loss: Tensor<1>,
}

/// What a recorded forward pass returns beside its tape.
pub(crate) struct Recorded<L: Layer> {
    pub(crate) output: L::Flow,
    /// Of the auxiliary heads, in the order of the layers; detached.
    pub(crate) auxiliary: Vec<Tensor<1>>,
    pub(crate) tape: Tape<L>,
}

/// How much of a backward pass is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All of it.
    Whole,
    /// The half that finds the gradient of the input, and what else cannot wait.
    Input,
}

/// Whether the input of a stage is data, which wants no gradient, or another stage's output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Data,
    Stage,
}

/// Runs `modules` and records the tape. They are copies with leaves of their own, and this tape's alone
/// until its backward pass gives them back.
pub(crate) fn record<L: Layer>(
    modules: Vec<L>,
    input: L::Flow,
    origin: Origin,
    side: &L::Side,
    loss: &Loss<'_, L>,
    watch: &impl Watch,
) -> Result<Recorded<L>, Refused> {
    let mut flow = input;
    let mut tapes = Vec::with_capacity(modules.len());
    let mut auxiliary = Vec::new();
    for (index, module) in modules.into_iter().enumerate() {
        watch.enter(index);
        let is_leaf = index > 0 || origin == Origin::Stage;
        let input = values::attach(flow, is_leaf);
        let mut context = Context::new(side, true);
        let output = module.forward(input.clone(), &mut context)?;
        let heads = context.into_auxiliary().into_iter();
        let aside = heads.fold(None, |sum, head| {
            values::add(sum, Some(loss(Head::Auxiliary, head)))
        });
        auxiliary.extend(aside.clone().map(Tensor::inner));
        flow = values::detach(output.clone());
        tapes.push(LayerTape {
            module,
            input,
            output,
            auxiliary: aside,
        });
    }
    watch.leave();
    Ok(Recorded {
        output: flow,
        auxiliary,
        tape: Tape {
            layers: tapes,
            head: None,
        },
    })
}

impl<L: Layer> Tape<L> {
    /// Adds the loss on the output of the last layer, and returns its value.
    pub(crate) fn record_loss(
        &mut self,
        output: L::Flow,
        loss: &Loss<'_, L>,
        watch: &impl Watch,
    ) -> Result<Tensor<1>, Refused> {
        let input = values::attach(output, true);
        let output = leave::<L>(input.clone(), self.layers.len(), watch)?;
        let loss = loss(Head::Main, output);
        let value = loss.clone().inner();
        self.head = Some(HeadTape { input, loss });
        Ok(value)
    }

    /// Runs backward. `gradients` are those of the output, unless the tape ends in a loss. Gives
    /// each layer's parameter gradients to `accumulate`, the last layer's first.
    pub(crate) fn backward(
        self,
        gradients: FlowGradients,
        extent: Extent,
        mut accumulate: impl FnMut(usize, &L, GradientsParams),
        watch: &impl Watch,
    ) -> Played<L> {
        let mut gradients = match self.head {
            Some(head) => backward_from(Some(head.loss), head.input, |_| ()).1,
            None => gradients,
        };
        let mut modules = Vec::with_capacity(self.layers.len());
        let mut left = Vec::new();
        for (index, layer) in self.layers.into_iter().enumerate().rev() {
            watch.enter(index);
            let seed = values::add(values::seed(layer.output, gradients), layer.auxiliary);
            let module = layer.module;
            let run = || {
                backward_from(seed, layer.input, |grads| {
                    GradientsParams::from_module(grads, &module)
                })
            };
            let (parameters, input) = match extent {
                Extent::Whole => run(),
                Extent::Input => {
                    let ((mut parameters, input), deferred) = late::input_half(&module, run);
                    let late = Late::new(&module, deferred, parameters.as_mut());
                    left.extend(late.map(|late| (index, late)));
                    (parameters, input)
                }
            };
            if let Some(parameters) = parameters {
                accumulate(index, &module, parameters);
            }
            modules.push(module);
            gradients = input;
        }
        watch.leave();
        modules.reverse();
        Played {
            modules,
            input: gradients,
            late: left,
        }
    }
}

/// What a backward pass leaves behind.
pub(crate) struct Played<L> {
    /// The copies that the tape was recorded on, free for another.
    pub(crate) modules: Vec<L>,
    /// The gradients of the input.
    pub(crate) input: FlowGradients,
    /// What layers left for the second half, the last layer's first.
    pub(crate) late: Vec<(usize, Late)>,
}

/// Runs Burn's backward from a scalar and collects what is wanted of it. Nothing is there to be
/// had if the scalar is missing or hangs on nothing that wants a gradient.
fn backward_from<F: Flow, R>(
    scalar: Option<Tensor<1>>,
    leaves: F,
    collect: impl FnOnce(&mut Gradients) -> R,
) -> (Option<R>, FlowGradients) {
    let Some(scalar) = scalar.filter(Tensor::is_tracked) else {
        return (None, FlowGradients::new());
    };
    let mut gradients = scalar.backward();
    drop(scalar);
    let collected = collect(&mut gradients);
    (
        Some(collected),
        values::take_gradients(leaves, &mut gradients),
    )
}
