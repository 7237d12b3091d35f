//! Everything but the cut, and the forecast for a cut.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    iter,
    ops::{AddAssign, Range},
};

use stovepipe_schedule::{
    Action, Bucket, Costs, HeldBytes, Link, Pass, Recompute, Schedule, SkipCosts, StageCosts,
    StageMemory, WeightPolicy,
};

use super::{
    Forecast, PlanError,
    ranges::{ranges, stage_of},
    recomputed::{Recomputed, Run},
    waiting::Waiting,
};
use crate::{
    CutError, DeviceSpec, LayerProfile, Machine, MemoryUse, OptimizerState, Profile, cut_chain_by,
};

/// A model, with costs for the samples of a micro-batch.
pub(super) struct ProfiledModel<'a> {
    pub machine: &'a Machine,
    pub state: OptimizerState,
    /// Bytes of gradients that replicas add up at once.
    bucket: u64,
    /// One for all devices of the machine, or one for each.
    profiles: Vec<SummedProfile>,
}

/// The most bytes of a stage's first bucket: its all-reduce begins early.
const FIRST_BUCKET: u64 = 1 << 20;

/// A profile with sums over its first layers. The sum over a run of layers is a difference.
struct SummedProfile {
    profile: Profile,
    forward: Vec<f64>,
    quiet: Vec<f64>,
    /// The faster of the two, layer by layer.
    faster: Vec<f64>,
    input: Vec<f64>,
    weight: Vec<f64>,
    /// Bytes.
    parameters: Vec<u128>,
    trained: Vec<u128>,
    kept: Vec<u128>,
    context: Vec<u128>,
    bookkeeping: Vec<u128>,
    cast: Vec<u128>,
    /// Of each layer, what a pass needs and all layers up to it keep.
    reach: RangeMax,
}

impl SummedProfile {
    fn new(profile: Profile) -> Self {
        let layers = &profile.layers;
        let bytes = |part: fn(&LayerProfile) -> u64| {
            running_sums(layers.iter().map(|layer| u128::from(part(layer))))
        };
        let sums = |part: fn(&LayerProfile) -> f64| running_sums(layers.iter().map(part));
        let kept = bytes(LayerProfile::kept_or_output);
        let reach = layers.iter().zip(&kept[1..]);
        let reach = reach.map(|(layer, kept)| u128::from(layer.workspace_or_gradients()) + kept);
        Self {
            reach: RangeMax::new(reach.collect()),
            forward: sums(|layer| layer.forward),
            quiet: sums(LayerProfile::quiet_or_forward),
            faster: sums(|layer| layer.quiet_or_forward().min(layer.forward)),
            input: sums(|layer| layer.backward - layer.weight_or_half()),
            weight: sums(LayerProfile::weight_or_half),
            parameters: bytes(|layer| layer.parameters),
            trained: bytes(LayerProfile::trained_or_all),
            kept,
            context: bytes(LayerProfile::context_or_kept),
            bookkeeping: bytes(|layer| layer.bookkeeping.unwrap_or_default()),
            cast: bytes(|layer| layer.cast.unwrap_or_default()),
            profile,
        }
    }
}

/// The sums of no, one, two, … numbers.
fn running_sums<T: AddAssign + Copy + Default>(numbers: impl Iterator<Item = T>) -> Vec<T> {
    let mut sum = T::default();
    let running = numbers.map(|number| {
        sum += number;
        sum
    });
    iter::once(T::default()).chain(running).collect()
}

/// Numbers whose largest in any range is known, without looking at each.
struct RangeMax {
    /// The largest of 1, 2, 4, … numbers from each on.
    levels: Vec<Vec<u128>>,
}

impl RangeMax {
    fn new(numbers: Vec<u128>) -> Self {
        let (mut levels, mut length) = (vec![numbers], 1);
        while let Some(last) = levels.last().filter(|last| last.len() > length) {
            let pairs = last.iter().zip(&last[length..]);
            let next = pairs.map(|(one, other)| *one.max(other)).collect();
            levels.push(next);
            length *= 2;
        }
        Self { levels }
    }

    /// The largest of a range; 0 of an empty one.
    fn of(&self, range: &Range<usize>) -> u128 {
        let Some(level) = range.len().checked_ilog2() else {
            return 0;
        };
        let length = 1 << level;
        let level = &self.levels[level as usize];
        level[range.start].max(level[range.end - length])
    }
}

/// The sum over a run of layers.
fn bytes(sums: &[u128], layers: &Range<usize>) -> u64 {
    u64::try_from(sums[layers.end] - sums[layers.start]).unwrap_or(u64::MAX)
}

impl<'a> ProfiledModel<'a> {
    /// Of one profile for all devices of the machine, or one for each; there is at least one.
    pub fn new(
        profiles: impl IntoIterator<Item = Profile>,
        machine: &'a Machine,
        state: OptimizerState,
        bucket: u64,
    ) -> Self {
        let profiles = profiles.into_iter().map(SummedProfile::new);
        Self {
            machine,
            state,
            bucket,
            profiles: profiles.collect(),
        }
    }

    pub fn layers(&self) -> usize {
        self.on(0).profile.layers.len()
    }

    fn on(&self, device: usize) -> &SummedProfile {
        match self.profiles.len() {
            1 => &self.profiles[0],
            _ => &self.profiles[device],
        }
    }

    /// The first device of the machine that is like this one.
    pub fn first_like(&self, device: usize) -> usize {
        let devices = &self.machine.devices;
        let own = &devices[device];
        let is_like = |other: &DeviceSpec| other.is_like(own);
        match self.profiles.len() {
            1 => devices.iter().position(is_like).unwrap_or(device),
            _ => device,
        }
    }

    /// Whether devices differ in speed and memory alone.
    pub fn has_one_profile(&self) -> bool {
        self.profiles.len() == 1
    }

    fn parameters(&self, layers: &Range<usize>) -> u64 {
        bytes(&self.on(0).parameters, layers)
    }

    pub fn trained(&self, layers: &Range<usize>) -> u64 {
        bytes(&self.on(0).trained, layers)
    }

    /// Seconds of a micro-batch through all layers and back at speed 1, with the faster kind of forward pass,
    /// and with the gradients of weights.
    pub fn way_and_total(&self) -> (f64, f64) {
        let sums = self.on(0);
        let total = |sums: &[f64]| sums.last().copied().unwrap_or_default();
        let way = total(&sums.faster) + total(&sums.input);
        (way, way + total(&sums.weight))
    }

    /// Bytes that the input of a stage of these layers adds, with what they take from layers of other stages. The first
    /// one's is a part of the mini-batch, which is there anyway.
    pub fn input(&self, layers: &Range<usize>) -> f64 {
        match layers.start {
            0 => 0.0,
            first => self.passed(0..first, layers.clone()).iter().sum(),
        }
    }

    /// Bytes that some layers pass to those that follow: the last one's output, and the skips that these take.
    pub fn passed(&self, from: Range<usize>, to: Range<usize>) -> [f64; 2] {
        let output = self.output(from.end - 1);
        [output, self.on(0).profile.skipping(from, to) as f64]
    }

    /// Bytes of all activations of a stage.
    pub fn activations(&self, layers: &Range<usize>) -> f64 {
        self.input(layers) + bytes(&self.on(0).kept, layers) as f64
    }

    /// Bytes that a stage holds between the halves of a backward pass.
    pub fn context(&self, layers: &Range<usize>) -> f64 {
        let known = self.on(0).profile.layers[layers.start].context;
        let input = known.map_or(self.input(layers), |_| 0.0);
        input + bytes(&self.on(0).context, layers) as f64
    }

    /// Bytes that a layer returns.
    pub fn output(&self, layer: usize) -> f64 {
        self.on(0).profile.layers[layer].output as f64
    }

    /// Seconds of a forward pass of these layers, each of the faster kind.
    pub fn fastest_forward(&self, device: usize, layers: &Range<usize>) -> f64 {
        self.sum(device, &self.on(device).faster, layers)
    }

    fn sum(&self, device: usize, sums: &[f64], layers: &Range<usize>) -> f64 {
        let speed = self.machine.devices[device].speed;
        ((sums[layers.end] - sums[layers.start]) / speed).max(0.0)
    }

    /// Forward passes of these layers.
    pub fn run(&self, device: usize, layers: Range<usize>) -> Run {
        let sums = self.on(device);
        Run {
            forward: self.sum(device, &sums.forward, &layers),
            quiet: self.sum(device, &sums.quiet, &layers),
            activations: bytes(&sums.kept, &layers) as f64,
            workspace: sums.reach.of(&layers).saturating_sub(sums.kept[layers.end]) as f64,
        }
    }

    /// What a stage of these layers keeps and repeats of a micro-batch that recomputes these segments.
    fn recomputed(
        &self,
        device: usize,
        layers: &Range<usize>,
        segments: &[Range<usize>],
    ) -> Recomputed {
        let (mut all, mut begin) = (Recomputed::default(), layers.end);
        for segment in segments.iter().rev() {
            if segment.end < begin {
                all.keep(self.run(device, segment.end..begin));
            }
            let run = self.run(device, segment.clone());
            let later = segment.end..layers.end;
            all.recompute(run, self.passed(segment.clone(), later));
            begin = segment.start;
        }
        if layers.start < begin {
            all.keep(self.run(device, layers.start..begin));
        }
        all.enter(self.input(layers));
        all
    }

    /// The costs of a stage of these layers, some of which are recomputed.
    fn stage(&self, device: usize, layers: Range<usize>, recomputed: Recomputed) -> StageCosts {
        let sums = self.on(device);
        let run = self.run(device, layers.clone());
        let parameters = self.parameters(&layers);
        let rest = MemoryUse::at_rest(parameters, self.trained(&layers), self.state);
        // The input and what each layer keeps.
        let activations = self.activations(&layers);
        StageCosts {
            forward: run.forward,
            quiet: recomputed.quiet,
            again: recomputed.again,
            late: recomputed.late,
            input: self.sum(device, &sums.input, &layers),
            weight: self.sum(device, &sums.weight, &layers),
            update: 0.0,
            buckets: Vec::new(),
            output: self.output(layers.end - 1),
            memory: StageMemory {
                fixed: rest.parameters.saturating_add(rest.optimizer) as f64,
                gradients: self.gradients(&layers, self.state) as f64,
                version: parameters as f64,
                activations,
                input: recomputed.inputs,
                kept: recomputed.kept,
                rerun: recomputed.most,
                context: self.context(&layers),
                workspace: run.workspace,
            },
        }
    }

    /// The gradients of a stage of these layers that are on its device.
    fn gradients(&self, layers: &Range<usize>, state: OptimizerState) -> u64 {
        match state.offloads_gradients {
            true => self.visiting(layers),
            false => self.trained(layers),
        }
    }

    /// What trains of three consecutive layers, of those that train, at most: so many are on a device of what is
    /// elsewhere.
    fn visiting(&self, layers: &Range<usize>) -> u64 {
        const AT_ONCE: usize = 3;
        let is_trained = |&layer: &usize| self.trained(&(layer..layer + 1)) > 0;
        let layers: Vec<_> = layers.clone().filter(is_trained).collect();
        let bytes = |some: &[usize]| self.trained(&(some[0]..some[some.len() - 1] + 1));
        let at_once = layers.windows(AT_ONCE.min(layers.len()).max(1));
        at_once.map(bytes).max().unwrap_or(0)
    }

    /// The gradients of these layers in buckets, the last layers first: the part of the backward pass, or
    /// of its second half, that computes them, and their bytes.
    fn buckets(&self, device: usize, layers: Range<usize>, is_split: bool) -> Vec<(f64, u64)> {
        let sums = self.on(device);
        let seconds = |from: usize| {
            let sum = |sums: &[f64]| sums[layers.end] - sums[from];
            sum(&sums.weight) + if is_split { 0.0 } else { sum(&sums.input) }
        };
        let all = seconds(layers.start);
        let mut buckets: Vec<(f64, u64)> = Vec::new();
        for layer in layers.clone().rev() {
            let own = self.trained(&(layer..layer + 1));
            let limit = match buckets.len() {
                0 | 1 => self.bucket.min(FIRST_BUCKET),
                _ => self.bucket,
            };
            let ready = if all > 0.0 { seconds(layer) / all } else { 1.0 };
            let ready = ready.clamp(0.0, 1.0);
            match buckets.last_mut() {
                _ if own == 0 => {}
                Some((when, bytes)) if bytes.saturating_add(own) <= limit => {
                    (*when, *bytes) = (ready, bytes.saturating_add(own));
                }
                _ => buckets.push((ready, own)),
            }
        }
        buckets
    }

    /// Seconds in which a device computes the gradients of a layer's weights: with its whole backward pass, or in its
    /// second half.
    fn seconds_of_gradient(&self, device: usize, layer: usize, is_whole: bool) -> f64 {
        let layer = &self.on(device).profile.layers[layer];
        let seconds = match is_whole {
            true => layer.backward,
            false => layer.weight_or_half(),
        };
        seconds / self.machine.devices[device].speed
    }

    /// Seconds of a layer on a device for `count` micro-batches, of which it recomputes `again`.
    fn seconds(&self, device: usize, layer: usize, count: usize, again: usize) -> f64 {
        let layer = &self.on(device).profile.layers[layer];
        let kept = (count - again) as f64 * layer.forward;
        let twice = again as f64 * (layer.forward + layer.quiet_or_forward());
        (kept + twice + count as f64 * layer.backward) / self.machine.devices[device].speed
    }
}

/// Everything but the cut.
pub(super) struct Shape<'a> {
    pub model: &'a ProfiledModel<'a>,
    /// Of each worker.
    pub devices: &'a [usize],
    pub schedule: &'a Schedule,
    pub mode: &'a Mode,
    weights: WeightPolicy,
    /// Bytes of the mini-batch in each worker with the first stage.
    batch: u64,
    /// Of each worker.
    versions: Vec<usize>,
    /// By stage and micro-batch, whether all activations are kept.
    pub whole: Vec<Vec<bool>>,
    /// Of each device whose gradients lie elsewhere, see [`waits`].
    waits: Vec<Vec<f64>>,
    /// Of each worker, the shares of the passes that add to gradients which follow another one at once, and later.
    follows: Vec<[f64; 2]>,
    /// How often each worker runs each of its stages.
    pub loads: Vec<Vec<Load>>,
    /// Whether previous stages wait for a worker's last pass of every micro-batch.
    pub ends_with_gradient: bool,
    /// Whether all forward passes of each worker come first.
    begins_with_forward: bool,
    /// Of each stage, those before it that have every micro-batch on the same worker.
    beside: Vec<Vec<usize>>,
    /// If there are skips.
    waiting: Option<Waiting>,
}

/// How it is decided what a shape recomputes.
#[derive(Clone, Debug)]
pub(super) enum Mode {
    Fixed(Recompute),
    /// For each cut, layer by layer.
    ByLayer,
}

impl Mode {
    /// Whose micro-batches that keep all are those of this mode.
    fn pattern(&self) -> &Recompute {
        match self {
            Self::Fixed(recompute) => recompute,
            Self::ByLayer => &Recompute::Always,
        }
    }

    /// The one that takes least time.
    pub fn fastest(&self) -> &Recompute {
        match self {
            Self::Fixed(recompute) => recompute,
            Self::ByLayer => &Recompute::Never,
        }
    }
}

/// How often a worker runs a stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub stage: usize,
    /// Micro-batches.
    pub count: usize,
    /// Micro-batches that are recomputed.
    pub again: usize,
}

impl<'a> Shape<'a> {
    pub fn new(
        model: &'a ProfiledModel<'a>,
        devices: &'a [usize],
        schedule: &'a Schedule,
        (mode, weights): (&'a Mode, WeightPolicy),
    ) -> Result<Self, PlanError> {
        let actions = schedule.workers().iter().flatten();
        let mut passes = actions.map(|action| action.pass);
        let stages = 0..schedule.stages();
        let whole: Vec<_> = stages
            .map(|stage| mode.pattern().kept(schedule, stage))
            .collect();
        let loads = loads(schedule, &whole);
        let ends_with_gradient =
            passes.all(|pass| matches!(pass, Pass::Forward | Pass::Backward | Pass::Update));
        let fed = fed(model, devices, schedule, &loads);
        let has_skips = !model.on(0).profile.skips.is_empty();
        let waiting = has_skips
            .then(|| Waiting::new(schedule, &whole))
            .transpose()?;
        Ok(Self {
            model,
            devices,
            mode,
            weights,
            batch: (model.on(0).profile.input).saturating_mul(fed as u64),
            versions: schedule.weight_versions(weights)?,
            waits: waits(model, schedule, ends_with_gradient),
            follows: schedule.workers().iter().map(|own| follows(own)).collect(),
            loads,
            waiting,
            whole,
            ends_with_gradient,
            beside: beside(schedule),
            begins_with_forward: schedule.workers().iter().all(|own| {
                let is_forward = |action: &Action| action.pass == Pass::Forward;
                own.is_sorted_by_key(|action| !is_forward(action))
            }),
            schedule,
        })
    }

    /// The same with another mode.
    pub fn with_mode(&self, mode: &'a Mode) -> Result<Self, PlanError> {
        let options = (mode, self.weights);
        Self::new(self.model, self.devices, self.schedule, options)
    }

    pub fn is_by_layer(&self) -> bool {
        matches!(self.mode, Mode::ByLayer)
    }

    /// How many steps, or updates, the schedule has.
    pub fn updates(&self) -> f64 {
        self.schedule.updates().max(1) as f64
    }

    pub fn stages(&self) -> usize {
        self.schedule.stages()
    }

    /// The costs of a stage of these layers on a worker.
    pub fn stage(&self, worker: usize, layers: &Range<usize>, recompute: &Recompute) -> StageCosts {
        let segments = recompute.segments(layers.clone());
        let device = self.devices[worker];
        let recomputed = self.model.recomputed(device, layers, &segments);
        let mut costs = self.model.stage(device, layers.clone(), recomputed);
        costs.memory.fixed += self.copies(layers) as f64;
        if layers.start == 0 {
            costs.memory.fixed += self.batch as f64;
        }
        costs
    }

    /// Seconds in which a backward pass of a stage waits for gradients that lie elsewhere, on average. Not in the costs of
    /// [`stage`](Self::stage): those of more layers are never less.
    fn waits(&self, worker: usize, layers: &Range<usize>, costs: &StageCosts) -> f64 {
        let device = self.devices[worker];
        let (Some(waits), Some(store)) = (
            self.waits.get(device),
            self.model.machine.devices[device].store,
        ) else {
            return 0.0;
        };
        // Before a pass begins, the sum of the first layer goes and that of the last one comes.
        let (first, last) = (layers.start, layers.end - 1);
        let ends = [first, last].map(|layer| self.model.trained(&(layer..layer + 1)) as f64);
        let computes = self
            .model
            .seconds_of_gradient(device, last, self.ends_with_gradient);
        let moves = (ends[0] + ends[1]) / store - computes;
        let between = match self.ends_with_gradient {
            true => costs.forward,
            false => costs.input,
        };
        let [at_once, later] = self.follows[worker];
        let begins = at_once * moves.max(0.0) + later * (moves - between).max(0.0);
        waits[last] - waits[first] + begins
    }

    /// Seconds in which an update moves what lies off the device: states there and back, and gradients there twice, for
    /// their norm and for the update.
    fn visits(&self, ranges: &[Range<usize>]) -> f64 {
        let of_worker = |(&device, loads): (&usize, &Vec<Load>)| {
            let ways = |load: &Load| {
                let state = self.state(load.stage);
                // Gradients, and perhaps their sum over several mini-batches.
                let of_gradients =
                    u8::from(state.offloads_gradients) * (1 + u8::from(state.accumulates));
                let ways = 2 * (state.offloaded + of_gradients);
                self.model.trained(&ranges[load.stage]) as f64 * f64::from(ways)
            };
            let bytes: f64 = loads.iter().map(ways).sum();
            let store = self.model.machine.devices[device].store;
            store.map_or(0.0, |store| bytes / store)
        };
        let workers = self.devices.iter().zip(&self.loads);
        workers.map(of_worker).fold(0.0, f64::max)
    }

    /// The cut whose slowest stage takes least.
    pub fn balanced_cut(&self) -> Result<Vec<usize>, CutError> {
        let mut of_stage = vec![Vec::new(); self.stages()];
        for (&device, loads) in self.devices.iter().zip(&self.loads) {
            for load in loads {
                of_stage[load.stage].push((device, load.count, load.again));
            }
        }
        let recompute = self.mode.fastest();
        cut_chain_by(self.model.layers(), self.stages(), |stage, layer| {
            let is_again = !recompute.segments(layer..layer + 1).is_empty();
            let seconds = of_stage[stage].iter().map(|&(device, count, again)| {
                let again = if is_again { again } else { 0 };
                self.model.seconds(device, layer, count, again)
            });
            seconds.max_by(f64::total_cmp).unwrap_or_default()
        })
    }

    /// Predicts the cost of a cut.
    pub fn forecast(&self, cut: &[usize], recompute: &Recompute) -> Result<Forecast, PlanError> {
        let costs = self.costs(cut, recompute);
        let simulation = self.schedule.simulate(&costs)?;
        let held = simulation.peak_held().into_iter().enumerate();
        let memory = held.map(|(worker, held)| self.memory(worker, cut, held));
        let again = self.loads.iter().enumerate().map(|(worker, loads)| {
            let seconds = |load: &Load| {
                let costs = &costs.stages[load.stage];
                load.again as f64 * (costs.again + costs.late)
            };
            let speed = costs.speeds.get(worker).copied().unwrap_or(1.0);
            loads.iter().map(seconds).sum::<f64>() / speed
        });
        Ok(Forecast {
            balance: cut.to_vec(),
            recompute: recompute.clone(),
            // An update begins when all passes are over: it needs the norm of all gradients.
            step_time: simulation.makespan() / self.updates() + self.visits(&ranges(cut)),
            bubble: simulation.bubble(),
            utilisation: simulation.utilisation(),
            memory: memory.collect(),
            recomputed: again.fold(0.0, f64::max) / self.updates(),
        })
    }

    /// The first worker whose device is too small.
    pub fn misfit(&self, forecast: &Forecast) -> Option<Misfit> {
        misfit(self.model.machine, self.devices, forecast)
    }

    /// The memory of a worker that holds so much at the peak of its passes.
    pub fn memory(&self, worker: usize, cut: &[usize], held: HeldBytes) -> MemoryUse {
        let ranges = ranges(cut);
        let rest = self.besides_held(worker, &ranges);
        let mut memory = MemoryUse {
            gradients: held.gradients as u64,
            inputs: rest.inputs.saturating_add(held.inputs as u64),
            activations: (held.activations + held.contexts) as u64,
            workspace: held.workspace as u64,
            ..rest
        };
        // At an update, all gradients are there, and what passes need is gone.
        let gradients = self.loads[worker].iter();
        let gradients = gradients.map(|load| self.gradients(load.stage, &ranges[load.stage]));
        let visiting = self.visiting_states(worker, &ranges);
        let of_update = gradients.fold(visiting, u64::saturating_add);
        let of_passes = [memory.inputs, memory.activations, memory.workspace];
        let of_passes = (of_passes.into_iter()).fold(memory.gradients, u64::saturating_add);
        memory.optimizer = (memory.optimizer).saturating_add(of_update.saturating_sub(of_passes));
        memory
    }

    /// The bytes of its device that a worker can hold for micro-batches: negative if even an update does not fit.
    pub fn free_for_passes(&self, worker: usize, cut: &[usize]) -> f64 {
        let Some(has) = self.model.machine.devices[self.devices[worker]].memory else {
            return f64::INFINITY;
        };
        if self.memory(worker, cut, HeldBytes::default()).total() > has {
            return f64::NEG_INFINITY;
        }
        has as f64 - self.besides_held(worker, &ranges(cut)).total() as f64
    }

    /// The memory of a worker's passes without what they hold for micro-batches and their sums of gradients.
    fn besides_held(&self, worker: usize, ranges: &[Range<usize>]) -> MemoryUse {
        let rest = self.loads[worker].iter().map(|load| {
            let parameters = self.model.parameters(&ranges[load.stage]);
            let trained = self.model.trained(&ranges[load.stage]);
            MemoryUse::at_rest(parameters, trained, self.state(load.stage))
        });
        let mut rest = rest.fold(MemoryUse::default(), |sum, stage| sum + stage);
        if self.schedule.is_asynchronous() {
            // What a window starts with is kept, in case that it fails.
            let versions = 1 + self.versions[worker] as u64;
            rest.parameters = rest.parameters.saturating_mul(versions);
            rest.optimizer = rest.optimizer.saturating_mul(2);
        }
        let copies = self.loads[worker]
            .iter()
            .map(|load| self.copies(&ranges[load.stage]));
        let waiting = self.loads[worker].iter();
        let waiting = waiting.map(|load| self.waiting(load.stage, ranges));
        MemoryUse {
            parameters: copies.fold(rest.parameters, u64::saturating_add),
            gradients: 0,
            inputs: waiting.fold(0, u64::saturating_add),
            batch: self.batch * u64::from(self.has_first(worker)),
            ..rest
        }
    }

    /// Bytes of messages that wait on a worker with a stage, besides those of micro-batches in flight there.
    fn waiting(&self, stage: usize, ranges: &[Range<usize>]) -> u64 {
        let profile = &self.model.on(0).profile;
        let of_worker = |&worker: &usize| {
            let skips = self.waiting.as_ref();
            let skips = skips.map_or(0, |skips| skips.bytes(profile, ranges, (worker, stage)));
            match self.model.machine.devices[self.devices[worker]].is_cpu() {
                true => skips, // messages share the memory of those who sent them
                false => skips.saturating_add(self.of_neighbours(stage, ranges)),
            }
        };
        let replicas = self.schedule.replicas(stage).iter();
        replicas.map(of_worker).max().unwrap_or(0)
    }

    /// Bytes of a message from each neighbour of a stage on other workers: it arrives while another one is used.
    fn of_neighbours(&self, stage: usize, ranges: &[Range<usize>]) -> u64 {
        let before = stage.checked_sub(1).map(|before| (before, stage));
        let after = (stage + 1 < ranges.len()).then_some((stage, stage + 1));
        let apart = |&(from, to): &(usize, usize)| !self.beside[to].contains(&from);
        let boundaries = before.into_iter().chain(after).filter(apart);
        let bytes = boundaries.map(|(from, _)| self.model.output(ranges[from].end - 1) as u64);
        bytes.fold(0, u64::saturating_add)
    }

    fn has_first(&self, worker: usize) -> bool {
        self.loads[worker].iter().any(|load| load.stage == 0)
    }

    /// Bytes of the copies of these layers that a step works on. They have tensors of their own in mixed precision
    /// alone, which they share: the model's own, those that forward passes update, and if there may be recomputation,
    /// one for each of both passes, though layers without statistics need only that of forward passes. Where all
    /// forward passes come first, these two are gone when backward passes begin.
    fn copies(&self, layers: &Range<usize>) -> u64 {
        let copies = match self.mode {
            Mode::Fixed(Recompute::Never) => 2,
            _ if self.begins_with_forward => 2,
            _ => 4,
        };
        let sums = self.model.on(0);
        let bookkeeping = bytes(&sums.bookkeeping, layers).saturating_mul(copies);
        bookkeeping.saturating_add(bytes(&sums.cast, layers))
    }

    /// The optimizer's state that is on the device while a parameter is updated: its own, that of the next one, and that
    /// of the last one, of which none is larger than its layer's.
    fn visiting_states(&self, worker: usize, ranges: &[Range<usize>]) -> u64 {
        let loads = self.loads[worker].iter();
        let of_stages = loads.map(|load| self.model.visiting(&ranges[load.stage]));
        let most = of_stages.max().unwrap_or(0);
        most.saturating_mul(u64::from(self.model.state.offloaded))
    }

    /// Bytes that enter a stage from others of its worker. Without recomputation, they are among what these keep.
    fn shared(&self, stage: usize, ranges: &[Range<usize>]) -> f64 {
        let entering = self.beside[stage].iter().map(|&before| {
            let passed = self
                .model
                .passed(ranges[before].clone(), ranges[stage].clone());
            passed[usize::from(before + 1 < stage)..]
                .iter()
                .sum::<f64>()
        });
        entering.sum()
    }

    /// The gradients of a stage of these layers that are on its device.
    pub fn gradients(&self, stage: usize, layers: &Range<usize>) -> u64 {
        self.model.gradients(layers, self.state(stage))
    }

    /// What training keeps for each parameter of a stage: with replicas, which add up their gradients, these are on the
    /// device.
    fn state(&self, stage: usize) -> OptimizerState {
        let state = self.model.state;
        let is_replicated = self.schedule.replicas(stage).len() > 1;
        OptimizerState {
            offloads_gradients: state.offloads_gradients && !is_replicated,
            ..state
        }
    }

    pub fn costs(&self, cut: &[usize], recompute: &Recompute) -> Costs {
        let ranges = ranges(cut);
        let mut stages = Vec::with_capacity(ranges.len());
        for (stage, layers) in ranges.iter().enumerate() {
            let replicas = self.schedule.replicas(stage);
            let own = |&worker: &usize| (worker, self.stage(worker, layers, recompute));
            // The costs are those of the slowest replica.
            let slowest =
                (replicas.iter().map(own)).max_by(|a, b| seconds(&a.1).total_cmp(&seconds(&b.1)));
            let (worker, mut costs) = slowest.unwrap_or_default();
            costs.memory.gradients = self.gradients(stage, layers) as f64;
            costs.memory.fixed += self.waiting(stage, &ranges) as f64;
            if matches!(self.mode, Mode::Fixed(Recompute::Never)) {
                costs.memory.activations -= self.shared(stage, &ranges);
            }
            costs.buckets = self.buckets(replicas, worker, layers.clone());
            stages.push(costs);
        }
        let speeds = self.speeds(&stages, &ranges, recompute);
        // A worker that waits is no slower than its costs.
        for (stage, (layers, costs)) in ranges.iter().zip(&mut stages).enumerate() {
            if let [worker] = *self.schedule.replicas(stage) {
                costs.weight += self.waits(worker, layers, costs);
            }
        }
        let links = (1..ranges.len()).map(|stage| self.link(stage - 1, stage));
        let mut links: Vec<_> = links.collect();
        if links.is_empty() {
            links.push(Link::default());
        }
        Costs {
            speeds,
            stages,
            links,
            skips: self.skips(&ranges),
            recompute: recompute.clone(),
            weights: self.weights,
        }
    }

    /// The speed of each worker, relative to the slowest replicas of its stages. Empty if all are 1.
    fn speeds(
        &self,
        slowest: &[StageCosts],
        ranges: &[Range<usize>],
        recompute: &Recompute,
    ) -> Vec<f64> {
        let speed = |(worker, loads): (usize, &Vec<Load>)| {
            let (mut all, mut own) = (0.0, 0.0);
            for &Load { stage, count, .. } in loads {
                all += count as f64 * seconds(&slowest[stage]);
                own += count as f64 * seconds(&self.stage(worker, &ranges[stage], recompute));
            }
            if own > 0.0 { all / own } else { 1.0 }
        };
        let is_replicated = self.loads.len() > 1 && self.has_replicas();
        let workers = self.loads.iter().enumerate().filter(|_| is_replicated);
        let speeds: Vec<f64> = workers.map(speed).collect();
        let are_equal = speeds.iter().all(|&speed| speed == 1.0);
        if are_equal { Vec::new() } else { speeds }
    }

    /// Workers with the same stages.
    pub fn workers_with_same_stages(&self) -> Vec<Vec<usize>> {
        let stages = |worker: usize| self.loads[worker].iter().map(|load| load.stage);
        let mut all: Vec<Vec<usize>> = Vec::new();
        for worker in 0..self.loads.len() {
            let mut known = all.iter_mut();
            match known.find(|known| stages(known[0]).eq(stages(worker))) {
                Some(known) => known.push(worker),
                None => all.push(vec![worker]),
            }
        }
        all
    }

    /// Sorts workers with the same stages by the time of a micro-batch.
    pub fn slowest_first(&self, workers: &mut [usize], ranges: &[Range<usize>]) {
        let of_stage = |worker: usize, load: &Load| {
            seconds(&self.stage(worker, &ranges[load.stage], &Recompute::Never))
        };
        workers.sort_by_cached_key(|&worker| {
            let loads = self.loads[worker].iter();
            let all: f64 = loads.map(|load| of_stage(worker, load)).sum();
            Reverse(all.to_bits()) // positive numbers have the order of their bits
        });
    }

    /// Whether workers that share a stage share all of theirs.
    pub fn has_whole_replicas(&self) -> bool {
        let all = self.workers_with_same_stages();
        let owners = all.iter().flat_map(|workers| &self.loads[workers[0]]);
        owners.count() == self.stages()
    }

    /// Whether a stage has several.
    fn has_replicas(&self) -> bool {
        (0..self.stages()).any(|stage| self.schedule.replicas(stage).len() > 1)
    }

    /// The skips that stages send to others over links that take time.
    fn skips(&self, ranges: &[Range<usize>]) -> Vec<SkipCosts> {
        let mut bytes: BTreeMap<[usize; 2], f64> = BTreeMap::new();
        for skip in &self.model.on(0).profile.skips {
            let from = stage_of(skip.from, ranges);
            // Layers of a stage get a value once.
            let takers = skip.to.iter().map(|&layer| stage_of(layer, ranges));
            let takers: BTreeSet<_> = takers.collect();
            for to in takers.into_iter().filter(|&to| to != from) {
                *bytes.entry([from, to]).or_default() += skip.bytes as f64;
            }
        }
        let costs = bytes.into_iter().map(|([from, to], bytes)| SkipCosts {
            from,
            to,
            bytes,
            link: self.link(from, to),
        });
        costs.filter(|skip| skip.link != Link::default()).collect()
    }

    /// The slowest connection that a message from a stage to a later one takes.
    fn link(&self, from: usize, to: usize) -> Link {
        let [before, after] = [from, to].map(|stage| self.schedule.replicas(stage));
        if let ([before], [after]) = (before, after) {
            return self.connection(*before, *after);
        }
        let worker = |stage, micro_batch| self.schedule.worker_of(stage, micro_batch);
        let pairs = (0..self.schedule.micro_batches()).map(|i| (worker(from, i), worker(to, i)));
        let pairs: BTreeSet<_> = pairs.collect();
        let links = pairs.into_iter().map(|(a, b)| self.connection(a, b));
        links.fold(Link::default(), Link::or_slower)
    }

    fn connection(&self, a: usize, b: usize) -> Link {
        let devices = self.devices;
        let level = self.model.machine.link(devices[a], devices[b]);
        level.copied().map_or(Link::default(), Link::from)
    }

    /// The gradients of a stage of these layers, as its replicas add them up. `worker` is one of them.
    ///
    /// In a ring, each replica sends and receives all but one of its slices twice (Patarasuk and Yuan,
    /// 2009).
    fn buckets(&self, replicas: &[usize], worker: usize, layers: Range<usize>) -> Vec<Bucket> {
        if replicas.len() < 2 {
            return Vec::new();
        }
        let links = (replicas.windows(2)).map(|pair| self.connection(pair[0], pair[1]));
        let link = links.fold(Link::default(), Link::or_slower);
        let count = replicas.len() as f64;
        let bucket = |(ready, bytes)| Bucket {
            ready,
            seconds: 2.0 * (count - 1.0) * (link.latency + bytes as f64 / count / link.bandwidth),
        };
        let is_split = !self.ends_with_gradient;
        let buckets = (self.model).buckets(self.devices[worker], layers, is_split);
        buckets.into_iter().map(bucket).collect()
    }
}

/// Seconds of a micro-batch, forward and backward.
fn seconds(costs: &StageCosts) -> f64 {
    costs.forward + costs.input + costs.weight
}

/// The micro-batches whose inputs a worker with the first stage has in memory: on a CPU those of a mini-batch, elsewhere
/// those that were copied there, which are in flight.
fn fed(
    model: &ProfiledModel,
    devices: &[usize],
    schedule: &Schedule,
    loads: &[Vec<Load>],
) -> usize {
    let on_cpus = schedule.replicas(0).iter();
    let on_cpus = on_cpus.filter(|&&worker| model.machine.devices[devices[worker]].is_cpu());
    let of_first = on_cpus.flat_map(|&worker| &loads[worker]);
    let of_first = of_first.filter(|load| load.stage == 0);
    let of_mini_batches = of_first.map(|load| load.count / schedule.updates().max(1));
    let in_flight = schedule.peak_in_flight()[0];
    of_mini_batches.fold(in_flight, usize::max)
}

/// Of each stage, those before it that have every micro-batch on the same worker.
fn beside(schedule: &Schedule) -> Vec<Vec<usize>> {
    let are_together = |stage: usize, before: usize| {
        let is_together =
            |index| schedule.worker_of(stage, index) == schedule.worker_of(before, index);
        schedule.replicas(stage) == schedule.replicas(before)
            && (0..schedule.micro_batches()).all(is_together)
    };
    let stages = 0..schedule.stages();
    let of_stage = |stage| {
        (0..stage)
            .filter(|&before| are_together(stage, before))
            .collect()
    };
    stages.map(of_stage).collect()
}

fn loads(schedule: &Schedule, whole: &[Vec<bool>]) -> Vec<Vec<Load>> {
    let mut loads: Vec<Vec<Load>> = vec![Vec::new(); schedule.workers().len()];
    for (stage, whole) in whole.iter().enumerate() {
        for &worker in schedule.replicas(stage) {
            let is_own = |action: &&Action| action.stage == stage && action.pass == Pass::Forward;
            let own = schedule.workers()[worker].iter().filter(is_own);
            let (mut count, mut again) = (0, 0);
            for action in own {
                count += 1;
                again += usize::from(!whole[action.micro_batch]);
            }
            loads[worker].push(Load {
                stage,
                count,
                again,
            });
        }
    }
    loads
}

/// A worker whose device is too small.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Misfit {
    pub worker: usize,
    pub needs: u64,
    pub has: u64,
}

impl Misfit {
    /// The memory it needs, relative to the device's.
    pub fn factor(self) -> f64 {
        self.needs as f64 / self.has as f64
    }
}

/// The first worker whose device is too small.
pub(super) fn misfit(machine: &Machine, devices: &[usize], forecast: &Forecast) -> Option<Misfit> {
    let memory = devices.iter().zip(&forecast.memory).enumerate();
    let mut misfits = memory.filter_map(|(worker, (&device, memory))| {
        let has = machine.devices[device].memory?;
        let needs = memory.total();
        (needs > has).then_some(Misfit { worker, needs, has })
    });
    misfits.next()
}

/// For each device, the seconds in which backward passes of the first layers wait for gradients that lie elsewhere, but
/// at their begin: while a layer is computed, the sum of the layer after it goes there, and its own comes, but for the
/// first micro-batch. Empty if gradients are on the device.
fn waits(model: &ProfiledModel, schedule: &Schedule, ends_with_gradient: bool) -> Vec<Vec<f64>> {
    if !model.state.offloads_gradients {
        return Vec::new();
    }
    let first = 1.0 / schedule.micro_batches() as f64;
    let of_device = |(device, spec): (usize, &DeviceSpec)| {
        let seconds = (1..model.layers()).map(|after| {
            let bytes = |layer: usize| model.trained(&(layer..layer + 1)) as f64;
            let computes = model.seconds_of_gradient(device, after - 1, ends_with_gradient);
            let waits = |bytes: f64| {
                let moves = spec.store.map_or(0.0, |store| bytes / store);
                (moves - computes).max(0.0)
            };
            let (goes, comes) = (bytes(after), bytes(after - 1));
            first * waits(goes) + (1.0 - first) * waits(goes + comes)
        });
        running_sums(seconds)
    };
    model
        .machine
        .devices
        .iter()
        .enumerate()
        .map(of_device)
        .collect()
}

fn follows(actions: &[Action]) -> [f64; 2] {
    let adds = |action: &Action| action.pass.computes_weight_gradients();
    let all = actions.iter().filter(|action| adds(action)).count();
    let pairs = actions.windows(2).filter(|pair| adds(&pair[1]));
    let at_once = pairs.filter(|pair| adds(&pair[0])).count();
    let later = all.saturating_sub(1).saturating_sub(at_once);
    [at_once, later].map(|count| count as f64 / all.max(1) as f64)
}
