//! Finds the best cut of a shape.
//!
//! Cuts are tried stage by stage. A step takes at least the time until the first micro-batch reaches a
//! worker, all its passes, and the way of the last gradient back to the first stage. If that is no better
//! than the best cut so far, all cuts with the same first stages are skipped.

use stovepipe_schedule::StageCosts;

use super::{
    Forecast, PlanError,
    shape::{Load, Shape},
};

/// Limits the work, so that planning takes seconds.
pub(super) struct Budget {
    /// Actions that may still be simulated.
    actions: usize,
    /// Whether it was enough so far.
    pub exact: bool,
}

const ACTIONS: usize = 10_000_000;
/// For one shape: first stages of cuts that are tried, and simulated actions.
const BEGINNINGS: usize = 50_000;
const ACTIONS_OF_SHAPE: usize = 500_000;
/// Smaller differences are rounding.
const ROUNDING: f64 = 1.0 - 1e-12;

impl Budget {
    pub const FULL: Self = Self {
        actions: ACTIONS,
        exact: true,
    };
}

/// The best of several shapes, each with its number.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// The fastest that fits.
    pub fitting: Option<(usize, Forecast)>,
    /// The one that comes closest if none fits, and the memory it needs relative to the device's.
    pub misfit: Option<(usize, Forecast, f64)>,
}

impl Found {
    /// Whether a step of at least `bound` seconds is no better.
    pub fn is_hopeless(&self, bound: f64) -> bool {
        let best = self.fitting.as_ref();
        best.is_some_and(|(_, best)| bound >= best.step_time * ROUNDING)
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

/// Finds the best cut of a shape, if it is better than the best of other shapes.
pub(super) fn search(
    shape: &Shape,
    number: usize,
    found: &mut Found,
    budget: &mut Budget,
) -> Result<(), PlanError> {
    let mut search = Search {
        shape,
        number,
        found,
        budget,
        beginnings: BEGINNINGS,
        actions: ACTIONS_OF_SHAPE,
    };
    let balanced = shape.balanced_cut()?;
    search.simulate(&balanced)?;
    let is_whole = search.extend(&mut Beginning::new(shape))?;
    if !is_whole {
        search.budget.exact = false;
        search.actions = ACTIONS_OF_SHAPE / 4;
        search.climb(balanced)?;
    }
    Ok(())
}

struct Search<'a, 'b> {
    shape: &'a Shape<'b>,
    number: usize,
    found: &'a mut Found,
    budget: &'a mut Budget,
    beginnings: usize,
    actions: usize,
}

impl Search<'_, '_> {
    fn simulate(&mut self, cut: &[usize]) -> Result<f64, PlanError> {
        let actions: usize = self.shape.schedule.workers().iter().map(Vec::len).sum();
        self.budget.actions = self.budget.actions.saturating_sub(actions);
        self.actions = self.actions.saturating_sub(actions);
        let forecast = self.shape.forecast(cut)?;
        let time = match self.shape.misfit(&forecast) {
            None => forecast.step_time,
            Some(_) => f64::INFINITY,
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
            self.simulate(&beginning.cut.clone())?;
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
                    let time = self.simulate(&moved)?;
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
            let costs = shape.stage(worker, layers.clone());
            self.load(shape, worker, stage, &costs);
            forward = forward.min(costs.forward.min(costs.quiet));
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
        self.fixed[worker] += costs.memory.fixed;
        let device = &shape.model.machine.devices[shape.devices[worker]];
        let memory = device.memory.map_or(f64::INFINITY, |bytes| bytes as f64);
        self.is_too_large |= self.fixed[worker] > memory;
    }
}

/// Seconds of a worker's passes of a stage.
fn seconds(load: &Load, costs: &StageCosts) -> f64 {
    let kept = (load.count - load.again) as f64 * costs.forward;
    let twice = load.again as f64 * (costs.quiet + costs.forward);
    kept + twice + load.count as f64 * (costs.input + costs.weight)
}
