//! Chooses what to recompute for a cut: for each worker, what fits its device, and of that what makes the
//! step fastest. Replicas recompute the same layers: what fits the devices of all.
//!
//! The order of a worker's passes alone says what it holds at once. So what fits is known before any step
//! is simulated. A step that takes for each worker the least of each time is no longer than any choice
//! allows: workers are fixed one after the other, and what cannot be better is skipped.

use std::{borrow::Borrow, collections::HashMap, ops::Range, rc::Rc};

use stovepipe_schedule::{Costs, Pass, Recompute, Segments};

use super::{
    PlanError,
    choices::{Choice, Choices},
    ranges::ranges,
    recomputed::Recomputed,
    shape::{Load, Shape},
};

/// The most combinations of choices for the stages of one worker that are looked at.
const MOST_COMBINATIONS: usize = 20_000;

/// What a worker holds for micro-batches at one time, in micro-batches of each of its stages.
#[derive(Clone, Debug, PartialEq)]
struct Moment(Vec<Counts>);

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    /// That keep all.
    whole: f64,
    /// That will be recomputed.
    waiting: f64,
    /// That are recomputed now.
    going: f64,
    /// Whose gradients of weights are missing.
    contexts: f64,
    /// Whether there is a sum of gradients.
    summed: f64,
    /// Whether a pass runs that is not a recomputed one.
    running: f64,
}

impl Counts {
    fn values(self) -> [f64; 6] {
        [
            self.whole,
            self.waiting,
            self.going,
            self.contexts,
            self.summed,
            self.running,
        ]
    }
}

impl Moment {
    /// Bytes of choices for the stages.
    fn held(&self, choices: &[&Choice], bytes: &[Bytes]) -> f64 {
        let stages = self.0.iter().zip(choices).zip(bytes);
        stages
            .map(|((counts, choice), bytes)| held(*counts, &choice.costs, *bytes))
            .sum()
    }

    fn is_within(&self, other: &Self) -> bool {
        let pairs = self.0.iter().zip(&other.0);
        pairs.into_iter().all(|(own, other)| {
            let pairs = own.values().into_iter().zip(other.values());
            pairs.into_iter().all(|(own, other)| own <= other)
        })
    }
}

/// The times when a worker may hold most.
fn moments(shape: &Shape, worker: usize) -> Vec<Moment> {
    let loads = &shape.loads[worker];
    let mut now = Moment(vec![Counts::default(); loads.len()]);
    let mut all: Vec<Moment> = Vec::new();
    for action in &shape.schedule.workers()[worker] {
        let Some(place) = loads.iter().position(|load| load.stage == action.stage) else {
            continue;
        };
        let is_whole = shape.whole[action.stage][action.micro_batch];
        let counts = &mut now.0[place];
        match action.pass {
            Pass::Forward if is_whole => counts.whole += 1.0,
            Pass::Forward => counts.waiting += 1.0,
            pass if pass.sends_gradient() && !is_whole => {
                counts.waiting -= 1.0;
                counts.going += 1.0;
            }
            _ => {}
        }
        let is_rerun = action.pass.sends_gradient() && !is_whole;
        let runs = action.pass != Pass::Update && !is_rerun;
        now.0[place].running = f64::from(u8::from(runs));
        keep(&now, &mut all);
        let counts = &mut now.0[place];
        counts.running = 0.0;
        match action.pass {
            Pass::Backward | Pass::InputGradient => {
                let left = if is_whole {
                    &mut counts.whole
                } else {
                    &mut counts.going
                };
                *left -= 1.0;
                counts.contexts += f64::from(u8::from(action.pass == Pass::InputGradient));
            }
            Pass::WeightGradient => counts.contexts -= 1.0,
            Pass::Forward | Pass::Update => {}
        }
        if action.pass.computes_weight_gradients() {
            counts.summed = 1.0;
        }
    }
    keep(&now, &mut all);
    all
}

/// Adds a moment, unless as much is held at another one.
fn keep(now: &Moment, all: &mut Vec<Moment>) {
    if !all.iter().any(|other| now.is_within(other)) {
        all.retain(|other| !other.is_within(now));
        all.push(now.clone());
    }
}

/// Choices for all stages of a worker.
#[derive(Clone, Debug)]
struct Combination {
    /// One for each stage.
    choices: Vec<Choice>,
    /// Seconds that the worker needs for what is chosen.
    seconds: f64,
}

/// Whether choices for stages are nowhere slower than others.
fn is_as_fast(own: &[impl Borrow<Choice>], others: &[impl Borrow<Choice>]) -> bool {
    let pairs = own.iter().zip(others);
    pairs.into_iter().all(|(own, other)| {
        let (own, other) = (own.borrow().costs, other.borrow().costs);
        own.quiet <= other.quiet && own.again <= other.again && own.late <= other.late
    })
}

/// Replicas by their number, the bits of the bytes that each has for passes, and the layers of its stages.
type Own = (usize, Vec<u64>, Vec<Range<usize>>);

/// What to recompute for the cuts of a shape.
pub(super) struct ByLayer<'a, 'b> {
    shape: &'a Shape<'b>,
    /// Workers with the same stages.
    replicas: Vec<Vec<usize>>,
    /// Of each worker.
    moments: Vec<Vec<Moment>>,
    known: HashMap<Own, Rc<Fitting>>,
    /// The combinations that were looked at, and those that they were compared with.
    pub looked_at: usize,
}

/// What a worker and its replicas may recompute.
#[derive(Clone, Debug, Default)]
struct Fitting {
    /// The fastest first; if none fits, the one that comes closest.
    combinations: Vec<Combination>,
    fits: bool,
    /// Whether none was left out.
    is_whole: bool,
}

/// What is still to be decided for a cut.
pub(super) struct Open {
    cut: Vec<usize>,
    /// Of each worker, replicas left out.
    fitting: Vec<Rc<Fitting>>,
    /// The stages of each.
    stages: Vec<Vec<usize>>,
    /// With the least times of what is not decided.
    costs: Costs,
    /// Of each that is decided.
    decided: Vec<usize>,
    /// Whether what is left holds the best choice.
    pub is_whole: bool,
}

impl<'a, 'b> ByLayer<'a, 'b> {
    pub fn new(shape: &'a Shape<'b>) -> Self {
        let workers = 0..shape.loads.len();
        Self {
            shape,
            replicas: shape.workers_with_same_stages(),
            moments: workers.map(|worker| moments(shape, worker)).collect(),
            known: HashMap::new(),
            looked_at: 0,
        }
    }

    /// What may be recomputed for a cut; if it does not fit a worker, what comes closest there.
    pub fn open(&mut self, cut: &[usize], choices: &mut Choices) -> Open {
        let ranges = ranges(cut);
        let mut open = Open {
            cut: cut.to_vec(),
            fitting: Vec::new(),
            stages: Vec::new(),
            costs: self.shape.costs(cut, &Recompute::Always),
            decided: Vec::new(),
            is_whole: true,
        };
        for number in 0..self.replicas.len() {
            let mut replicas = self.replicas[number].clone();
            self.shape.slowest_first(&mut replicas, &ranges);
            let stages = self.shape.loads[replicas[0]].iter().map(|load| load.stage);
            let stages: Vec<_> = stages.collect();
            let limits = replicas.iter();
            let limits = limits.map(|&worker| self.shape.free_for_passes(worker, cut));
            let limits: Vec<_> = limits.collect();
            let key = (
                number,
                limits.iter().map(|limit| limit.to_bits()).collect(),
                stages.iter().map(|&stage| ranges[stage].clone()).collect(),
            );
            let found = match self.known.get(&key) {
                Some(known) => known.clone(),
                None => {
                    let found = self.combinations(&replicas, &limits, &ranges, choices);
                    let found = Rc::new(found);
                    self.known.insert(key, found.clone());
                    found
                }
            };
            open.is_whole &= found.is_whole;
            for (place, &stage) in stages.iter().enumerate() {
                let all =
                    (found.combinations.iter()).map(|combination| combination.choices[place].costs);
                let least = |time: fn(&Recomputed) -> f64| {
                    all.clone()
                        .map(|costs| time(&costs))
                        .fold(f64::INFINITY, f64::min)
                };
                let stage = &mut open.costs.stages[stage];
                stage.quiet = least(|costs| costs.quiet);
                stage.again = least(|costs| costs.again);
                stage.late = least(|costs| costs.late);
            }
            open.fitting.push(found);
            open.stages.push(stages);
        }
        open.is_whole &= !choices.are_rounded;
        open
    }

    fn combinations(
        &mut self,
        replicas: &[usize],
        limits: &[f64],
        ranges: &[Range<usize>],
        choices: &mut Choices,
    ) -> Fitting {
        let (shape, slowest) = (self.shape, replicas[0]);
        let (loads, device) = (&shape.loads[slowest], shape.devices[slowest]);
        let of_stages =
            (loads.iter()).map(|load| choices.of(shape.model, device, &ranges[load.stage]));
        let of_stages: Vec<_> = of_stages.collect();
        let possible = of_stages.iter().enumerate().map(|(place, choices)| {
            let recomputes = |&worker: &usize| shape.loads[worker][place].again > 0;
            let is_again = replicas.iter().any(recomputes);
            let is_possible = |choice: &&Choice| is_again || !choice.costs.has_segment;
            choices.iter().filter(is_possible).collect()
        });
        let mut of_stages: Vec<Vec<&Choice>> = possible.collect();
        let mut is_whole = thin(&mut of_stages);
        // The costs of a stage are those of its slowest replica, which may be another one for each stage.
        is_whole &= replicas.len() == 1 || loads.len() == 1 || shape.model.has_one_profile();
        let bytes = loads.iter().map(|load| {
            let layers = &ranges[load.stage];
            Bytes {
                activations: shape.model.activations(layers),
                context: shape.model.context(layers),
                gradients: shape.gradients(load.stage, layers) as f64,
                workspace: shape.model.run(device, layers.clone()).workspace,
            }
        });
        let bytes: Vec<_> = bytes.collect();
        // How much more than it has a worker needs.
        let lacks = |(&worker, &limit): (&usize, &f64), choices: &[&Choice]| {
            let moments = self.moments[worker].iter();
            let held = moments.map(|moment| moment.held(choices, &bytes));
            held.fold(0.0, f64::max) - limit.max(0.0)
        };
        let fits_updates = limits.iter().all(|&limit| limit >= 0.0);
        let mut fitting: Vec<Combination> = Vec::new();
        let mut closest: Option<(f64, Vec<Choice>)> = None;
        let owned = |choices: &[&Choice]| choices.iter().copied().cloned().collect();
        let mut looked_at = 0;
        each_combination(&of_stages, &mut Vec::new(), &mut |choices| {
            looked_at += 1 + fitting.len();
            let workers = replicas.iter().zip(limits);
            let lacking = workers.map(|worker| lacks(worker, choices));
            let lacking = lacking.fold(f64::NEG_INFINITY, f64::max);
            if lacking <= 0.0 && fits_updates {
                let seconds = loads.iter().zip(choices);
                let seconds = seconds.map(|(load, choice)| seconds_of(load, choice)).sum();
                if !fitting
                    .iter()
                    .any(|other| is_as_fast(&other.choices, choices))
                {
                    fitting.retain(|other| !is_as_fast(choices, &other.choices));
                    let choices = owned(choices);
                    fitting.push(Combination { choices, seconds });
                }
            } else if closest.as_ref().is_none_or(|(least, _)| lacking < *least) {
                closest = Some((lacking, owned(choices)));
            }
        });
        self.looked_at += looked_at;
        let fits = !fitting.is_empty();
        if let (false, Some((_, choices))) = (fits, closest) {
            let seconds = f64::INFINITY;
            fitting.push(Combination { choices, seconds });
        }
        fitting.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        Fitting {
            combinations: fitting,
            fits,
            is_whole,
        }
    }
}

impl Open {
    /// The seconds that no choice can beat.
    pub fn bound(&self, shape: &Shape) -> Result<f64, PlanError> {
        Ok(shape.schedule.simulate(&self.costs)?.makespan() / shape.updates())
    }

    /// The next worker, if one is not decided. Replicas are decided with it.
    pub fn next(&self) -> Option<usize> {
        let next = self.decided.len();
        (next < self.fitting.len()).then_some(next)
    }

    /// How many choices a worker has that are worth a look: one if the cut does not fit another worker.
    pub fn count(&self, worker: usize) -> usize {
        match self.fitting.iter().all(|own| own.fits) {
            true => self.fitting[worker].combinations.len(),
            false => 1,
        }
    }

    /// Decides for the next worker. Returns the costs before.
    pub fn decide(&mut self, number: usize) -> Costs {
        let worker = self.decided.len();
        self.decided.push(number);
        let before = self.costs.clone();
        let choices = &self.fitting[worker].combinations[number].choices;
        for (&stage, choice) in self.stages[worker].iter().zip(choices) {
            let stage = &mut self.costs.stages[stage];
            let costs = &choice.costs;
            (stage.quiet, stage.again, stage.late) = (costs.quiet, costs.again, costs.late);
        }
        before
    }

    /// Takes back what was decided last.
    pub fn take_back(&mut self, before: Costs) {
        self.decided.pop();
        self.costs = before;
    }

    /// The cut, and what is recomputed. All workers must be decided.
    pub fn decided(&self) -> (&[usize], Recompute) {
        let decided = self.fitting.iter().zip(&self.decided);
        let choices = decided.flat_map(|(own, &number)| &own.combinations[number].choices);
        let mut runs: Vec<_> = choices.flat_map(Choice::segments).collect();
        runs.sort_by_key(|run| run.start);
        let segments = Segments::new(runs);
        (
            &self.cut,
            segments.map_or(Recompute::Never, Recompute::Segments),
        )
    }
}

/// Bytes of a stage, whatever is recomputed.
#[derive(Clone, Copy)]
struct Bytes {
    /// Of a micro-batch that keeps all.
    activations: f64,
    /// Of one between the halves of its backward pass.
    context: f64,
    gradients: f64,
    workspace: f64,
}

fn held(counts: Counts, chosen: &Recomputed, bytes: Bytes) -> f64 {
    counts.whole * bytes.activations
        + counts.waiting * (chosen.inputs + chosen.kept)
        + counts.going * chosen.most
        + counts.contexts * bytes.context
        + counts.summed * bytes.gradients
        + counts.running * bytes.workspace
}

fn seconds_of(load: &Load, choice: &Choice) -> f64 {
    load.again as f64 * choice.costs.seconds()
}

/// Leaves out choices of stages evenly, until there are few enough combinations. Returns whether none was.
fn thin(of_stages: &mut [Vec<&Choice>]) -> bool {
    let mut is_whole = true;
    let count = |all: &[Vec<&Choice>]| all.iter().map(|one| one.len() as f64).product::<f64>();
    while count(of_stages) > MOST_COMBINATIONS as f64 {
        is_whole = false;
        let Some(longest) = of_stages.iter_mut().max_by_key(|one| one.len()) else {
            break;
        };
        // The ends stay while there are others: what keeps least, and what keeps most.
        let last = longest.len() - 1;
        let mut place = 0..;
        longest.retain(|_| {
            let place = place.next().unwrap_or_default();
            place % 2 == 0 || (place == last && last > 1)
        });
    }
    is_whole
}

fn each_combination<'a>(
    of_stages: &[Vec<&'a Choice>],
    begun: &mut Vec<&'a Choice>,
    visit: &mut impl FnMut(&[&'a Choice]),
) {
    let Some((first, rest)) = of_stages.split_first() else {
        return visit(begun);
    };
    for choice in first {
        begun.push(choice);
        each_combination(rest, begun, visit);
        begun.pop();
    }
}
