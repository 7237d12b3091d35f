//! Forward and backward through the layers of a stage, for one micro-batch.
//!
//! The autodiff graph is cut at every layer boundary, wherever the stages are. Otherwise the gradients
//! of a value that several layers read would be added in an order that depends on the stages. So a
//! tape is a list of small graphs, one per layer. Backward runs them from the last layer to the
//! first: the gradient of a layer's output seeds its graph, and the leaves give the gradient of its
//! input.
//!
//! Of a segment, which is recomputed, a tape has the input instead of the graphs.

use std::{ops::Range, rc::Rc};

use burn::{
    optim::GradientsParams,
    tensor::{Gradients, Tensor},
};
use stovepipe_schedule::SpanKind;

use crate::{
    api::error::FailureCause,
    engine::{
        deferred::{self, DeferredGradients},
        finite::{all_finite, are_finite, gradient_sum, is_finite},
        pass_sums::PassSums,
        skips::{SkipGradients, SkipValues, StageSkips, Taking},
        values::{self, FlowGradients},
    },
    model::{
        flow::Flow,
        flows,
        keyed_rng::{KeyedRng, StepKey},
        layer::{Context, Layer},
    },
};

/// The loss of an output, and its scores.
pub(crate) struct LossAndScores {
    /// Already divided by the weight of the mini-batch.
    pub(crate) loss: Tensor<1>,
    pub(crate) scores: Option<Tensor<1>>,
}

/// Computes the loss of a micro-batch from the output of the model or of an auxiliary head.
pub(crate) type LossFn<'a, L> = dyn Fn(Head, <L as Layer>::Output) -> LossAndScores + 'a;

/// Which output a loss is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Head {
    Main,
    Auxiliary,
}

/// Called with the layer that begins to run, by its index in the stage, and with `None` at the end, so that an
/// error can name it.
pub(crate) type Watch<'a> = dyn Fn(Option<usize>) + 'a;

/// What the layers of a stage need for a micro-batch, beside their input.
pub(crate) struct PassContext<'a, L: Layer> {
    pub(crate) side: &'a L::Side,
    /// The key of random numbers, and the micro-batch's samples; `None` in inference.
    pub(crate) rng: Option<(StepKey, Range<usize>)>,
    pub(crate) skips: &'a StageSkips,
    /// The index in the model of the stage's first layer.
    pub(crate) first: usize,
    pub(crate) trainable_from: usize,
    pub(crate) inspect: bool,
    /// Where sums of what passes compute go, and the micro-batch.
    pub(crate) sums: Option<(&'a PassSums, usize)>,
    /// Whether an objective gets the model's output.
    pub(crate) feeds_loss: bool,
    pub(crate) loss_scale: Option<f64>,
}

impl<'a, L: Layer> PassContext<'a, L> {
    fn scaled(&self, loss: Tensor<1>) -> Tensor<1> {
        match self.loss_scale {
            Some(scale) => loss.mul_scalar(scale),
            None => loss,
        }
    }

    /// Whether a layer's output needs a gradient: the layer or one before it has something to train.
    fn needs_gradient(&self, layer: usize) -> bool {
        layer >= self.trainable_from
    }

    fn context(&self, layer: usize, taken: &[L::Flow]) -> Context<'a, L> {
        let rng = match &self.rng {
            Some((step, samples)) => KeyedRng::of_step(step.clone(), layer, samples.clone()),
            None => KeyedRng::none(),
        };
        let mut context = Context::new(self.side, false).with_rng(rng);
        context.feeds_loss = self.feeds_loss;
        let names = (self.skips.taken_by(layer).iter()).map(|&skip| self.skips.name(skip));
        (names.zip(taken)).fold(context, |context, (name, value)| {
            context.with_skip(name, value.clone())
        })
    }

    /// Gets the skips that a layer takes. Those that no later layer of the stage takes are moved.
    fn take(
        &self,
        layer: usize,
        values: &mut SkipValues<L::Flow>,
    ) -> Result<Vec<L::Flow>, FailureCause> {
        let found = self.skips.taken_by(layer).iter().map(|skip| {
            let value = if self.skips.is_last_here(*skip, layer) {
                values.remove(skip)
            } else {
                values.get(skip).cloned()
            };
            value.ok_or(FailureCause::Internal("a skip is missing"))
        });
        found.collect()
    }

    /// Runs a layer. Returns its output, and the skips that it sent in the order of their declaration.
    fn run(
        &self,
        module: &L,
        layer: usize,
        input: L::Flow,
        taken: &[L::Flow],
    ) -> Result<LayerOutput<L>, FailureCause> {
        let was_finite = self.inspect && is_finite(&input) && taken.iter().all(is_finite);
        let mut context = self.context(layer, taken);
        let output = module.forward(input, &mut context)?;
        let (auxiliary, mut sent) = (context.auxiliary, context.sent);
        if let Some((name, _)) = context.available.into_iter().next() {
            return Err(FailureCause::SkipNotTaken(name));
        }
        let declared = self.skips.sent_by(layer).iter().map(|&skip| {
            let name = self.skips.name(skip);
            let place = sent.iter().position(|(sent, _)| sent == name);
            let value = place.map(|place| sent.swap_remove(place).1);
            value.ok_or_else(|| FailureCause::SkipNotSent(name.to_owned()))
        });
        let declared = declared.collect::<Result<Vec<_>, _>>()?;
        if let Some((name, _)) = sent.into_iter().next() {
            return Err(FailureCause::SkipNotDeclared(name));
        }
        if was_finite && !(is_finite(&output) && declared.iter().all(is_finite)) {
            let cause = "its output is not finite, but its input was";
            return Err(FailureCause::NotFinite(cause));
        }
        if let Some((sums, micro_batch)) = self.sums {
            let flows: Vec<_> = [&output].into_iter().chain(&declared).collect();
            sums.forward((micro_batch, layer), &flows);
        }
        Ok(LayerOutput {
            output,
            sent: declared,
            auxiliary,
        })
    }

    /// Keeps the skips that a layer sent, for layers of this stage and for other stages.
    fn keep(&self, layer: usize, sent: Vec<L::Flow>, values: &mut Values<L>) {
        for (&skip, value) in self.skips.sent_by(layer).iter().zip(sent) {
            if self.skips.is_taken_here(skip) {
                values.here.insert(skip, value.clone());
            }
            if self.skips.is_taken_elsewhere(skip) {
                values.elsewhere.insert(skip, value);
            }
        }
    }
}

struct LayerOutput<L: Layer> {
    output: L::Flow,
    sent: Vec<L::Flow>,
    auxiliary: Vec<L::Output>,
}

/// A stage's input or output for a micro-batch, without a graph.
#[derive(Clone)]
pub(crate) struct StageValues<L: Layer> {
    pub(crate) flow: L::Flow,
    /// Skips from other stages, or for them.
    pub(crate) skips: SkipValues<L::Flow>,
}

/// Runs `layers` without a tape on detached values.
pub(crate) fn forward<L: Layer>(
    layers: &[L],
    input: StageValues<L>,
    pass: &PassContext<'_, L>,
    watch: &Watch<'_>,
) -> Result<StageValues<L>, FailureCause> {
    let mut values = Values::new(input.skips);
    let flow = run_quietly(layers, pass.first, input.flow, &mut values, (pass, watch))?;
    watch(None);
    Ok(values.leave(flow))
}

/// Runs the layers of a stage from `first` on without a tape.
fn run_quietly<L: Layer>(
    layers: &[L],
    first: usize,
    input: L::Flow,
    values: &mut Values<L>,
    (pass, watch): (&PassContext<'_, L>, &Watch<'_>),
) -> Result<L::Flow, FailureCause> {
    let attach = |flow| match pass.rng {
        Some(_) => flows::attach(flow, false),
        None => flow,
    };
    let mut flow = attach(input);
    for (layer, module) in (first..).zip(layers) {
        watch(Some(layer - pass.first));
        let taken = pass.take(layer, &mut values.here)?;
        let taken: Vec<_> = taken.into_iter().map(attach).collect();
        // Auxiliary outputs are dropped: their loss is computed where the tape is recorded.
        let ran = pass.run(module, layer, flow, &taken)?;
        let sent = ran.sent.into_iter().map(flows::detach).collect();
        pass.keep(layer, sent, values);
        flow = ran.output;
    }
    Ok(flows::detach(flow))
}

/// Turns the last layer's output into the model's. An error names that layer.
pub(crate) fn leave<L: Layer>(
    flow: L::Flow,
    layers: usize,
    watch: &Watch<'_>,
) -> Result<L::Output, FailureCause> {
    watch(Some(layers - 1));
    let output = L::leave(flow)?;
    watch(None);
    Ok(output)
}

/// Skips while a stage runs.
struct Values<L: Layer> {
    /// For its own layers.
    here: SkipValues<L::Flow>,
    /// For other stages.
    elsewhere: SkipValues<L::Flow>,
}

impl<L: Layer> Values<L> {
    fn new(here: SkipValues<L::Flow>) -> Self {
        let elsewhere = SkipValues::new();
        Self { here, elsewhere }
    }

    /// What leaves the stage.
    fn leave(self, flow: L::Flow) -> StageValues<L> {
        let skips = self.elsewhere;
        StageValues { flow, skips }
    }

    /// What enters a segment of the stage.
    fn of_segment(
        &self,
        layers: Range<usize>,
        flow: L::Flow,
        skips: &StageSkips,
    ) -> StageValues<L> {
        let taken: Vec<_> = layers.flat_map(|layer| skips.taken_by(layer)).collect();
        let here = self.here.iter().filter(|(skip, _)| taken.contains(skip));
        StageValues {
            flow,
            skips: here.map(|(&skip, value)| (skip, value.clone())).collect(),
        }
    }
}

/// What the backward pass of a micro-batch needs from its forward pass.
pub(crate) struct Tape<L: Layer> {
    /// In the order of the layers.
    parts: Vec<Part<L>>,
    /// The input of the loss, and the loss. Few tapes have them.
    head: Option<Box<(L::Flow, Tensor<1>)>>,
}

enum Part<L: Layer> {
    Recorded(Vec<LayerTape<L>>),
    /// Layers to run again, by their index in the model, and what they get.
    Again(Range<usize>, StageValues<L>),
}

/// Consecutive layers of a stage, and how they run forward.
pub(crate) enum Run<L> {
    /// With a tape, on these copies.
    Recorded(Range<usize>, Vec<Rc<L>>),
    /// Without, to be recomputed.
    Again(Range<usize>),
}

struct LayerTape<L: Layer> {
    /// Its index in the model.
    layer: usize,
    module: Rc<L>,
    input: L::Flow,
    taken: Vec<L::Flow>,
    output: L::Flow,
    sent: Vec<L::Flow>,
    auxiliary: Option<Tensor<1>>,
}

/// A recorded forward pass.
pub(crate) struct Recorded<L: Layer> {
    pub(crate) output: StageValues<L>,
    /// The losses of auxiliary heads; detached.
    pub(crate) auxiliary: AuxiliaryLosses,
    pub(crate) tape: Tape<L>,
}

/// Losses of auxiliary heads, each with its layer's index in the model.
pub(crate) type AuxiliaryLosses = Vec<(usize, Tensor<1>)>;

/// Which gradients a backward pass computes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackwardScope {
    All,
    /// That of the input, and those that cannot be deferred.
    Input,
}

/// Runs a stage and records the tape. Recorded are copies whose leaves tapes may share; `quiet` are copies of all
/// layers of the stage, for runs that will be recomputed.
pub(crate) fn record<L: Layer>(
    (runs, quiet): (Vec<Run<L>>, &[L]),
    input: StageValues<L>,
    pass: &PassContext<'_, L>,
    loss: &LossFn<'_, L>,
    watch: &Watch<'_>,
) -> Result<Recorded<L>, FailureCause> {
    let (mut flow, mut values) = (input.flow, Values::new(input.skips));
    let (mut parts, mut auxiliary) = (Vec::with_capacity(runs.len()), Vec::new());
    for run in runs {
        match run {
            Run::Recorded(layers, modules) => {
                let ran = run_recorded(
                    modules,
                    layers.start,
                    flow,
                    &mut values,
                    (pass, loss, watch),
                )?;
                flow = ran.flow;
                auxiliary.extend(ran.auxiliary);
                parts.push(Part::Recorded(ran.tapes));
            }
            Run::Again(layers) => {
                let input = values.of_segment(layers.clone(), flow.clone(), pass.skips);
                let own = &quiet[layers.start - pass.first..layers.end - pass.first];
                flow = run_quietly(own, layers.start, flow, &mut values, (pass, watch))?;
                parts.push(Part::Again(layers, input));
            }
        }
    }
    watch(None);
    Ok(Recorded {
        output: values.leave(flow),
        auxiliary,
        tape: Tape { parts, head: None },
    })
}

/// What layers return that run with a tape.
pub(crate) struct RanRecorded<L: Layer> {
    pub(crate) flow: L::Flow,
    pub(crate) auxiliary: AuxiliaryLosses,
    tapes: Vec<LayerTape<L>>,
}

/// Runs the layers of a stage from `first` on with a tape.
fn run_recorded<L: Layer>(
    modules: Vec<Rc<L>>,
    first: usize,
    input: L::Flow,
    values: &mut Values<L>,
    (pass, loss, watch): (&PassContext<'_, L>, &LossFn<'_, L>, &Watch<'_>),
) -> Result<RanRecorded<L>, FailureCause> {
    let mut flow = input;
    let mut tapes = Vec::with_capacity(modules.len());
    let mut auxiliary = Vec::new();
    for (layer, module) in (first..).zip(modules) {
        watch(Some(layer - pass.first));
        let input = flows::attach(flow, layer > 0 && pass.needs_gradient(layer - 1));
        let taken = pass.take(layer, &mut values.here)?;
        let taken = pass.skips.taken_by(layer).iter().zip(taken);
        let is_trained = |skip| pass.needs_gradient(pass.skips.sender(skip));
        let taken = taken.map(|(&skip, value)| flows::attach(value, is_trained(skip)));
        let taken: Vec<_> = taken.collect();
        let ran = pass.run(&module, layer, input.clone(), &taken)?;
        let sent = ran.sent.iter().cloned().map(flows::detach).collect();
        pass.keep(layer, sent, values);
        let aside = (ran.auxiliary.into_iter()).fold(None, |sum, head| {
            values::add(sum, Some(loss(Head::Auxiliary, head).loss))
        });
        auxiliary.extend(aside.clone().map(|loss| (layer, loss.inner())));
        flow = flows::detach(ran.output.clone());
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
    Ok(RanRecorded {
        flow,
        auxiliary,
        tapes,
    })
}

impl<L: Layer> LayerTape<L> {
    /// The scalar that the layer's backward pass starts from: the gradients of its output and of the
    /// skips that it sent, and its auxiliary loss.
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

    /// Runs the layer's backward pass. Takes the gradients of skips that it sent, and adds those of skips
    /// that it took.
    fn backward(
        mut self,
        gradients: FlowGradients,
        of_skips: &mut SkipGradients,
        (scope, pass): (BackwardScope, &PassContext<'_, L>),
    ) -> Result<LayerGradients<L>, FailureCause> {
        let was_finite = pass.inspect && are_finite(&self.output, &gradients);
        let seed = self.seed(gradients, of_skips, pass.skips);
        let (layer, module) = (self.layer, self.module);
        let like = pass.inspect.then(|| self.input.clone());
        let run = || {
            backward_from(seed, (self.input, self.taken), |grads| {
                GradientsParams::from_module(grads, &*module)
            })
        };
        let ((parameters, input, of_taken), deferred) = match scope {
            BackwardScope::All => (run(), None),
            BackwardScope::Input => {
                let (mut found, deferred) = deferred::input_half(&*module, run);
                let deferred = DeferredGradients::new(&*module, deferred, found.0.as_mut());
                (found, deferred)
            }
        };
        let finite = || {
            let of_input = like.is_none_or(|flow| are_finite(&flow, &input));
            let sum = (parameters.as_ref()).and_then(|found| gradient_sum(&*module, found));
            of_input && sum.is_none_or(all_finite)
        };
        if was_finite && !finite() {
            let cause = "its gradients are not finite, but those of its output were";
            return Err(FailureCause::NotFinite(cause));
        }
        if let Some((sums, micro_batch)) = pass.sums {
            let kind = match scope {
                BackwardScope::All => SpanKind::Backward,
                BackwardScope::Input => SpanKind::InputGradient,
            };
            let inputs: Vec<_> = [&input].into_iter().chain(&of_taken).collect();
            let of_layer = (&*module, parameters.as_ref());
            sums.backward((micro_batch, layer), kind, of_layer, &inputs);
        }
        let taken = pass.skips.taken_by(layer).iter();
        let takings = taken.map(|&skip| Taking { skip, taker: layer });
        of_skips.extend(takings.zip(of_taken));
        Ok(LayerGradients {
            module,
            parameters,
            input,
            deferred,
        })
    }
}

struct LayerGradients<L> {
    module: Rc<L>,
    parameters: Option<GradientsParams>,
    input: FlowGradients,
    deferred: Option<DeferredGradients>,
}

impl<L: Layer> Tape<L> {
    /// Whether something is to be recomputed.
    pub(crate) fn keeps_inputs(&self) -> bool {
        self.parts
            .iter()
            .any(|part| matches!(part, Part::Again(..)))
    }

    /// Whether something is recorded.
    pub(crate) fn keeps_activations(&self) -> bool {
        (self.parts.iter()).any(|part| matches!(part, Part::Recorded(_)))
    }

    /// Whether its last layers are recorded, so that the loss can be.
    pub(crate) fn ends_recorded(&self) -> bool {
        matches!(self.parts.last(), Some(Part::Recorded(_)))
    }

    /// Runs the last segment again, on `again`: copies of all layers of the stage. Returns the output of the
    /// segment, if there is one.
    pub(crate) fn recompute_last(
        &mut self,
        again: &[Rc<L>],
        pass: &PassContext<'_, L>,
        loss: &LossFn<'_, L>,
        watch: &Watch<'_>,
    ) -> Result<Option<(L::Flow, AuxiliaryLosses)>, FailureCause> {
        let is_again = |part: &&mut Part<L>| matches!(part, Part::Again(..));
        let Some(part) = self.parts.iter_mut().rev().find(is_again) else {
            return Ok(None);
        };
        let Part::Again(layers, input) = std::mem::replace(part, Part::Recorded(Vec::new())) else {
            return Ok(None);
        };
        let ran = run_again(layers, input, again, (pass, loss, watch))?;
        *part = Part::Recorded(ran.tapes);
        watch(None);
        Ok(Some((ran.flow, ran.auxiliary)))
    }

    /// Adds the loss of the output of the last of so many layers. Returns it, detached, with the scores.
    pub(crate) fn record_loss(
        &mut self,
        (output, layers): (L::Flow, usize),
        loss: &LossFn<'_, L>,
        (pass, watch): (&PassContext<'_, L>, &Watch<'_>),
    ) -> Result<LossAndScores, FailureCause> {
        let was_finite = pass.inspect && is_finite(&output);
        let input = flows::attach(output, pass.needs_gradient(pass.first + layers - 1));
        let output = leave::<L>(input.clone(), layers, watch)?;
        let LossAndScores { loss, scores } = loss(Head::Main, output);
        let value = loss.clone().inner();
        if was_finite && !is_finite(&value) {
            let cause = "the loss is not finite, but the model's output was";
            return Err(FailureCause::NotFinite(cause));
        }
        self.head = Some(Box::new((input, pass.scaled(loss))));
        Ok(LossAndScores {
            loss: value,
            scores,
        })
    }

    /// Runs backward. `gradients` are those of the output, unless the tape ends in a loss. `of_skips` are
    /// those that other stages computed for skips of this one. Calls `accumulate` with each layer's
    /// parameter gradients, the last layer first. What was not recorded runs again on `again`, copies of all
    /// layers of the stage.
    pub(crate) fn backward(
        self,
        gradients: FlowGradients,
        mut of_skips: SkipGradients,
        (scope, pass): (BackwardScope, &PassContext<'_, L>),
        (again, loss): (&[Rc<L>], &LossFn<'_, L>),
        mut accumulate: impl FnMut(usize, &L, GradientsParams),
        watch: &Watch<'_>,
    ) -> Result<BackwardResult, FailureCause> {
        let mut gradients = match self.head.map(|head| *head) {
            Some((input, loss)) => backward_from(Some(loss), (input, Vec::new()), |_| ()).1,
            None => gradients,
        };
        let (mut all_deferred, mut auxiliary) = (Vec::new(), Vec::new());
        for part in self.parts.into_iter().rev() {
            let tapes = match part {
                Part::Recorded(tapes) => tapes,
                Part::Again(layers, input) => {
                    let ran = run_again(layers, input, again, (pass, loss, watch))?;
                    auxiliary.extend(ran.auxiliary);
                    ran.tapes
                }
            };
            for tape in tapes.into_iter().rev() {
                let index = tape.layer - pass.first;
                watch(Some(index));
                let result = tape.backward(gradients, &mut of_skips, (scope, pass))?;
                if let Some(parameters) = result.parameters {
                    accumulate(index, &result.module, parameters);
                }
                all_deferred.extend(result.deferred.map(|deferred| (index, deferred)));
                gradients = result.input;
            }
        }
        watch(None);
        Ok(BackwardResult {
            input: gradients,
            skips: of_skips,
            deferred: all_deferred,
            auxiliary,
        })
    }
}

/// Runs a segment again, with a tape.
fn run_again<L: Layer>(
    layers: Range<usize>,
    input: StageValues<L>,
    again: &[Rc<L>],
    (pass, loss, watch): (&PassContext<'_, L>, &LossFn<'_, L>, &Watch<'_>),
) -> Result<RanRecorded<L>, FailureCause> {
    let modules = again[layers.start - pass.first..layers.end - pass.first].to_vec();
    let mut values = Values::new(input.skips);
    run_recorded(
        modules,
        layers.start,
        input.flow,
        &mut values,
        (pass, loss, watch),
    )
}

pub(crate) struct BackwardResult {
    pub(crate) input: FlowGradients,
    pub(crate) skips: SkipGradients,
    /// Deferred gradients by layer, the last layer first.
    pub(crate) deferred: Vec<(usize, DeferredGradients)>,
    /// Of what ran again.
    pub(crate) auxiliary: AuxiliaryLosses,
}

/// Runs Burn's backward from a scalar. Returns what `collect` takes of the gradients, those of a flow,
/// and those of each flow in `more`. They are empty if there is no scalar or it needs no gradient.
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
    let of_more = more.into_iter().map(take).collect();
    (Some(collected), of_leaf, of_more)
}
