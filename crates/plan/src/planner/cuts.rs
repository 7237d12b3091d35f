//! Finds the best cut of a shape.
//!
//! Cuts are tried stage by stage. A step takes at least the time until the first micro-batch reaches a
//! worker, all its passes, and the way of the last gradient back to the first stage. If that is no better
//! than the best cut so far, all cuts with the same first stages are skipped.

use stovepipe_schedule::{Recompute, StageCosts};

use super::{
    Forecast, PlanError,
    by_layer::{ByLayer, Open},
    choices::Choices,
    shape::{Load, Mode, Shape},
};

/// Limits the work, so that planning takes seconds.
pub(super) struct Budget {
    /// Actions that may still be simulated.
    pub actions: usize,
    /// Whether it was enough so far.
    pub exact: bool,
}

const ACTIONS: usize = 10_000_000;
/// Combinations that take as long to look at as an action to simulate.
const COMBINATIONS_AN_ACTION: usize = 8;
const ACTIONS_BY_LAYER: usize = 8 * ACTIONS;
/// For one shape: first stages of cuts that are tried, and simulated actions.
const BEGINNINGS: usize = 50_000;
const ACTIONS_OF_SHAPE: usize = 500_000;
/// Smaller differences are rounding.
const ROUNDING: f64 = 1.0 - 1e-12;
/// Longer than any step.
const MISFIT: f64 = 1e200;

impl Budget {
    pub fn full(is_by_layer: bool) -> Self {
        let actions = match is_by_layer {
            true => ACTIONS_BY_LAYER,
            false => ACTIONS,
        };
        let exact = true;
        Self { actions, exact }
    }
}

/// The best of several shapes, each with its number.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Steps that take as long do not count.
    pub limit: f64,
    /// The fastest that fits.
    pub fitting: Option<(usize, Forecast)>,
    /// The one that comes closest if none fits, and the memory it needs relative to the device's.
    pub misfit: Option<(usize, Forecast, f64)>,
}

impl Default for Found {
    fn default() -> Self {
        Self {
            limit: f64::INFINITY,
            fitting: None,
            misfit: None,
        }
    }
}

impl Found {
    /// The fastest that fits, else what comes closest.
    pub fn best(self) -> Option<Forecast> {
        let misfit = self.misfit.map(|(_, forecast, _)| forecast);
        let fitting = self.fitting.map(|(_, forecast)| forecast);
        fitting.or(misfit)
    }

    /// The seconds of the fastest that fits.
    pub fn fastest(&self) -> f64 {
        let fitting = self.fitting.as_ref();
        fitting.map_or(f64::INFINITY, |(_, best)| best.step_time)
    }

    /// Whether a step of at least `bound` seconds is no better.
    pub fn is_hopeless(&self, bound: f64) -> bool {
        let best = self.fastest().min(self.limit);
        best.is_finite() && bound >= best * ROUNDING
    }

    /// Keeps a forecast if it is the best so far.
    fn consider(&mut self, number: usize, forecast: Forecast, shape: &Shape) {
        match shape.misfit(&forecast) {
            None if !self.is_hopeless(forecast.step_time) => {
                self.fitting = Some((number, forecast));
            }
            None => {}
            Some(misfit) => {
                let known = self.misfit.as_ref().map(|(.., factor)| *factor);
                if known.is_none_or(|known| misfit.factor() < known) {
                    self.misfit = Some((number, forecast, misfit.factor()));
                }
            }
        }
    }
}

/// Cuts that are tried by layer, too: the best of these.
static FIXED: [Mode; 2] = [
    Mode::Fixed(Recompute::Never),
    Mode::Fixed(Recompute::Always),
];

/// Finds the best cut of a shape, if it is better than the best of other shapes.
pub(super) fn search(
    shape: &Shape,
    number: usize,
    found: &mut Found,
    work: (&mut Budget, &mut Choices),
) -> Result<(), PlanError> {
    let mut begin = shape.balanced_cut()?;
    let mut seeds = vec![begin.clone()];
    if shape.is_by_layer() {
        // So that it is no slower than these.
        for mode in &FIXED {
            let fixed = shape.with_mode(mode)?;
            let mut found = Found::default();
            search(&fixed, number, &mut found, (&mut *work.0, &mut *work.1))?;
            seeds.extend(found.best().map(|best| best.balance));
        }
    }
    let mut search = Search::new(shape, number, found, work);
    let mut fastest = f64::INFINITY;
    for seed in seeds {
        let time = search.evaluate(&seed)?;
        if time < fastest {
            (fastest, begin) = (time, seed);
        }
    }
    let is_whole = search.extend(&mut Beginning::new(shape))?;
    if !is_whole {
        search.budget.exact = false;
        search.actions = actions_of(shape) / 4;
        search.climb(begin)?;
    }
    Ok(())
}

/// Looks for the best of one cut.
pub(super) fn try_cut(
    shape: &Shape,
    cut: &[usize],
    found: &mut Found,
    work: (&mut Budget, &mut Choices),
) -> Result<(), PlanError> {
    Search::new(shape, 0, found, work).evaluate(cut).map(drop)
}

/// The actions that may be simulated for one shape.
fn actions_of(shape: &Shape) -> usize {
    // For each cut there is more to try.
    match shape.is_by_layer() {
        true => 4 * ACTIONS_OF_SHAPE,
        false => ACTIONS_OF_SHAPE,
    }
}

struct Search<'a, 'b> {
    shape: &'a Shape<'b>,
    number: usize,
    found: &'a mut Found,
    by_layer: Option<ByLayer<'a, 'b>>,
    choices: &'a mut Choices,
    budget: &'a mut Budget,
    beginnings: usize,
    actions: usize,
}

impl<'a, 'b> Search<'a, 'b> {
    fn new(
        shape: &'a Shape<'b>,
        number: usize,
        found: &'a mut Found,
        (budget, choices): (&'a mut Budget, &'a mut Choices),
    ) -> Self {
        Self {
            shape,
            number,
            found,
            by_layer: (shape.is_by_layer()).then(|| ByLayer::new(shape)),
            choices,
            budget,
            beginnings: BEGINNINGS,
            actions: actions_of(shape),
        }
    }

    /// The seconds of a step with a cut. If it does not fit, more seconds than any step takes: the more, the
    /// more memory is missing.
    fn evaluate(&mut self, cut: &[usize]) -> Result<f64, PlanError> {
        let Some(by_layer) = &mut self.by_layer else {
            return self.simulate(cut, self.shape.mode.fastest());
        };
        let mut open = by_layer.open(cut, self.choices);
        self.budget.exact &= open.is_whole;
        let looked_at = std::mem::take(&mut by_layer.looked_at) / COMBINATIONS_AN_ACTION;
        self.spend(looked_at);
        self.decide(&mut open)
    }

    /// Tries what a cut may recompute, worker by worker.
    fn decide(&mut self, open: &mut Open) -> Result<f64, PlanError> {
        let Some(worker) = open.next() else {
            let (cut, recompute) = open.decided();
            return self.simulate(cut, &recompute);
        };
        let mut best = f64::INFINITY;
        let count = open.count(worker);
        for number in 0..count {
            let before = open.decide(number);
            // What comes closest is of interest where nothing fits.
            let is_worth_it = count == 1 || {
                self.count_actions();
                !self.found.is_hopeless(open.bound(self.shape)?)
            };
            if is_worth_it {
                best = best.min(self.decide(open)?);
            }
            open.take_back(before);
            if self.actions == 0 || self.budget.actions == 0 {
                self.budget.exact = false;
                break;
            }
        }
        Ok(best)
    }

    fn count_actions(&mut self) {
        self.spend(self.shape.schedule.workers().iter().map(Vec::len).sum());
    }

    fn spend(&mut self, actions: usize) {
        self.budget.actions = self.budget.actions.saturating_sub(actions);
        self.actions = self.actions.saturating_sub(actions);
    }

    fn simulate(&mut self, cut: &[usize], recompute: &Recompute) -> Result<f64, PlanError> {
        self.count_actions();
        let forecast = self.shape.forecast(cut, recompute)?;
        let time = match self.shape.misfit(&forecast) {
            None => forecast.step_time,
            Some(misfit) => MISFIT * misfit.factor(),
        };
        self.found.consider(self.number, forecast, self.shape);
        Ok(time)
    }

    fn is_spent(&self) -> bool {
        self.beginnings == 0 || self.actions == 0 || self.budget.actions == 0
    }

    /// Tries all cuts with these first stages. Returns whether there was time for all.
    fn extend(&mut self, beginning: &mut Beginning) -> Result<bool, PlanError> {
        let stage = beginning.cut.len();
        let stages_left = self.shape.stages() - stage;
        let layers_left = self.shape.model.layers() - beginning.layers;
        if stages_left == 0 {
            self.evaluate(&beginning.cut)?;
            return Ok(true);
        }
        let counts = match stages_left {
            1 => layers_left..=layers_left,
            _ => 1..=layers_left + 1 - stages_left,
        };
        for count in counts {
            if self.is_spent() {
                return Ok(false);
            }
            self.beginnings -= 1;
            let before = beginning.clone();
            beginning.push(self.shape, count);
            // More layers would be worse.
            let is_over = self.found.is_hopeless(beginning.bound) || beginning.is_too_large;
            let continues = is_over || self.extend(beginning)?;
            *beginning = before;
            if !continues {
                return Ok(false);
            }
            if is_over {
                break;
            }
        }
        Ok(true)
    }

    /// Moves single layers between neighbours while the step gets faster.
    fn climb(&mut self, mut cut: Vec<usize>) -> Result<(), PlanError> {
        let mut best = f64::INFINITY;
        loop {
            let mut better = None;
            for boundary in 1..cut.len() {
                for (from, to) in [(boundary - 1, boundary), (boundary, boundary - 1)] {
                    if cut[from] == 1 || self.actions == 0 || self.budget.actions == 0 {
                        continue;
                    }
                    let mut moved = cut.clone();
                    moved[from] -= 1;
                    moved[to] += 1;
                    let time = self.evaluate(&moved)?;
                    if time < best * ROUNDING {
                        best = time;
                        better = Some(moved);
                    }
                }
            }
            match better {
                Some(moved) => cut = moved,
                None => return Ok(()),
            }
        }
    }
}

#[derive(Clone, Default)]
struct Beginning {
    cut: Vec<usize>,
    layers: usize,
    /// Seconds of a micro-batch forward through these stages, and backward.
    forward: f64,
    backward: f64,
    /// For each worker that has a stage so far: seconds before and after its passes, and of its passes.
    around: Vec<f64>,
    busy: Vec<f64>,
    /// A lower bound of the seconds of a step or an update.
    bound: f64,
    fixed: Vec<f64>,
    /// Whether the parameters of a worker do not fit.
    is_too_large: bool,
}

impl Beginning {
    fn new(shape: &Shape) -> Self {
        let workers = shape.loads.len();
        Self {
            around: vec![f64::NAN; workers],
            busy: vec![0.0; workers],
            fixed: vec![0.0; workers],
            ..Self::default()
        }
    }

    fn push(&mut self, shape: &Shape, count: usize) {
        let stage = self.cut.len();
        let layers = self.layers..self.layers + count;
        let (mut forward, mut backward) = (f64::INFINITY, f64::INFINITY);
        for &worker in shape.schedule.replicas(stage) {
            let costs = shape.stage(worker, &layers, shape.mode.fastest());
            self.load(shape, worker, stage, &costs);
            let device = shape.devices[worker];
            forward = forward.min(shape.model.fastest_forward(device, &layers));
            backward = backward.min(costs.input + costs.weight);
        }
        self.forward += forward;
        self.backward += backward;
        self.layers = layers.end;
        self.cut.push(count);
    }

    fn load(&mut self, shape: &Shape, worker: usize, stage: usize, costs: &StageCosts) {
        if self.around[worker].is_nan() {
            // Weight gradients may be computed after the way back.
            let is_last = shape.ends_with_gradient;
            let back = if is_last { self.backward } else { 0.0 };
            self.around[worker] = self.forward + back;
        }
        let own = shape.loads[worker].iter().find(|load| load.stage == stage);
        self.busy[worker] += own.map_or(0.0, |load| seconds(load, costs));
        let all = self.around[worker] + self.busy[worker];
        self.bound = self.bound.max(all / shape.updates());
        self.fixed[worker] += costs.memory.fixed + costs.memory.gradients;
        let device = &shape.model.machine.devices[shape.devices[worker]];
        let memory = device.memory.map_or(f64::INFINITY, |bytes| bytes as f64);
        self.is_too_large |= self.fixed[worker] > memory;
    }
}

/// Seconds of a worker's passes of a stage.
fn seconds(load: &Load, costs: &StageCosts) -> f64 {
    let kept = (load.count - load.again) as f64 * costs.forward;
    let twice = load.again as f64 * (costs.quiet + costs.again + costs.late);
    kept + twice + load.count as f64 * (costs.input + costs.weight)
}
