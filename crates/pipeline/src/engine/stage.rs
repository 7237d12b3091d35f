//! One stage during one step: what it keeps for each micro-batch, and its passes.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    ops::Range,
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
};

use burn::{
    optim::GradientsParams,
    tensor::{Device, FloatDType, Tensor},
};
use stovepipe_runtime::{CancelToken, Cancelled};
use stovepipe_schedule::{Action, Pass, SpanKind, VersionUse};

use crate::{
    api::error::FailureCause,
    engine::{
        copies,
        deferred::DeferredGradients,
        finite::is_finite,
        gradient_sums::{Ending, GradientSums, Stored},
        links::Links,
        message::{Arrived, Inbox, Message},
        numbers::{Numbers, NumbersRead, Place},
        parts::{MicroBatchLoss, OutputUse, Parts},
        pass_sums::PassSums,
        record::Recorder,
        reduction::Reduction,
        report::{Held, StageReport},
        schedules::StepSchedule,
        seats::Seat,
        shared::Shared,
        skips::{SkipGradients, SkipValues, StageSkips},
        statistics::{self, Cells, Momenta, Statistics},
        tape::{
            self, AuxiliaryLosses, BackwardScope, Head, LossAndScores, LossFn, PassContext,
            Recorded, Run, StageValues, Tape,
        },
        values::{self, FlowGradients},
        versions::{CopyOptions, Versions},
        window::StageUpdates,
        worker::ActionError,
    },
    model::{flows, layer::Layer},
};

/// What a stage needs for a step.
pub(crate) struct StageTask<L: Layer> {
    /// The number of the run.
    pub(crate) run: u64,
    pub(crate) seat: Seat,
    pub(crate) stage: StagePlacement,
    pub(crate) layers: Vec<L>,
    pub(crate) links: Links<L>,
    /// What it needs of each mini-batch.
    pub(crate) parts: Parts<L>,
    /// Of all mini-batches.
    pub(crate) micro_batches: usize,
    /// Their sizes, if they are one mini-batch.
    pub(crate) sizes: Option<Arc<[usize]>>,
    pub(crate) shared: Option<Arc<Shared>>,
    /// One for each mini-batch, if the stage has replicas and trains.
    pub(crate) reductions: VecDeque<Reduction>,
    /// The type to cast layers and inputs to, if any.
    pub(crate) dtype: Option<FloatDType>,
    /// `None` for inference and evaluation.
    pub(crate) training: Option<Arc<Training>>,
    /// In a window: how weights change.
    pub(crate) updates: Option<StageUpdates<L>>,
    /// Where gradients lie, if not here.
    pub(crate) stored: Option<Stored<L>>,
}

/// What all stages of a training step share.
pub(crate) struct Training {
    pub(crate) schedule: Arc<StepSchedule>,
    /// The first layer of the model that has something to train.
    pub(crate) trainable_from: usize,
    pub(crate) momenta: Arc<Mutex<Momenta>>,
    /// Whether forward passes only count running statistics, to recalibrate them, and no backward passes
    /// follow.
    pub(crate) only_counts: bool,
    /// Whether gradients that are NaN or infinite are to be found.
    pub(crate) checks_finite: bool,
    /// Whether to check each value, to find the first that is NaN or infinite.
    pub(crate) inspect: bool,
    /// Where sums of what each pass computes go, if they are asked for.
    pub(crate) sums: Option<PassSums>,
    /// The factor of losses before the backward pass; gradients are divided by it.
    pub(crate) loss_scale: Option<f64>,
}

/// The results of a stage for its own process.
pub(crate) struct StageResult<L: Layer> {
    /// The first of those that are joined.
    pub(crate) seat: Seat,
    pub(crate) statistics: Vec<Statistics>,
    /// The sums over all replicas, for each layer; none after a window.
    pub(crate) gradients: Vec<GradientsParams>,
    /// After a window, in the first seat of each process.
    pub(crate) layers: Option<Vec<L>>,
    /// By micro-batch.
    pub(crate) outputs: HashMap<usize, L::Output>,
    pub(crate) report: StageReport,
}

impl<L: Layer> StageResult<L> {
    /// Adds what the next replica has of other micro-batches. `device` is that of the first.
    pub(crate) fn join(&mut self, next: Self, device: &Device) {
        statistics::extend_all(&mut self.statistics, next.statistics, 0);
        if self.gradients.is_empty() {
            self.gradients = next.gradients;
        }
        self.layers = self.layers.take().or(next.layers);
        let outputs = next.outputs.into_iter();
        let outputs = outputs.map(|(index, output)| (index, flows::to_device(output, device)));
        self.outputs.extend(outputs);
        self.report.join(next.report);
    }
}

/// The layers of a stage and their device.
#[derive(Clone, Debug)]
pub(crate) struct StagePlacement {
    pub(crate) index: usize,
    /// Its layers, by their index in the model.
    pub(crate) layers: Range<usize>,
    /// Their names, for errors.
    pub(crate) names: Arc<[String]>,
    pub(crate) device: Device,
    pub(crate) device_name: String,
    pub(crate) skips: StageSkips,
    /// The cells of each layer's running statistics.
    pub(crate) cells: Arc<[Cells]>,
}

impl StagePlacement {
    /// What an error calls something of a layer, by its index in the stage.
    pub(crate) fn of_layer(&self, what: &str, layer: usize) -> String {
        let (index, name) = (self.layers.start + layer, &self.names[layer]);
        format!("{what} of layer {index} ({name})")
    }
}

pub(crate) struct StageStep<L: Layer> {
    task: StageTask<L>,
    /// Of mini-batches whose gradients are not summed yet; the last one stays, for statistics.
    reductions: VecDeque<Reduction>,
    /// The actions that compute the last gradients of a mini-batch.
    last: HashSet<Action>,
    /// Forward passes to come.
    forwards_left: usize,
    recorder: Recorder,
    versions: Versions<L>,
    /// Of micro-batches that are under way.
    sides: HashMap<usize, L::Side>,
    tapes: HashMap<usize, Tape<L>>,
    /// For the second half of a backward pass, by layer.
    deferred: HashMap<usize, Vec<(usize, DeferredGradients)>>,
    gradients: GradientSums<L>,
    /// By mini-batch, the sum of each layer's gradients, which is not finite if one of them is not.
    sums: Vec<Vec<Option<Tensor<1>>>>,
    /// Of all versions, at the end.
    statistics: Vec<Statistics>,
    outputs: HashMap<usize, L::Output>,
    losses: HashMap<usize, Tensor<1>>,
    auxiliary: HashMap<usize, AuxiliaryLosses>,
    scores: HashMap<usize, Tensor<1>>,
    held: Held,
}

impl<L: Layer> StageStep<L> {
    /// `actions` are those of the stage.
    pub(crate) fn new(
        mut task: StageTask<L>,
        actions: impl Iterator<Item = Action> + Clone,
        recorder: Recorder,
    ) -> Self {
        let training = task.training.as_ref();
        let only_counts = training.is_some_and(|training| training.only_counts);
        let options = CopyOptions {
            dtype: task.dtype,
            trains: training.is_some(),
            from_zero: task.dtype.is_some() || only_counts || task.updates.is_some(),
            // With replicas, and to recalibrate, statistics of others come in between.
            sizes: (task.sizes.clone()).filter(|_| task.reductions.is_empty() && !only_counts),
        };
        let cells = training.map_or(&[][..], |_| &task.stage.cells);
        let versions = Versions::new(options, &task.layers, cells);
        let has_statistics = cells.iter().any(|cells| !cells.is_empty());
        let mut reductions = std::mem::take(&mut task.reductions);
        let count = reductions.len();
        for (index, reduction) in reductions.iter_mut().enumerate() {
            let kind = (only_counts, has_statistics && index + 1 == count);
            let layers = versions.newest().copies.live();
            reduction.begin(task.run, &layers, kind, &recorder);
        }
        let training = task.training.as_ref();
        let ending = Ending {
            scale: (training.and_then(|training| training.loss_scale))
                .filter(|&scale| scale != 1.0),
            checks_finite: training.is_some_and(|training| training.checks_finite),
        };
        Self {
            gradients: GradientSums::new(task.layers.len(), task.stored.take(), ending),
            forwards_left: (actions.clone())
                .filter(|action| action.pass == Pass::Forward)
                .count(),
            last: last_of_mini_batches(actions),
            versions,
            reductions,
            task,
            recorder,
            sides: HashMap::new(),
            tapes: HashMap::new(),
            deferred: HashMap::new(),
            sums: Vec::new(),
            statistics: Vec::new(),
            outputs: HashMap::new(),
            losses: HashMap::new(),
            auxiliary: HashMap::new(),
            scores: HashMap::new(),
            held: Held::default(),
        }
    }

    /// Waits for what the action needs, runs it, and sends its results.
    pub(crate) fn run(
        &mut self,
        action: Action,
        of_action: VersionUse,
        cancel: &CancelToken,
    ) -> Result<(), ActionError> {
        let failed = ActionError::Failed;
        if self.task.updates.is_some() {
            self.recorder.using(of_action.version);
            self.versions.choose(action.micro_batch, of_action.version);
        }
        let ran = match action.pass {
            Pass::Forward => {
                self.task.parts.wait_for(action.micro_batch, cancel)?;
                // Copied before the wait, because it needs no input.
                let modules = self.runs_to_record(action.micro_batch);
                let input = self.receive_input(action, cancel)?;
                self.recorder.running(action);
                self.forward(action, input, modules).map_err(failed)
            }
            Pass::Update => self.update((action, of_action.dropped), cancel),
            // Neither this stage nor one before it trains: there is no gradient to compute.
            _ if self.is_frozen() => {
                self.recorder.running(action);
                self.recorder.time(action.pass.into(), action, || Ok(()))
            }
            Pass::Backward | Pass::InputGradient => {
                self.recompute(action).map_err(failed)?;
                let gradients = match &mut self.task.links.gradients_in {
                    None => FlowGradients::default(),
                    Some(inbox) => {
                        self.recorder.waiting(action, self.task.seat.stage + 1);
                        receive(inbox, (action.micro_batch, &self.task.stage.device), cancel)?
                    }
                };
                let mut of_skips = SkipGradients::new();
                for (from, inbox) in &mut self.task.links.skip_gradients_in {
                    self.recorder.waiting(action, *from);
                    of_skips.extend(receive(
                        inbox,
                        (action.micro_batch, &self.task.stage.device),
                        cancel,
                    )?);
                }
                self.recorder.running(action);
                self.backward(action, gradients, of_skips).map_err(failed)
            }
            Pass::WeightGradient => {
                self.recorder.running(action);
                self.weight_gradients(action).map_err(failed)
            }
        };
        ran?;
        if let Some(version) = of_action.dropped {
            self.versions.drop_older(version);
        }
        Ok(())
    }

    /// The weights change by the gradients of a mini-batch.
    fn update(
        &mut self,
        (action, dropped): (Action, Option<usize>),
        cancel: &CancelToken,
    ) -> Result<(), ActionError> {
        self.give_gradients();
        let gradients = self.take_gradients(cancel)?;
        let Some(updates) = &mut self.task.updates else {
            let cause = FailureCause::Internal("a step changes no weights");
            return Err(ActionError::Failed(cause));
        };
        self.recorder.running(action);
        self.versions.release(dropped);
        let layers = std::mem::take(&mut self.task.layers);
        let change = || updates.next(layers, gradients, (&self.task.stage.device, cancel));
        self.task.layers = (self.recorder).time(SpanKind::Update, action, change)?;
        (self.versions).push(&self.task.layers, &self.task.stage.cells);
        self.task.parts.forget(action.micro_batch);
        Ok(())
    }

    /// Gives away what other replicas still need, without waiting for them.
    pub(crate) fn give_rest(&mut self) {
        self.give_gradients();
        if self.exchanges_statistics() {
            self.statistics = self.versions.take_statistics();
            let (count, momenta) = (self.task.micro_batches, self.momenta());
            let live = self.versions.newest().copies.live();
            let layers = self.statistics.iter().zip(live);
            let numbers = layers.flat_map(|(own, live)| own.to_numbers(count, live, &momenta));
            if let Some(reduction) = self.reductions.back() {
                reduction.give_statistics(numbers.collect());
            }
        }
    }

    /// Gives the gradients of a mini-batch to the replicas that wait for them.
    fn give_gradients(&mut self) {
        let Some(reduction) = self.reductions.front_mut() else {
            return;
        };
        let layers = self.versions.newest().copies.live();
        for layer in reduction.missing() {
            let gradients = self.gradients.take(layer);
            reduction.give(layer, layers[layer], gradients);
        }
    }

    /// The gradients of a mini-batch: with replicas, the sums over them, if this seat gets these.
    fn take_gradients(
        &mut self,
        cancel: &CancelToken,
    ) -> Result<Vec<GradientsParams>, ActionError> {
        let mut gradients = match self.reductions.front_mut() {
            Some(reduction) => {
                self.recorder.reducing(self.task.seat.stage);
                reduction.gradients(cancel)?
            }
            None => (0..self.task.layers.len())
                .map(|layer| self.gradients.take(layer))
                .collect(),
        };
        let layers = self.versions.newest().copies.live();
        let sums = self.gradients.end(&layers, &mut gradients);
        self.sums.push(sums.map_err(ActionError::Failed)?);
        // The last one also has the statistics.
        if self.reductions.len() > 1
            && let Some(reduction) = self.reductions.pop_front()
        {
            reduction.end();
        }
        Ok(gradients)
    }

    /// The momenta that are known so far.
    fn momenta(&self) -> Momenta {
        let training = self.task.training.as_ref();
        let known = training.map(|training| training.momenta.lock());
        known.map_or_else(Momenta::default, |known| {
            known.unwrap_or_else(PoisonError::into_inner).clone()
        })
    }

    /// Whether replicas in other processes have statistics that this one needs.
    fn exchanges_statistics(&self) -> bool {
        let is_any = self.task.stage.cells.iter().any(|own| !own.is_empty());
        is_any && (self.reductions.back()).is_some_and(Reduction::exchanges_statistics)
    }

    /// Waits for the sums over all replicas, if there are several.
    pub(crate) fn finish(mut self, cancel: &CancelToken) -> Result<StageResult<L>, ActionError> {
        self.held.weight_versions = self.versions.most();
        let is_window = self.task.updates.is_some();
        let failed = ActionError::Failed;
        let mut gradients = Vec::new();
        if !is_window {
            gradients = self.take_gradients(cancel)?;
        }
        self.take_statistics(cancel)?;
        let mut numbers = Numbers::default();
        let sums = std::mem::take(&mut self.sums).into_iter();
        let sums: Vec<_> = sums.map(|of_layers| numbers.add_some(of_layers)).collect();
        let may_overflow = (self.task.training.as_ref()).is_some_and(|t| t.loss_scale.is_some());
        let counted = self.statistics.iter().filter(|_| may_overflow);
        let counted = numbers.add_some(counted.map(Statistics::sum));
        let losses = numbers.add_all(self.losses);
        let auxiliary = self.auxiliary.into_iter().map(|(index, mut own)| {
            own.sort_by_key(|&(layer, _)| layer);
            let own = own.into_iter().map(|(_, loss)| loss);
            (index, Tensor::cat(own.collect(), 0))
        });
        let auxiliary = numbers.add_all(auxiliary);
        let scores = numbers.add_all(self.scores);
        let numbers = numbers.read();
        let sum = |(index, place): (usize, Place)| (index, numbers.sum(&place));
        let at = |(index, place): (usize, Place)| (index, numbers.at(&place).to_vec());
        // Other threads read the results: see `transfer`. A lost device has failed in the sums already.
        let _ = self.task.stage.device.flush();
        if let Some(shared) = &self.task.shared
            && !gradients.is_empty()
        {
            let first = self.task.stage.layers.start;
            let sent = shared.send_gradients(first, &self.task.layers, &mut gradients);
            sent.map_err(failed)?;
        }
        Ok(StageResult {
            seat: self.task.seat,
            statistics: self.statistics,
            gradients,
            layers: is_window.then_some(self.task.layers),
            outputs: self.outputs,
            report: StageReport {
                not_finite: not_finite(&numbers, &sums),
                overflowed: numbers.last_not_finite(&counted),
                losses: losses.into_iter().map(sum).collect(),
                auxiliary: auxiliary.into_iter().map(sum).collect(),
                scores: scores.into_iter().map(at).collect(),
                held: self.held,
            },
        })
    }

    /// Takes the running statistics that replicas in other processes have counted.
    fn take_statistics(&mut self, cancel: &CancelToken) -> Result<(), ActionError> {
        let is_exchanged = self.exchanges_statistics();
        if self.statistics.is_empty() {
            self.statistics = self.versions.take_statistics();
        }
        let Some(reduction) = self.reductions.back_mut().filter(|_| is_exchanged) else {
            return Ok(());
        };
        let (all, mut momenta) = (reduction.statistics(cancel)?, Momenta::default());
        let mut rest = &all[..];
        let live = self.versions.newest().copies.live();
        for (own, live) in self.statistics.iter_mut().zip(live) {
            rest = own.set_numbers(self.task.micro_batches, live, &mut momenta, rest);
        }
        if let Some(training) = &self.task.training {
            let known = training.momenta.lock();
            known
                .unwrap_or_else(PoisonError::into_inner)
                .extend(momenta);
        }
        Ok(())
    }

    fn is_last(&self) -> bool {
        self.task.links.values_out.is_none()
    }

    /// Whether neither this stage nor one before it has something to train. The last stage always runs
    /// backward, because it records the loss.
    fn is_frozen(&self) -> bool {
        let training = self.task.training.as_ref();
        !self.is_last() && training.is_some_and(|t| t.trainable_from >= self.task.stage.layers.end)
    }

    /// Whether the stage before needs the gradient of this stage's input.
    fn owes_gradients(&self) -> bool {
        let training = self.task.training.as_ref();
        training.is_some_and(|t| t.trainable_from < self.task.stage.layers.start)
    }

    fn receive_input(
        &mut self,
        action: Action,
        cancel: &CancelToken,
    ) -> Result<StageValues<L>, ActionError> {
        let micro_batch = action.micro_batch;
        let flow = match &mut self.task.links.values_in {
            None => {
                let input = self.task.parts.take_input(micro_batch);
                let input = values::cast(input.ok_or(ActionError::Cancelled)?, self.task.dtype);
                flows::to_device(L::enter(input), &self.task.stage.device)
            }
            Some(inbox) => {
                self.recorder.waiting(action, self.task.seat.stage - 1);
                receive(inbox, (micro_batch, &self.task.stage.device), cancel)?
            }
        };
        let mut skips = SkipValues::new();
        for (from, inbox) in &mut self.task.links.skips_in {
            self.recorder.waiting(action, *from);
            skips.extend(receive(
                inbox,
                (micro_batch, &self.task.stage.device),
                cancel,
            )?);
        }
        Ok(StageValues { flow, skips })
    }

    /// How the layers run forward, with copies to record on, if a backward pass follows.
    fn runs_to_record(&mut self, micro_batch: usize) -> Option<Vec<Run<L>>> {
        let training = (self.task.training.as_ref()).filter(|training| !training.only_counts)?;
        let (schedule, stage) = (&training.schedule, self.task.seat.stage);
        // A frozen stage keeps no tape, but records for the sake of auxiliary losses.
        let is_whole = schedule.recorded[stage][micro_batch] || self.is_frozen();
        let segments = if is_whole {
            &[][..]
        } else {
            &schedule.segments[stage]
        };
        let all = self.task.stage.layers.clone();
        let copies = &self.versions.of(micro_batch).copies;
        let recorded = |layers: Range<usize>| {
            let own = copies.to_record(layers.start - all.start..layers.end - all.start);
            Run::Recorded(layers, own)
        };
        let (mut runs, mut begin) = (Vec::new(), all.start);
        for segment in segments {
            if begin < segment.start {
                runs.push(recorded(begin..segment.start));
            }
            runs.push(Run::Again(segment.clone()));
            begin = segment.end;
        }
        if begin < all.end {
            runs.push(recorded(begin..all.end));
        }
        Some(runs)
    }

    fn forward(
        &mut self,
        action: Action,
        input: StageValues<L>,
        runs: Option<Vec<Run<L>>>,
    ) -> Result<(), FailureCause> {
        let micro_batch = action.micro_batch;
        let inspect = (self.task.training.as_ref()).is_some_and(|training| training.inspect);
        if inspect && self.task.seat.stage == 0 && !is_finite(&input.flow) {
            let cause = "the input of the model is not finite";
            return Err(FailureCause::NotFinite(cause));
        }
        self.find_momenta(action, &input)?;
        let output = match runs {
            Some(runs) => self.record(action, runs, input)?,
            None => self.forward_without_tape(action, input)?,
        };
        (self.task.links).send_skips(&self.task.stage.skips, micro_batch, &output.skips);
        match &self.task.links.values_out {
            Some(outbox) => outbox.send(micro_batch, output.flow),
            None => self.use_output(micro_batch, output.flow)?,
        }
        let is_frozen = self.is_frozen();
        let version = self.versions.of(micro_batch);
        for (statistics, live) in version.statistics.iter_mut().zip(version.copies.live()) {
            statistics.count(micro_batch, live);
        }
        self.forwards_left -= 1;
        if self.forwards_left == 0 {
            version.copies.end_forward();
        }
        if is_frozen {
            self.tapes.remove(&micro_batch);
        }
        if !self.tapes.contains_key(&micro_batch) {
            self.sides.remove(&micro_batch);
        }
        Ok(())
    }

    /// Computes the loss of an output where the step does not train, and keeps the output if asked to.
    fn use_output(&mut self, micro_batch: usize, flow: L::Flow) -> Result<(), FailureCause> {
        let (part, index) = self.task.parts.of(micro_batch)?;
        let OutputUse { loss, keep_outputs } = &part.outputs;
        let loss = loss.as_ref().filter(|_| self.task.training.is_none());
        if !keep_outputs && loss.is_none() {
            return Ok(());
        }
        let output = tape::leave::<L>(flow, self.task.stage.names.len(), &self.watch())?;
        let loss = loss.map(|loss| loss(index, Head::Main, output.clone()));
        if *keep_outputs {
            self.outputs.insert(micro_batch, values::widened(output));
        }
        self.keep_loss(micro_batch, loss);
        Ok(())
    }

    fn keep_loss(&mut self, micro_batch: usize, loss: Option<LossAndScores>) {
        if let Some(LossAndScores { loss, scores }) = loss {
            self.losses.insert(micro_batch, loss);
            (self.scores).extend(scores.map(|scores| (micro_batch, scores)));
        }
    }

    /// Runs forward without a tape, where no backward pass follows.
    fn forward_without_tape(
        &mut self,
        action: Action,
        input: StageValues<L>,
    ) -> Result<StageValues<L>, FailureCause> {
        let side = self.side(action.micro_batch)?;
        let watch = self.watch();
        let layers = self.versions.of(action.micro_batch).copies.quiet();
        let pass = pass_context(&self.task, action.micro_batch, &side)?;
        let device = self.task.training.as_ref().map(|_| &self.task.stage.device);
        self.recorder.time(SpanKind::Forward, action, || {
            let output = tape::forward(layers, input, &pass, &watch)?;
            device.into_iter().for_each(values::sweep);
            Ok(output)
        })
    }

    /// Finds the momenta of the stage's batch norms, in the first step that needs them: where the
    /// statistics of several micro-batches are combined.
    fn find_momenta(&mut self, action: Action, input: &StageValues<L>) -> Result<(), FailureCause> {
        let Some(training) = self.task.training.clone() else {
            return Ok(());
        };
        let lock = || (training.momenta.lock()).unwrap_or_else(PoisonError::into_inner);
        let combines = self.task.micro_batches > 1 || training.only_counts;
        let is_needed = combines || self.task.dtype.is_some() || self.task.updates.is_some();
        let is_settled = || {
            let known = lock();
            let live = self.versions.newest().copies.live();
            let mut layers = self.task.stage.cells.iter().zip(live);
            layers.all(|(cells, live)| cells.is_settled(live, &known))
        };
        if !is_needed || is_settled() {
            return Ok(());
        }
        // In f32 whatever the step computes in: momenta need all bits.
        let dtype = self.task.dtype.map(|_| FloatDType::F32);
        let side = values::cast(self.side(action.micro_batch)?, dtype);
        let skips = input.skips.iter();
        let cast = |(&skip, value): (_, &L::Flow)| (skip, values::cast(value.clone(), dtype));
        let input = StageValues {
            flow: values::cast(input.flow.clone(), dtype),
            skips: skips.map(cast).collect(),
        };
        let mut pass = pass_context(&self.task, action.micro_batch, &side)?;
        // These passes are no part of the step.
        pass.sums = None;
        let watch = self.watch();
        let layers = self.task.layers.iter().map(copies::live);
        let layers: Vec<_> = self.task.stage.cells.iter().cloned().zip(layers).collect();
        let copy = |layer: &L| copies::quiet(&copies::live(layer));
        let found = statistics::momenta(&layers, copy, |copies| {
            tape::forward(&copies, input.clone(), &pass, &watch).map(|_| ())
        })?;
        lock().extend(found);
        values::sweep(&self.task.stage.device);
        Ok(())
    }

    /// Runs forward with a tape, and the loss after it on the last stage, unless that will be recomputed.
    fn record(
        &mut self,
        action: Action,
        runs: Vec<Run<L>>,
        input: StageValues<L>,
    ) -> Result<StageValues<L>, FailureCause> {
        let micro_batch = action.micro_batch;
        let (side, watch) = (self.side(micro_batch)?, self.watch());
        let (loss, index) = loss_of(&self.task, micro_batch)?;
        let loss = |head, output| loss(index, head, output);
        let pass = pass_context(&self.task, micro_batch, &side)?;
        let (is_last, layers) = (self.is_last(), self.task.stage.names.len());
        let is_quiet = runs.iter().any(|run| matches!(run, Run::Again(_)));
        let quiet = match is_quiet {
            true => self.versions.of(micro_batch).copies.quiet(),
            false => &[],
        };
        let (recorded, main) = self.recorder.time(SpanKind::Forward, action, || {
            let mut recorded = tape::record((runs, quiet), input, &pass, &loss, &watch)?;
            let mut main = None;
            if is_last && recorded.tape.ends_recorded() {
                let output = (recorded.output.flow.clone(), layers);
                main = Some((recorded.tape).record_loss(output, &loss, (&pass, &watch))?);
            }
            // Otherwise Burn's record of passes without a tape grows until the first backward pass: by 0.4 MB
            // each for nine layers of AmoebaNet-D.
            if is_quiet {
                values::sweep(&self.task.stage.device);
            }
            Ok::<_, FailureCause>((recorded, main))
        })?;
        let Recorded {
            output,
            auxiliary,
            tape,
        } = recorded;
        self.keep_tape(micro_batch, tape, (main, auxiliary));
        Ok(output)
    }

    fn keep_tape(
        &mut self,
        micro_batch: usize,
        tape: Tape<L>,
        (main, auxiliary): (Option<LossAndScores>, AuxiliaryLosses),
    ) {
        self.keep_loss(micro_batch, main);
        self.keep_auxiliary(micro_batch, auxiliary);
        self.tapes.insert(micro_batch, tape);
        let count =
            |keeps: fn(&Tape<L>) -> bool| self.tapes.values().filter(|tape| keeps(tape)).count();
        self.held.inputs = self.held.inputs.max(count(Tape::keeps_inputs));
        self.held.activations = self.held.activations.max(count(Tape::keeps_activations));
    }

    fn keep_auxiliary(&mut self, micro_batch: usize, losses: AuxiliaryLosses) {
        if !losses.is_empty() {
            self.auxiliary
                .entry(micro_batch)
                .or_default()
                .extend(losses);
        }
    }

    /// Runs the last segment again. It needs no gradient, so it does not wait for one.
    fn recompute(&mut self, action: Action) -> Result<(), FailureCause> {
        let micro_batch = action.micro_batch;
        if !self.tapes.get(&micro_batch).is_some_and(Tape::keeps_inputs) {
            return Ok(());
        }
        self.recorder.running(action);
        let (side, watch) = (self.side(micro_batch)?, self.watch());
        let Some(mut tape) = self.tapes.remove(&micro_batch) else {
            return Ok(());
        };
        let (loss, index) = loss_of(&self.task, micro_batch)?;
        let loss = |head, output| loss(index, head, output);
        let pass = pass_context(&self.task, micro_batch, &side)?;
        let needs_loss = self.is_last() && !tape.ends_recorded();
        let layers = self.task.stage.names.len();
        let again = again(
            &mut self.versions,
            self.forwards_left,
            (&self.task, micro_batch),
        );
        let results = self.recorder.time(SpanKind::Recompute, action, || {
            let Some((output, auxiliary)) = tape.recompute_last(again, &pass, &loss, &watch)?
            else {
                return Ok((None, Vec::new()));
            };
            let mut main = None;
            if needs_loss {
                main = Some(tape.record_loss((output, layers), &loss, (&pass, &watch))?);
            }
            Ok::<_, FailureCause>((main, auxiliary))
        })?;
        self.keep_tape(micro_batch, tape, results);
        Ok(())
    }

    fn backward(
        &mut self,
        action: Action,
        gradients: FlowGradients,
        of_skips: SkipGradients,
    ) -> Result<(), FailureCause> {
        let micro_batch = action.micro_batch;
        let Some(tape) = self.tapes.remove(&micro_batch) else {
            return Err(FailureCause::Internal("backward came before forward"));
        };
        let scope = match action.pass {
            Pass::InputGradient => BackwardScope::Input,
            _ => BackwardScope::All,
        };
        let side = self.side(micro_batch)?;
        let pass = pass_context(&self.task, micro_batch, &side)?;
        let (loss, index) = loss_of(&self.task, micro_batch)?;
        let loss = |head, output| loss(index, head, output);
        let watch = self.watch();
        let again = match tape.keeps_inputs() {
            true => again(
                &mut self.versions,
                self.forwards_left,
                (&self.task, micro_batch),
            ),
            false => &[],
        };
        let dtype = self.task.dtype;
        let sums = &mut self.gradients;
        let is_last = self.last.contains(&action);
        let mut reduction = self.reductions.front_mut();
        let result = self.recorder.time(action.pass.into(), action, || {
            // Layer by layer, so that no more than one layer's gradients are held twice.
            let accumulate = |layer: usize, module: &L, gradients| {
                let gradients = match dtype {
                    Some(_) => copies::widened(module, gradients),
                    None => gradients,
                };
                sums.add(layer, module, gradients);
                if let Some(reduction) = reduction.as_mut().filter(|_| is_last) {
                    reduction.give(layer, module, sums.take(layer));
                }
            };
            let again = (again, &loss as &LossFn<'_, L>);
            tape.backward(
                gradients,
                of_skips,
                (scope, &pass),
                again,
                accumulate,
                &watch,
            )
        })?;
        self.gradients.check()?;
        self.keep_auxiliary(micro_batch, result.auxiliary);
        if let Some(outbox) = &self.task.links.gradients_out
            && self.owes_gradients()
        {
            outbox.send(micro_batch, result.input);
        }
        (self.task.links).send_skip_gradients(&self.task.stage.skips, micro_batch, result.skips);
        self.sides.remove(&micro_batch);
        if !result.deferred.is_empty() {
            self.deferred.insert(micro_batch, result.deferred);
            self.held.weight_contexts = self.held.weight_contexts.max(self.deferred.len());
        }
        Ok(())
    }

    /// Computes the gradients that the first half of a backward pass deferred.
    fn weight_gradients(&mut self, action: Action) -> Result<(), FailureCause> {
        let deferred = self.deferred.remove(&action.micro_batch);
        let watch = self.watch();
        let layers = self.versions.newest().copies.live();
        let sums = &mut self.gradients;
        let (is_last, dtype) = (self.last.contains(&action), self.task.dtype);
        let pass_sums = (self.task.training.as_ref()).and_then(|training| training.sums.as_ref());
        let first = self.task.stage.layers.start;
        let mut reduction = self.reductions.front_mut();
        self.recorder.time(action.pass.into(), action, || {
            for (layer, deferred) in deferred.unwrap_or_default() {
                watch(Some(layer));
                let gradients = deferred.run(layers[layer]);
                if let Some(pass_sums) = pass_sums {
                    let place = (action.micro_batch, first + layer);
                    let of_layer = (layers[layer], Some(&gradients));
                    pass_sums.backward(place, SpanKind::WeightGradient, of_layer, &[]);
                }
                let gradients = match dtype {
                    Some(_) => copies::widened(layers[layer], gradients),
                    None => gradients,
                };
                sums.add(layer, layers[layer], gradients);
                if let Some(reduction) = reduction.as_mut().filter(|_| is_last) {
                    reduction.give(layer, layers[layer], sums.take(layer));
                }
            }
            watch(None);
            sums.check()
        })
    }

    /// The side inputs of a micro-batch, which are copied to the device once.
    fn side(&mut self, micro_batch: usize) -> Result<L::Side, FailureCause> {
        let side = match self.sides.get(&micro_batch) {
            Some(side) => side.clone(),
            None => {
                let (part, index) = self.task.parts.of(micro_batch)?;
                let side = values::cast(part.side[index].clone(), self.task.dtype);
                let side = flows::to_device(side, &self.task.stage.device);
                self.sides.insert(micro_batch, side.clone());
                side
            }
        };
        Ok(match self.task.training {
            Some(_) => flows::attach(side, false),
            None => side,
        })
    }

    /// Tells the recorder which layer runs.
    fn watch(&self) -> impl Fn(Option<usize>) + use<L> {
        let (recorder, stage) = (self.recorder.clone(), &self.task.stage);
        let (names, first) = (stage.names.clone(), stage.layers.start);
        move |layer| {
            let name = |layer: usize| (first + layer, names[layer].clone());
            recorder.in_layer(layer.map(name));
        }
    }
}

/// What the layers of a stage need for a micro-batch.
fn pass_context<'a, L: Layer>(
    task: &'a StageTask<L>,
    micro_batch: usize,
    side: &'a L::Side,
) -> Result<PassContext<'a, L>, FailureCause> {
    let training = task.training.as_ref();
    let (part, index) = task.parts.of(micro_batch)?;
    let key = part.key.as_ref().filter(|_| training.is_some());
    Ok(PassContext {
        side,
        rng: key.map(|key| (key.clone(), part.samples[index].clone())),
        skips: &task.stage.skips,
        first: task.stage.layers.start,
        trainable_from: training.map_or(usize::MAX, |training| training.trainable_from),
        inspect: training.is_some_and(|training| training.inspect),
        sums: (training.and_then(|training| training.sums.as_ref()))
            .map(|sums| (sums, micro_batch)),
        feeds_loss: part.outputs.loss.is_some() && !part.outputs.keep_outputs,
        loss_scale: training.and_then(|training| training.loss_scale),
    })
}

/// The loss in training, and the index of a micro-batch in its mini-batch.
fn loss_of<L: Layer>(
    task: &StageTask<L>,
    micro_batch: usize,
) -> Result<(&MicroBatchLoss<L>, usize), FailureCause> {
    let (part, index) = task.parts.of(micro_batch)?;
    let Some(loss) = &part.outputs.loss else {
        return Err(FailureCause::Internal("training without a loss"));
    };
    Ok((loss, index))
}

/// Copies to run a micro-batch again on: with forward passes to come, layers with statistics have their own.
fn again<'a, L: Layer>(
    versions: &'a mut Versions<L>,
    forwards_left: usize,
    (task, micro_batch): (&StageTask<L>, usize),
) -> &'a [Rc<L>] {
    let cells = &task.stage.cells;
    let counts = |layer: usize| forwards_left > 0 && !cells[layer].is_empty();
    versions.of(micro_batch).copies.again(counts)
}

/// The actions of a stage that compute the last gradients before an update, or before the end.
fn last_of_mini_batches(actions: impl Iterator<Item = Action>) -> HashSet<Action> {
    let (mut all, mut last) = (HashSet::new(), None);
    for action in actions {
        match action.pass {
            Pass::Forward => {}
            Pass::Update => all.extend(last.take()),
            _ => last = Some(action),
        }
    }
    all.extend(last);
    all
}

/// The first mini-batch with a gradient that is NaN or infinite, and the last layer that has one there.
fn not_finite(numbers: &NumbersRead, sums: &[Vec<Option<Place>>]) -> Option<(usize, usize)> {
    let mut of_mini_batches = sums.iter().enumerate();
    of_mini_batches.find_map(|(index, sums)| Some((index, numbers.last_not_finite(sums)?)))
}

/// Waits for a message; a failed copy is an error.
fn receive<M: Message>(
    inbox: &mut Inbox<M>,
    (micro_batch, device): (usize, &Device),
    cancel: &CancelToken,
) -> Result<M, ActionError> {
    let received = inbox.receive(micro_batch, cancel);
    let arrived = received.map_err(|Cancelled| ActionError::Cancelled)?;
    match arrived.map_err(ActionError::Failed)? {
        Arrived::Here(message) => Ok(message),
        Arrived::Packed(mut packed) => M::unpack(&mut packed, device)
            .map_err(|error| ActionError::Failed(FailureCause::Unpacked(error))),
    }
}
