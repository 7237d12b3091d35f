//! One stage during one step: what it holds for each micro-batch, and its passes.

use std::{
    cell::RefCell,
    collections::HashMap,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use burn::{
    optim::{GradientsAccumulator, GradientsParams},
    tensor::{Device, FloatDType, Tensor},
};
use stovepipe_schedule::{Action, Pass, SpanKind};

use crate::{
    engine::{
        copies::{self, Copies, Kind},
        deferred::DeferredGradients,
        finite::{gradient_sum, is_finite},
        links::{CancelToken, Cancelled, Inbox, Links},
        record::Recorder,
        skips::{SkipGradients, SkipLinks, SkipValues, StageSkips},
        statistics::{self, Cells, Momenta, Statistics},
        tape::{
            self, Extent, Head, PassContext, Recorded, Refused, StageInput, StageOutput, Tape,
            Watch,
        },
        values,
    },
    model::{keyed_rng::StepKey, layer::Layer},
};

/// What an objective says of an output for a micro-batch.
pub(crate) type LossFn<L> = Box<dyn Fn(usize, Head, <L as Layer>::Output) -> LossAndScores + Send>;

/// What an objective says of an output.
pub(crate) struct LossAndScores {
    /// Already divided by the weight of the mini-batch.
    pub(crate) loss: Tensor<1>,
    pub(crate) scores: Option<Tensor<1>>,
}

/// What becomes of the outputs of the last stage. Earlier ones judge their auxiliary heads.
pub(crate) struct AtEnd<L: Layer> {
    pub(crate) judge: Option<LossFn<L>>,
    pub(crate) keep_outputs: bool,
}

/// What a stage is given for a step.
pub(crate) struct StageTask<L: Layer> {
    pub(crate) index: usize,
    pub(crate) device: Device,
    pub(crate) layers: Vec<L>,
    pub(crate) names: Arc<[String]>,
    /// Where its layers stand in the model.
    pub(crate) range: Range<usize>,
    pub(crate) links: Links<L>,
    pub(crate) skips: StageSkips,
    pub(crate) skip_links: SkipLinks<L>,
    /// The model's input, for the first stage: one a micro-batch.
    pub(crate) feed: Vec<L::Input>,
    /// The side input: one a micro-batch.
    pub(crate) side: Vec<L::Side>,
    /// The samples of each micro-batch, by their place in the mini-batch.
    pub(crate) samples: Arc<[Range<usize>]>,
    /// What layers and inputs are cast to, if they are.
    pub(crate) dtype: Option<FloatDType>,
    /// How to train; `None` for inference and evaluation.
    pub(crate) training: Option<Training>,
    pub(crate) at_end: AtEnd<L>,
}

/// What a stage needs to train.
pub(crate) struct Training {
    /// Micro-batches whose forward pass is recorded at once instead of recomputed.
    pub(crate) recorded: Vec<bool>,
    /// The key of the step's random numbers.
    pub(crate) step: StepKey,
    /// The first layer of the model that has something to train.
    pub(crate) trainable_from: usize,
    /// The cells of each layer's running statistics.
    pub(crate) cells: Arc<[Cells]>,
    /// What is known of momenta, in all steps.
    pub(crate) momenta: Arc<Mutex<Momenta>>,
    /// Whether each value is looked at, to find the first that is no number.
    pub(crate) inspect: bool,
    /// What losses are multiplied by before the backward pass, and gradients divided by after it.
    pub(crate) loss_scale: Option<f64>,
}

/// What a stage leaves behind.
pub(crate) struct StageResult<L: Layer> {
    pub(crate) statistics: Vec<Statistics>,
    pub(crate) gradients: Vec<GradientsParams>,
    pub(crate) outputs: HashMap<usize, L::Output>,
    /// Main loss, and the auxiliary losses of this stage, by micro-batch.
    pub(crate) losses: HashMap<usize, f64>,
    pub(crate) auxiliary: HashMap<usize, f64>,
    pub(crate) scores: HashMap<usize, Vec<f64>>,
    pub(crate) held: Held,
    /// The last layer, by its place in the stage, that has a gradient that is no number.
    pub(crate) not_finite: Option<usize>,
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
pub(crate) type Ended = stovepipe_runtime::JobError<String>;

pub(crate) struct Stage<L: Layer> {
    task: StageTask<L>,
    recorder: Recorder,
    copies: Copies<L>,
    feed: Vec<Option<L::Input>>,
    inputs: HashMap<usize, StageInput<L>>,
    tapes: HashMap<usize, (Kind, Tape<L>)>,
    /// What the second half of a backward pass is to find, by layer.
    late: HashMap<usize, Vec<(usize, DeferredGradients)>>,
    accumulators: Vec<GradientsAccumulator<L>>,
    statistics: Vec<Statistics>,
    outputs: HashMap<usize, L::Output>,
    losses: HashMap<usize, Tensor<1>>,
    auxiliary: HashMap<usize, Vec<Tensor<1>>>,
    scores: HashMap<usize, Tensor<1>>,
    held: Held,
}

impl<L: Layer> Stage<L> {
    pub(crate) fn new(mut task: StageTask<L>, recorder: Recorder) -> Self {
        let copies = match task.training {
            Some(_) => Copies::to_train(&task.layers, task.dtype),
            None => Copies::to_infer(&task.layers, task.dtype),
        };
        let cells = task.training.iter().flat_map(|training| &*training.cells);
        let layers = task.layers.iter();
        Self {
            accumulators: layers
                .clone()
                .map(|_| GradientsAccumulator::new())
                .collect(),
            statistics: (cells.zip(layers.zip(copies.live())))
                .map(|(cells, (layer, live))| match task.dtype {
                    None => Statistics::begin(cells.clone(), live),
                    Some(_) => Statistics::begin_narrow(cells.clone(), layer, live),
                })
                .collect(),
            copies,
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
            scores: HashMap::new(),
            held: Held::default(),
        }
    }

    /// Waits for what the action needs, runs it, and sends what it makes.
    pub(crate) fn run(&mut self, action: Action, cancel: &CancelToken) -> Result<(), Ended> {
        let refused = |Refused(cause)| Ended::Failed(cause);
        match action.pass {
            Pass::Forward => {
                // What needs no input is done before the wait for it.
                let modules = self.modules_to_record(action.micro_batch);
                let given = self.receive_input(action, cancel)?;
                self.recorder.running(action);
                self.forward(action, given, modules).map_err(refused)
            }
            // Nothing to train here or before: no gradient is wanted.
            _ if self.is_frozen() => {
                self.recorder.running(action);
                self.recorder.time(action.pass.into(), action, || Ok(()))
            }
            Pass::Backward | Pass::InputGradient => {
                self.recompute(action).map_err(refused)?;
                let gradients = self.receive_gradients(action, cancel)?;
                let of_skips = self.receive_skip_gradients(action, cancel)?;
                self.recorder.running(action);
                self.backward(action, gradients, of_skips).map_err(refused)
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
        let gradients: Vec<_> = (self.accumulators.iter_mut())
            .map(GradientsAccumulator::grads)
            .collect();
        let sums = self.copies.live().iter().zip(&gradients);
        let sums = sums.map(|(layer, gradients)| gradient_sum(layer, gradients).map(scalar));
        let sums: Vec<_> = sums.collect();
        // Others read what is left: see `carrier`. A device that is lost was found so by the sums.
        let _ = self.task.device.flush();
        StageResult {
            statistics: self.statistics,
            not_finite: sums
                .iter()
                .rposition(|sum| sum.is_some_and(|sum| !sum.is_finite())),
            gradients,
            outputs: self.outputs,
            losses: (self.losses.into_iter())
                .map(|(micro_batch, loss)| (micro_batch, scalar(loss)))
                .collect(),
            auxiliary: (self.auxiliary.into_iter())
                .map(|(micro_batch, losses)| (micro_batch, losses.into_iter().map(scalar).sum()))
                .collect(),
            scores: (self.scores.into_iter())
                .map(|(micro_batch, scores)| (micro_batch, scores.into_data().iter().collect()))
                .collect(),
            held: self.held,
        }
    }

    fn is_last(&self) -> bool {
        self.task.links.values_out.is_none()
    }

    /// Whether neither this stage nor one before it has anything to train. The last one is run as ever,
    /// for the loss.
    fn is_frozen(&self) -> bool {
        let training = self.task.training.as_ref();
        !self.is_last() && training.is_some_and(|t| t.trainable_from >= self.task.range.end)
    }

    /// Whether the stage before wants the gradient of what it sent.
    fn owes_gradients(&self) -> bool {
        let training = self.task.training.as_ref();
        training.is_some_and(|t| t.trainable_from < self.task.range.start)
    }

    fn receive_input(
        &mut self,
        action: Action,
        cancel: &CancelToken,
    ) -> Result<StageInput<L>, Ended> {
        let micro_batch = action.micro_batch;
        let flow = match &mut self.task.links.values_in {
            None => {
                let fed = self.feed.get_mut(micro_batch).and_then(Option::take);
                let fed = values::cast(fed.ok_or(Ended::Cancelled)?, self.task.dtype);
                values::to_device(L::enter(fed), &self.task.device)
            }
            Some(inbox) => {
                self.recorder.waiting(action, self.task.index - 1);
                receive(inbox, micro_batch, cancel)?
            }
        };
        let mut skips = SkipValues::new();
        for (from, inbox) in &mut self.task.skip_links.values_in {
            self.recorder.waiting(action, *from);
            skips.extend(receive(inbox, micro_batch, cancel)?);
        }
        Ok(StageInput { flow, skips })
    }

    fn receive_gradients(
        &mut self,
        action: Action,
        cancel: &CancelToken,
    ) -> Result<values::FlowGradients, Ended> {
        match &mut self.task.links.gradients_in {
            None => Ok(values::FlowGradients::default()),
            Some(inbox) => {
                self.recorder.waiting(action, self.task.index + 1);
                receive(inbox, action.micro_batch, cancel)
            }
        }
    }

    fn receive_skip_gradients(
        &mut self,
        action: Action,
        cancel: &CancelToken,
    ) -> Result<SkipGradients, Ended> {
        let mut gradients = SkipGradients::new();
        for (from, inbox) in &mut self.task.skip_links.gradients_in {
            self.recorder.waiting(action, *from);
            gradients.extend(receive(inbox, action.micro_batch, cancel)?);
        }
        Ok(gradients)
    }

    /// Copies to record a forward pass on, if it is to be recorded.
    fn modules_to_record(&mut self, micro_batch: usize) -> Option<Vec<L>> {
        let training = self.task.training.as_ref()?;
        // What is frozen leaves no tape behind, and is recorded for the sake of auxiliary losses.
        let recorded = training.recorded[micro_batch] || self.is_frozen();
        recorded.then(|| self.copies.take(Kind::Counted))
    }

    fn forward(
        &mut self,
        action: Action,
        given: StageInput<L>,
        modules: Option<Vec<L>>,
    ) -> Result<(), Refused> {
        let micro_batch = action.micro_batch;
        self.inspect_data(&given)?;
        self.find_momenta(action, &given)?;
        let made = match modules {
            Some(modules) => self.record(action, SpanKind::Forward, modules, given)?,
            None => self.forward_quietly(action, given)?,
        };
        (self.task.skip_links).send_values(&self.task.skips, micro_batch, &made.skips);
        match &self.task.links.values_out {
            Some(outbox) => outbox.send(micro_batch, made.flow),
            None => self.conclude(micro_batch, made.flow)?,
        }
        for (statistics, live) in self.statistics.iter_mut().zip(self.copies.live()) {
            statistics.count(micro_batch, live);
        }
        if self.is_frozen()
            && let Some((kind, tape)) = self.tapes.remove(&micro_batch)
        {
            self.copies.give_back(kind, tape.into_modules());
        }
        Ok(())
    }

    /// What becomes of an output of the model, beside the loss that is recorded where the step trains.
    fn conclude(&mut self, micro_batch: usize, flow: L::Flow) -> Result<(), Refused> {
        let AtEnd {
            judge,
            keep_outputs,
        } = &self.task.at_end;
        let judge = judge.as_ref().filter(|_| self.task.training.is_none());
        if !keep_outputs && judge.is_none() {
            return Ok(());
        }
        let output = tape::leave::<L>(flow, self.task.names.len(), &self.watch())?;
        if let Some(judge) = judge {
            let LossAndScores { loss, scores } = judge(micro_batch, Head::Main, output.clone());
            self.losses.insert(micro_batch, loss);
            self.scores
                .extend(scores.map(|scores| (micro_batch, scores)));
        }
        if *keep_outputs {
            self.outputs.insert(micro_batch, values::widened(output));
        }
        Ok(())
    }

    /// Looks at the model's input, if the step looks at everything.
    fn inspect_data(&self, given: &StageInput<L>) -> Result<(), Refused> {
        let inspect = self
            .task
            .training
            .as_ref()
            .is_some_and(|training| training.inspect);
        match inspect && self.task.index == 0 && !is_finite(&given.flow) {
            true => Err(Refused("the input of the model is not finite".to_owned())),
            false => Ok(()),
        }
    }

    /// Runs forward without a tape, and keeps the input if a backward pass will want it.
    fn forward_quietly(
        &mut self,
        action: Action,
        given: StageInput<L>,
    ) -> Result<StageOutput<L>, Refused> {
        if self.task.training.is_some() {
            self.inputs.insert(action.micro_batch, given.clone());
            self.held.inputs = self.held.inputs.max(self.inputs.len());
        }
        let side = self.side(action.micro_batch);
        let watch = self.watch();
        let layers = self.copies.quiet();
        let pass = pass(&self.task, action.micro_batch, &side);
        let device = self.task.training.as_ref().map(|_| &self.task.device);
        self.recorder.time(SpanKind::Forward, action, || {
            let made = tape::forward(layers, given, &pass, &watch)?;
            // Else what Burn notes of these passes piles up until the first backward pass: 0.4 MB each for nine
            // layers of AmoebaNet-D.
            device.into_iter().for_each(values::sweep);
            Ok(made)
        })
    }

    fn knows_momenta(&self, training: &Training) -> bool {
        let known = training
            .momenta
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut layers = training.cells.iter().zip(self.copies.live());
        layers.all(|(cells, live)| cells.is_known(live, &known))
    }

    /// Finds the momenta of the stage's batch norms, once in the life of a pipeline, where statistics of
    /// several micro-batches will be put together.
    fn find_momenta(&mut self, action: Action, given: &StageInput<L>) -> Result<(), Refused> {
        let Some(training) = &self.task.training else {
            return Ok(());
        };
        let lock = || {
            training
                .momenta
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        // Elsewhere, statistics are what the one forward pass leaves.
        let wanted = self.task.samples.len() > 1 || self.task.dtype.is_some();
        if !wanted || self.knows_momenta(training) {
            return Ok(());
        }
        // On the model's own numbers whatever the step computes in: to find momenta takes all their bits.
        let dtype = self.task.dtype.map(|_| FloatDType::F32);
        let side = values::cast(self.side(action.micro_batch), dtype);
        let skips = given.skips.clone().into_iter();
        let given = StageInput {
            flow: values::cast(given.flow.clone(), dtype),
            skips: skips
                .map(|(skip, value)| (skip, values::cast(value, dtype)))
                .collect(),
        };
        let (pass, watch) = (pass(&self.task, action.micro_batch, &side), self.watch());
        let layers: Vec<_> = (training.cells.iter().cloned())
            .zip(self.task.layers.iter().map(copies::live))
            .collect();
        let copy = |layer: &L| copies::quiet(&copies::live(layer));
        let found = statistics::momenta(&layers, copy, |copies| {
            tape::forward(&copies, given.clone(), &pass, &watch).map(|_| ())
        })?;
        lock().extend(found);
        values::sweep(&self.task.device);
        Ok(())
    }

    /// Runs forward with a tape, and the loss after it on the last stage.
    fn record(
        &mut self,
        action: Action,
        kind: SpanKind,
        modules: Vec<L>,
        given: StageInput<L>,
    ) -> Result<StageOutput<L>, Refused> {
        let micro_batch = action.micro_batch;
        let Some(judge) = &self.task.at_end.judge else {
            return Err(Refused("asked to train in inference".to_owned()));
        };
        let scores = RefCell::new(None);
        let loss = |head, output| {
            let judged = judge(micro_batch, head, output);
            if head == Head::Main {
                *scores.borrow_mut() = judged.scores;
            }
            judged.loss
        };
        let side = self.side(micro_batch);
        let (pass, watch) = (pass(&self.task, micro_batch, &side), self.watch());
        let (recorded, main) = self.recorder.time(kind, action, || {
            let mut recorded = tape::record(modules, given, &pass, &loss, &watch)?;
            let main = match self.is_last() {
                true => Some(recorded.tape.record_loss(
                    recorded.made.flow.clone(),
                    &loss,
                    (&pass, &watch),
                )?),
                false => None,
            };
            Ok::<_, Refused>((recorded, main))
        })?;
        let Recorded {
            made,
            auxiliary,
            tape,
        } = recorded;
        let scores = scores.into_inner();
        self.losses.extend(main.map(|loss| (micro_batch, loss)));
        self.scores
            .extend(scores.map(|scores| (micro_batch, scores)));
        self.auxiliary.insert(micro_batch, auxiliary);
        let counted = match kind {
            SpanKind::Recompute => Kind::Uncounted,
            _ => Kind::Counted,
        };
        self.tapes.insert(micro_batch, (counted, tape));
        self.held.activations = self.held.activations.max(self.tapes.len());
        Ok(made)
    }

    /// Runs forward again what was not recorded. It needs no gradient, and so need not wait for one.
    fn recompute(&mut self, action: Action) -> Result<(), Refused> {
        let Some(given) = self.inputs.remove(&action.micro_batch) else {
            return Ok(());
        };
        self.recorder.running(action);
        // Statistics counted this micro-batch in its forward pass already.
        let modules = self.copies.take(Kind::Uncounted);
        self.record(action, SpanKind::Recompute, modules, given)?;
        Ok(())
    }

    fn backward(
        &mut self,
        action: Action,
        gradients: values::FlowGradients,
        of_skips: SkipGradients,
    ) -> Result<(), Refused> {
        let micro_batch = action.micro_batch;
        let Some((kind, tape)) = self.tapes.remove(&micro_batch) else {
            return Err(Refused("backward came before forward".to_owned()));
        };
        let extent = match action.pass {
            Pass::InputGradient => Extent::Input,
            _ => Extent::Whole,
        };
        let side = self.side(micro_batch);
        let (pass, watch) = (pass(&self.task, micro_batch, &side), self.watch());
        let (dtype, loss_scale) = (self.task.dtype, pass.loss_scale);
        let accumulators = &mut self.accumulators;
        let played = self.recorder.time(action.pass.into(), action, || {
            // Layer by layer, so that no more than a layer's gradients are held twice.
            let accumulate = |layer: usize, module: &L, gradients| {
                let gradients = match dtype {
                    Some(_) => copies::of_model(module, gradients, loss_scale.unwrap_or(1.0)),
                    None => gradients,
                };
                accumulators[layer].accumulate(module, gradients);
            };
            let how = (extent, &pass);
            tape.backward(gradients, of_skips, how, accumulate, &watch)
        })?;
        if let Some(outbox) = self
            .task
            .links
            .gradients_out
            .as_ref()
            .filter(|_| self.owes_gradients())
        {
            outbox.send(micro_batch, played.input);
        }
        (self.task.skip_links).send_gradients(&self.task.skips, micro_batch, played.skips);
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
        let side = values::cast(self.task.side[micro_batch].clone(), self.task.dtype);
        let side = values::to_device(side, &self.task.device);
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

/// What the layers of a stage see for a micro-batch.
fn pass<'a, L: Layer>(
    task: &'a StageTask<L>,
    micro_batch: usize,
    side: &'a L::Side,
) -> PassContext<'a, L> {
    let training = task.training.as_ref();
    let samples = &task.samples[micro_batch];
    PassContext {
        side,
        draws: training.map(|training| (training.step.clone(), samples.clone())),
        skips: &task.skips,
        first: task.range.start,
        trainable_from: training.map_or(usize::MAX, |training| training.trainable_from),
        inspect: training.is_some_and(|training| training.inspect),
        loss_scale: training.and_then(|training| training.loss_scale),
    }
}

/// Waits for a message, which may be that there is none.
fn receive<T>(inbox: &mut Inbox<T>, micro_batch: usize, cancel: &CancelToken) -> Result<T, Ended> {
    let received = inbox.receive(micro_batch, cancel);
    (received.map_err(|Cancelled| Ended::Cancelled)?).map_err(Ended::Failed)
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
