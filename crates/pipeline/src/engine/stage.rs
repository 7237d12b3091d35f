//! One stage during one step: what it holds for each micro-batch, and its passes.

use std::{collections::HashMap, ops::Range, sync::Arc};

use burn::{
    optim::{GradientsAccumulator, GradientsParams},
    tensor::{Device, Tensor},
};
use stovepipe_schedule::{Action, Pass, SpanKind};

use crate::{
    engine::{
        copies::{Copies, Kind, Statistics},
        late::Late,
        links::{Alarm, CutOff, Links},
        record::Recorder,
        tape::{self, Extent, Head, Origin, Recorded, Refused, Tape, Watch},
        values,
    },
    layer::Layer,
};

/// The loss of an output for a micro-batch, already divided by the weight of the mini-batch.
pub(crate) type LossOf<L> = Box<dyn Fn(usize, Head, <L as Layer>::Output) -> Tensor<1> + Send>;

/// What a stage is given for a step.
pub(crate) struct StageTask<L: Layer> {
    pub(crate) index: usize,
    pub(crate) device: Device,
    pub(crate) layers: Vec<L>,
    pub(crate) names: Arc<[String]>,
    /// Where its layers stand in the model.
    pub(crate) range: Range<usize>,
    pub(crate) links: Links<L>,
    /// The model's input, for the first stage: one a micro-batch.
    pub(crate) feed: Vec<L::Input>,
    /// The side input: one a micro-batch.
    pub(crate) side: Vec<L::Side>,
    /// How to train; `None` for inference.
    pub(crate) training: Option<Training<L>>,
    /// Whether the last stage keeps its outputs.
    pub(crate) keep_outputs: bool,
}

/// What a stage needs to train.
pub(crate) struct Training<L: Layer> {
    pub(crate) loss: LossOf<L>,
    /// Micro-batches whose forward pass is recorded at once instead of recomputed.
    pub(crate) recorded: Vec<bool>,
}

/// What a stage leaves behind.
pub(crate) struct StageResult<L: Layer> {
    pub(crate) statistics: Vec<Statistics>,
    pub(crate) gradients: Vec<GradientsParams>,
    pub(crate) outputs: HashMap<usize, L::Output>,
    /// Main loss, and the auxiliary losses of this stage, by micro-batch.
    pub(crate) losses: HashMap<usize, f64>,
    pub(crate) auxiliary: HashMap<usize, f64>,
    pub(crate) held: Held,
}

/// The most that a stage held at once, in micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Inputs kept for a recomputation to come.
    pub inputs: usize,
    /// Tapes: all the activations of a micro-batch.
    pub activations: usize,
    /// Whatever the gradients of weights need, where they come later than that of the input.
    pub weight_contexts: usize,
}

/// Why a stage ended early.
pub(crate) type Ended = stovepipe_crew::Ended<String>;

pub(crate) struct Stage<L: Layer> {
    task: StageTask<L>,
    recorder: Recorder,
    copies: Copies<L>,
    feed: Vec<Option<L::Input>>,
    inputs: HashMap<usize, L::Flow>,
    tapes: HashMap<usize, (Kind, Tape<L>)>,
    /// What the second half of a backward pass is to find, by layer.
    late: HashMap<usize, Vec<(usize, Late)>>,
    accumulators: Vec<GradientsAccumulator<L>>,
    outputs: HashMap<usize, L::Output>,
    losses: HashMap<usize, Tensor<1>>,
    auxiliary: HashMap<usize, Vec<Tensor<1>>>,
    held: Held,
}

impl<L: Layer> Stage<L> {
    pub(crate) fn new(mut task: StageTask<L>, recorder: Recorder) -> Self {
        let layers = std::mem::take(&mut task.layers);
        Self {
            accumulators: layers.iter().map(|_| GradientsAccumulator::new()).collect(),
            copies: match task.training {
                Some(_) => Copies::to_train(&layers),
                None => Copies::to_infer(&layers),
            },
            feed: std::mem::take(&mut task.feed)
                .into_iter()
                .map(Some)
                .collect(),
            task,
            recorder,
            inputs: HashMap::new(),
            tapes: HashMap::new(),
            late: HashMap::new(),
            outputs: HashMap::new(),
            losses: HashMap::new(),
            auxiliary: HashMap::new(),
            held: Held::default(),
        }
    }

    /// Waits for what the action needs, runs it, and sends what it makes.
    pub(crate) fn run(&mut self, action: Action, alarm: &Alarm) -> Result<(), Ended> {
        let refused = |Refused(cause)| Ended::Failed(cause);
        match action.pass {
            Pass::Forward => {
                // What needs no input is done before the wait for it.
                let modules = self.modules_to_record(action.micro_batch);
                let input = self.receive_input(action, alarm)?;
                self.recorder.running(action);
                self.forward(action, input, modules).map_err(refused)
            }
            Pass::Backward | Pass::InputGradient => {
                self.recompute(action).map_err(refused)?;
                let gradients = self.receive_gradients(action, alarm)?;
                self.recorder.running(action);
                self.backward(action, gradients).map_err(refused)
            }
            Pass::WeightGradient => {
                self.recorder.running(action);
                self.weight_gradients(action).map_err(refused)
            }
            // No plan has one: see `engine::owners`.
            Pass::Update => Err(refused(Refused("a step changes no weights".to_owned()))),
        }
    }

    pub(crate) fn finish(mut self) -> StageResult<L> {
        let scalar = |tensor: Tensor<1>| f64::from(tensor.into_scalar::<f32>());
        let accumulators = self.accumulators.iter_mut();
        StageResult {
            statistics: self.copies.statistics(),
            gradients: accumulators.map(GradientsAccumulator::grads).collect(),
            outputs: self.outputs,
            losses: (self.losses.into_iter())
                .map(|(micro_batch, loss)| (micro_batch, scalar(loss)))
                .collect(),
            auxiliary: (self.auxiliary.into_iter())
                .map(|(micro_batch, losses)| (micro_batch, losses.into_iter().map(scalar).sum()))
                .collect(),
            held: self.held,
        }
    }

    fn is_first(&self) -> bool {
        self.task.links.values_in.is_none()
    }

    fn is_last(&self) -> bool {
        self.task.links.values_out.is_none()
    }

    fn receive_input(&mut self, action: Action, alarm: &Alarm) -> Result<L::Flow, Ended> {
        let micro_batch = action.micro_batch;
        let flow = match &mut self.task.links.values_in {
            None => {
                let fed = self.feed.get_mut(micro_batch).and_then(Option::take);
                L::enter(fed.ok_or(Ended::CutOff)?)
            }
            Some(inbox) => {
                self.recorder.waiting(action, self.task.index - 1);
                inbox
                    .receive(micro_batch, alarm)
                    .map_err(|CutOff| Ended::CutOff)?
            }
        };
        Ok(values::to_device(flow, &self.task.device))
    }

    fn receive_gradients(
        &mut self,
        action: Action,
        alarm: &Alarm,
    ) -> Result<values::FlowGradients, Ended> {
        match &mut self.task.links.gradients_in {
            None => Ok(values::FlowGradients::new()),
            Some(inbox) => {
                self.recorder.waiting(action, self.task.index + 1);
                inbox
                    .receive(action.micro_batch, alarm)
                    .map_err(|CutOff| Ended::CutOff)
            }
        }
    }

    /// Copies to record a forward pass on, if it is to be recorded.
    fn modules_to_record(&mut self, micro_batch: usize) -> Option<Vec<L>> {
        let training = self.task.training.as_ref()?;
        training.recorded[micro_batch].then(|| self.copies.take(Kind::Counted))
    }

    fn forward(
        &mut self,
        action: Action,
        input: L::Flow,
        modules: Option<Vec<L>>,
    ) -> Result<(), Refused> {
        let micro_batch = action.micro_batch;
        let output = match modules {
            Some(modules) => self.record(action, SpanKind::Forward, modules, input)?,
            None => self.forward_quietly(action, input)?,
        };
        match &self.task.links.values_out {
            // A receiver that is gone has failed, and says so itself.
            Some(outbox) => drop(outbox.send((micro_batch, output))),
            None if self.task.keep_outputs => {
                let output = tape::leave::<L>(output, self.task.names.len(), &self.watch())?;
                self.outputs.insert(micro_batch, output);
            }
            None => {}
        }
        Ok(())
    }

    /// Runs forward without a tape, and keeps the input if a backward pass will want it.
    fn forward_quietly(&mut self, action: Action, input: L::Flow) -> Result<L::Flow, Refused> {
        let training = self.task.training.is_some();
        if training {
            self.inputs.insert(action.micro_batch, input.clone());
            self.held.inputs = self.held.inputs.max(self.inputs.len());
        }
        let side = self.side(action.micro_batch);
        let watch = self.watch();
        let layers = self.copies.quiet();
        self.recorder.time(SpanKind::Forward, action, || {
            tape::forward(layers, input, &side, training, &watch)
        })
    }

    /// Runs forward with a tape, and the loss after it on the last stage.
    fn record(
        &mut self,
        action: Action,
        kind: SpanKind,
        modules: Vec<L>,
        input: L::Flow,
    ) -> Result<L::Flow, Refused> {
        let micro_batch = action.micro_batch;
        let Some(training) = &self.task.training else {
            return Err(Refused("asked to train in inference".to_owned()));
        };
        let loss = |head, output| (training.loss)(micro_batch, head, output);
        let origin = match self.is_first() {
            true => Origin::Data,
            false => Origin::Stage,
        };
        let side = self.side(micro_batch);
        let watch = self.watch();
        let (recorded, main) = self.recorder.time(kind, action, || {
            let mut recorded = tape::record(modules, input, origin, &side, &loss, &watch)?;
            let main = match self.is_last() {
                true => Some(
                    recorded
                        .tape
                        .record_loss(recorded.output.clone(), &loss, &watch)?,
                ),
                false => None,
            };
            Ok::<_, Refused>((recorded, main))
        })?;
        let Recorded {
            output,
            auxiliary,
            tape,
        } = recorded;
        self.losses.extend(main.map(|loss| (micro_batch, loss)));
        self.auxiliary.insert(micro_batch, auxiliary);
        let counted = match kind {
            SpanKind::Recompute => Kind::Uncounted,
            _ => Kind::Counted,
        };
        self.tapes.insert(micro_batch, (counted, tape));
        self.held.activations = self.held.activations.max(self.tapes.len());
        Ok(output)
    }

    /// Runs forward again what was not recorded. It needs no gradient, and so need not wait for one.
    fn recompute(&mut self, action: Action) -> Result<(), Refused> {
        let Some(input) = self.inputs.remove(&action.micro_batch) else {
            return Ok(());
        };
        self.recorder.running(action);
        // Statistics counted this micro-batch in its forward pass already.
        let modules = self.copies.take(Kind::Uncounted);
        self.record(action, SpanKind::Recompute, modules, input)?;
        Ok(())
    }

    fn backward(
        &mut self,
        action: Action,
        gradients: values::FlowGradients,
    ) -> Result<(), Refused> {
        let micro_batch = action.micro_batch;
        let Some((kind, tape)) = self.tapes.remove(&micro_batch) else {
            return Err(Refused("backward came before forward".to_owned()));
        };
        let extent = match action.pass {
            Pass::InputGradient => Extent::Input,
            _ => Extent::Whole,
        };
        let watch = self.watch();
        let accumulators = &mut self.accumulators;
        let played = self.recorder.time(action.pass.into(), action, || {
            // Layer by layer, so that no more than a layer's gradients are held twice.
            let accumulate = |layer: usize, module: &L, gradients| {
                accumulators[layer].accumulate(module, gradients);
            };
            Ok::<_, Refused>(tape.backward(gradients, extent, accumulate, &watch))
        })?;
        if let Some(outbox) = &self.task.links.gradients_out {
            let _ = outbox.send((micro_batch, played.input));
        }
        self.copies.give_back(kind, played.modules);
        if !played.late.is_empty() {
            self.late.insert(micro_batch, played.late);
            self.held.weight_contexts = self.held.weight_contexts.max(self.late.len());
        }
        Ok(())
    }

    /// Finds the gradients that the first half of a backward pass left, if it left any.
    fn weight_gradients(&mut self, action: Action) -> Result<(), Refused> {
        let late = self.late.remove(&action.micro_batch).unwrap_or_default();
        let watch = self.watch();
        let (layers, accumulators) = (self.copies.live(), &mut self.accumulators);
        self.recorder.time(action.pass.into(), action, || {
            for (layer, late) in late {
                watch.enter(layer);
                let gradients = late.run(&layers[layer]);
                accumulators[layer].accumulate(&layers[layer], gradients);
            }
            watch.leave();
            Ok(())
        })
    }

    fn side(&self, micro_batch: usize) -> L::Side {
        let side = values::to_device(self.task.side[micro_batch].clone(), &self.task.device);
        match self.task.training {
            Some(_) => values::attach(side, false),
            None => side,
        }
    }

    fn watch(&self) -> LayerWatch {
        LayerWatch {
            recorder: self.recorder.clone(),
            names: self.task.names.clone(),
            first: self.task.range.start,
        }
    }
}

struct LayerWatch {
    recorder: Recorder,
    names: Arc<[String]>,
    first: usize,
}

impl Watch for LayerWatch {
    fn enter(&self, layer: usize) {
        self.recorder
            .entering(self.first + layer, &self.names[layer]);
    }

    fn leave(&self) {
        self.recorder.leaving();
    }
}
