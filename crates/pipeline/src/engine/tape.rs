//! Forward and backward through the layers of a stage, for one micro-batch.
//!
//! The autodiff graph is cut at *every* layer boundary, wherever the stages lie: a value that
//! several layers read would otherwise add up its gradients in an order that depends on the cut.
//! So a tape is a list of small graphs, one a layer, and backward walks them from the last to the
//! first: the gradient of a layer's output seeds its graph, whose leaves give the gradient of its
//! input.

use std::ops::Range;

use burn::{
    optim::GradientsParams,
    tensor::{Gradients, Tensor},
};

use crate::{
    engine::{
        deferred::{self, DeferredGradients},
        finite::{self, gradients_are_finite, is_finite},
        skips::{SkipGradients, SkipValues, StageSkips, Taking},
        values::{self, FlowGradients},
    },
    model::{
        context::{Context, Left},
        flow::Flow,
        keyed_rng::{KeyedRng, StepKey},
        layer::{Layer, LayerError},
    },
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

impl From<LayerError> for Refused {
    fn from(error: LayerError) -> Self {
        Self(error.to_string())
    }
}

/// What the layers of a stage see for a micro-batch, beside what flows.
pub(crate) struct PassContext<'a, L: Layer> {
    pub(crate) side: &'a L::Side,
    /// The key of random numbers, and the micro-batch's samples; `None` in inference.
    pub(crate) draws: Option<(StepKey, Range<usize>)>,
    pub(crate) skips: &'a StageSkips,
    /// The place in the model of the first of these layers.
    pub(crate) first: usize,
    /// The first layer of the model that has something to train.
    pub(crate) trainable_from: usize,
    /// Whether each value is looked at, to find the first that is no number.
    pub(crate) inspect: bool,
    /// What losses are multiplied by before the backward pass.
    pub(crate) loss_scale: Option<f64>,
}

impl<'a, L: Layer> PassContext<'a, L> {
    fn scaled(&self, loss: Tensor<1>) -> Tensor<1> {
        match self.loss_scale {
            Some(scale) => loss.mul_scalar(scale),
            None => loss,
        }
    }

    fn is_training(&self) -> bool {
        self.draws.is_some()
    }

    /// Whether what a layer puts out wants a gradient: it has parameters that do, or one before it.
    fn wants_gradient(&self, layer: usize) -> bool {
        layer >= self.trainable_from
    }

    fn context(&self, layer: usize, taken: &[L::Flow]) -> Context<'a, L> {
        let draws = match &self.draws {
            Some((step, samples)) => KeyedRng::of_step(step.clone(), layer, samples.clone()),
            None => KeyedRng::none(),
        };
        let context = Context::new(self.side, false).with_rng(draws);
        let names = (self.skips.taken_by(layer).iter()).map(|&skip| self.skips.name(skip));
        (names.zip(taken)).fold(context, |context, (name, value)| {
            context.with_skip(name, value.clone())
        })
    }

    /// Gets what a layer takes out of the values at hand, each for the last time if it is.
    fn take(
        &self,
        layer: usize,
        values: &mut SkipValues<L::Flow>,
    ) -> Result<Vec<L::Flow>, Refused> {
        let found = self.skips.taken_by(layer).iter().map(|skip| {
            let value = match self.skips.is_last_here(*skip, layer) {
                true => values.remove(skip),
                false => values.get(skip).cloned(),
            };
            value.ok_or_else(|| {
                Refused(format!(
                    "the skip \"{}\" is not there",
                    self.skips.name(*skip)
                ))
            })
        });
        found.collect()
    }

    /// Runs a layer. Returns its output, and what it sent in the order in which it declares it.
    fn run(
        &self,
        module: &L,
        layer: usize,
        input: L::Flow,
        taken: &[L::Flow],
    ) -> Result<Ran<L>, Refused> {
        let was_finite = self.inspect && is_finite(&input) && taken.iter().all(is_finite);
        let mut context = self.context(layer, taken);
        let output = module.forward(input, &mut context)?;
        let Left {
            auxiliary,
            mut sent,
            untaken,
        } = context.into_left();
        if let Some(name) = untaken.first() {
            let cause = format!("it declares that it takes the skip \"{name}\", and did not");
            return Err(Refused(cause));
        }
        let declared = self.skips.sent_by(layer).iter().map(|&skip| {
            let name = self.skips.name(skip);
            let place = sent.iter().position(|(sent, _)| sent == name);
            place.map(|place| sent.swap_remove(place).1).ok_or_else(|| {
                Refused(format!(
                    "it declares that it sends the skip \"{name}\", and did not"
                ))
            })
        });
        let declared = declared.collect::<Result<Vec<_>, _>>()?;
        if let Some((name, _)) = sent.first() {
            let cause = format!("it sent the skip \"{name}\" twice, or without declaring it");
            return Err(Refused(cause));
        }
        if was_finite && !(is_finite(&output) && declared.iter().all(is_finite)) {
            return Err(Refused(
                "its output is not finite, its input was".to_owned(),
            ));
        }
        Ok(Ran {
            output,
            sent: declared,
            auxiliary,
        })
    }

    /// Keeps what a layer sent for those of the stage that take it, and for the other stages.
    fn keep(
        &self,
        layer: usize,
        sent: Vec<L::Flow>,
        here: &mut SkipValues<L::Flow>,
        elsewhere: &mut SkipValues<L::Flow>,
    ) {
        for (&skip, value) in self.skips.sent_by(layer).iter().zip(sent) {
            if self.skips.is_taken_here(skip) {
                here.insert(skip, value.clone());
            }
            if self.skips.is_taken_elsewhere(skip) {
                elsewhere.insert(skip, value);
            }
        }
    }
}

/// What a layer made.
struct Ran<L: Layer> {
    output: L::Flow,
    sent: Vec<L::Flow>,
    auxiliary: Vec<L::Output>,
}

/// What a stage is given for a micro-batch, without a graph.
#[derive(Clone)]
pub(crate) struct StageInput<L: Layer> {
    pub(crate) flow: L::Flow,
    /// What other stages sent to its layers.
    pub(crate) skips: SkipValues<L::Flow>,
}

/// What a stage makes of a micro-batch, without a graph.
pub(crate) struct StageOutput<L: Layer> {
    pub(crate) flow: L::Flow,
    /// What its layers sent.
    pub(crate) skips: SkipValues<L::Flow>,
}

/// Runs `layers` without a tape on detached values.
pub(crate) fn forward<L: Layer>(
    layers: &[L],
    given: StageInput<L>,
    pass: &PassContext<'_, L>,
    watch: &impl Watch,
) -> Result<StageOutput<L>, Refused> {
    let attach = |flow| match pass.is_training() {
        true => values::attach(flow, false),
        false => flow,
    };
    let mut flow = attach(given.flow);
    let (mut here, mut elsewhere) = (given.skips, SkipValues::new());
    for (index, module) in layers.iter().enumerate() {
        watch.enter(index);
        let layer = pass.first + index;
        let taken = pass.take(layer, &mut here)?;
        let taken: Vec<_> = taken.into_iter().map(attach).collect();
        // Auxiliary outputs are dropped here: the loss is taken where the tape is recorded.
        let ran = pass.run(module, layer, flow, &taken)?;
        let sent = ran.sent.into_iter().map(values::detach).collect();
        pass.keep(layer, sent, &mut here, &mut elsewhere);
        flow = ran.output;
    }
    watch.leave();
    Ok(StageOutput {
        flow: values::detach(flow),
        skips: elsewhere,
    })
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
    /// Its place in the model.
    layer: usize,
    module: L,
    input: L::Flow,
    taken: Vec<L::Flow>,
    output: L::Flow,
    sent: Vec<L::Flow>,
    auxiliary: Option<Tensor<1>>,
}

struct HeadTape<L: Layer> {
    input: L::Flow,
    loss: Tensor<1>,
}

/// What a recorded forward pass returns beside its tape.
pub(crate) struct Recorded<L: Layer> {
    pub(crate) made: StageOutput<L>,
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

/// Runs `modules` and records the tape. They are copies with leaves of their own, and this tape's alone
/// until its backward pass gives them back.
pub(crate) fn record<L: Layer>(
    modules: Vec<L>,
    given: StageInput<L>,
    pass: &PassContext<'_, L>,
    loss: &Loss<'_, L>,
    watch: &impl Watch,
) -> Result<Recorded<L>, Refused> {
    let mut flow = given.flow;
    let (mut here, mut elsewhere) = (given.skips, SkipValues::new());
    let mut tapes = Vec::with_capacity(modules.len());
    let mut auxiliary = Vec::new();
    for (index, module) in modules.into_iter().enumerate() {
        watch.enter(index);
        let layer = pass.first + index;
        let input = values::attach(flow, layer > 0 && pass.wants_gradient(layer - 1));
        let taken = pass.take(layer, &mut here)?;
        let taken: Vec<_> = (pass.skips.taken_by(layer).iter().zip(taken))
            .map(|(&skip, value)| {
                values::attach(value, pass.wants_gradient(pass.skips.sender(skip)))
            })
            .collect();
        let ran = pass.run(&module, layer, input.clone(), &taken)?;
        let sent = ran.sent.iter().cloned().map(values::detach).collect();
        pass.keep(layer, sent, &mut here, &mut elsewhere);
        let aside = (ran.auxiliary.into_iter()).fold(None, |sum, head| {
            values::add(sum, Some(loss(Head::Auxiliary, head)))
        });
        auxiliary.extend(aside.clone().map(Tensor::inner));
        flow = values::detach(ran.output.clone());
        tapes.push(LayerTape {
            layer,
            module,
            input,
            taken,
            output: ran.output,
            sent: ran.sent,
            auxiliary: aside.map(|loss| pass.scaled(loss)),
        });
    }
    watch.leave();
    Ok(Recorded {
        made: StageOutput {
            flow,
            skips: elsewhere,
        },
        auxiliary,
        tape: Tape {
            layers: tapes,
            head: None,
        },
    })
}

impl<L: Layer> LayerTape<L> {
    /// The scalar that the layer's backward pass begins with: the gradients of its output and of what
    /// it sent, and its auxiliary loss.
    fn seed(
        &mut self,
        gradients: FlowGradients,
        of_skips: &mut SkipGradients,
        skips: &StageSkips,
    ) -> Option<Tensor<1>> {
        let mut sum = values::seed(self.output.clone(), gradients);
        for (&skip, value) in skips.sent_by(self.layer).iter().zip(&self.sent) {
            for taking in skips.takings(skip) {
                let gradients = of_skips.remove(&taking).unwrap_or_default();
                sum = values::add(sum, values::seed(value.clone(), gradients));
            }
        }
        values::add(sum, self.auxiliary.take())
    }
}

impl<L: Layer> Tape<L> {
    /// The copies that it was recorded on, without a backward pass.
    pub(crate) fn into_modules(self) -> Vec<L> {
        self.layers.into_iter().map(|tape| tape.module).collect()
    }

    /// Adds the loss on the output of the last layer, and returns its value.
    pub(crate) fn record_loss(
        &mut self,
        output: L::Flow,
        loss: &Loss<'_, L>,
        (pass, watch): (&PassContext<'_, L>, &impl Watch),
    ) -> Result<Tensor<1>, Refused> {
        let was_finite = pass.inspect && is_finite(&output);
        let last = pass.first + self.layers.len() - 1;
        let input = values::attach(output, pass.wants_gradient(last));
        let output = leave::<L>(input.clone(), self.layers.len(), watch)?;
        let loss = loss(Head::Main, output);
        let value = loss.clone().inner();
        if was_finite && !is_finite(&value) {
            let cause = "the loss is not finite, the model's output was";
            return Err(Refused(cause.to_owned()));
        }
        let loss = pass.scaled(loss);
        self.head = Some(HeadTape { input, loss });
        Ok(value)
    }

    /// Runs backward. `gradients` are those of the output, unless the tape ends in a loss; `of_skips`
    /// those that other stages have of what these layers sent. Gives each layer's parameter gradients
    /// to `accumulate`, the last layer's first.
    pub(crate) fn backward(
        self,
        gradients: FlowGradients,
        mut of_skips: SkipGradients,
        (extent, pass): (Extent, &PassContext<'_, L>),
        mut accumulate: impl FnMut(usize, &L, GradientsParams),
        watch: &impl Watch,
    ) -> Result<Played<L>, Refused> {
        let mut gradients = match self.head {
            Some(head) => backward_from(Some(head.loss), (head.input, Vec::new()), |_| ()).1,
            None => gradients,
        };
        let mut modules = Vec::with_capacity(self.layers.len());
        let mut left = Vec::new();
        for (index, mut tape) in self.layers.into_iter().enumerate().rev() {
            watch.enter(index);
            let was_finite = pass.inspect && finite::are_finite(&tape.output, &gradients);
            let seed = tape.seed(gradients, &mut of_skips, pass.skips);
            let LayerTape {
                layer,
                module,
                input,
                taken,
                ..
            } = tape;
            let leaves = (input, taken);
            let like = pass.inspect.then(|| leaves.clone());
            let run = || {
                backward_from(seed, leaves, |grads| {
                    GradientsParams::from_module(grads, &module)
                })
            };
            let (parameters, input, of_taken) = match extent {
                Extent::Whole => run(),
                Extent::Input => {
                    let ((mut parameters, input, taken), deferred) =
                        deferred::input_half(&module, run);
                    let late = DeferredGradients::new(&module, deferred, parameters.as_mut());
                    left.extend(late.map(|late| (index, late)));
                    (parameters, input, taken)
                }
            };
            let finite = || {
                let of_input = like.is_none_or(|(flow, _)| finite::are_finite(&flow, &input));
                let of_parameters = parameters
                    .as_ref()
                    .is_none_or(|gradients| gradients_are_finite(&module, gradients));
                of_input && of_parameters
            };
            if was_finite && !finite() {
                let cause = "its gradients are not finite, those of its output were";
                return Err(Refused(cause.to_owned()));
            }
            if let Some(parameters) = parameters {
                accumulate(index, &module, parameters);
            }
            let takings = pass
                .skips
                .taken_by(layer)
                .iter()
                .map(|&skip| Taking { skip, taker: layer });
            of_skips.extend(takings.zip(of_taken));
            modules.push(module);
            gradients = input;
        }
        watch.leave();
        modules.reverse();
        Ok(Played {
            modules,
            input: gradients,
            skips: of_skips,
            late: left,
        })
    }
}

/// What a backward pass leaves behind.
pub(crate) struct Played<L> {
    /// The copies that the tape was recorded on, free for another.
    pub(crate) modules: Vec<L>,
    /// The gradients of the input.
    pub(crate) input: FlowGradients,
    /// The gradients of what layers took from other stages.
    pub(crate) skips: SkipGradients,
    /// What layers left for the second half, the last layer's first.
    pub(crate) late: Vec<(usize, DeferredGradients)>,
}

/// Runs Burn's backward from a scalar and collects what is wanted of it, and the gradients of the leaves:
/// of a flow, and of each of some more. Nothing is there to be had if the scalar is missing or hangs on
/// nothing that wants a gradient.
fn backward_from<F: Flow, R>(
    scalar: Option<Tensor<1>>,
    (leaf, more): (F, Vec<F>),
    collect: impl FnOnce(&mut Gradients) -> R,
) -> (Option<R>, FlowGradients, Vec<FlowGradients>) {
    let Some(scalar) = scalar.filter(Tensor::is_tracked) else {
        let none = more.iter().map(|_| FlowGradients::default()).collect();
        return (None, FlowGradients::default(), none);
    };
    let mut gradients = scalar.backward();
    drop(scalar);
    let collected = collect(&mut gradients);
    let mut take = |leaf| values::take_gradients(leaf, &mut gradients);
    let of_leaf = take(leaf);
    (
        Some(collected),
        of_leaf,
        more.into_iter().map(take).collect(),
    )
}
