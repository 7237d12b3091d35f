//! Which shapes there are to choose from.

use stovepipe_schedule::{Recompute, RoundRobin, Rule, Schedule, ScheduleError, Scheduler};

use super::{PlanRequest, shape::Model};

/// Orders of unlike devices that are tried, at most.
const MOST_ORDERS: usize = 120;
/// Workers up to which every number, and every distribution of replicas, is tried.
const FEW: usize = 8;

/// What a shape is asked to be.
#[derive(Clone, Debug)]
pub(super) struct ShapeRequest {
    pub rule: Rule,
    pub chunks: usize,
    pub micro_batches: usize,
    pub recompute: Recompute,
    /// Of each stage; all ones unless the rule is 1F1B.
    pub replicas: Vec<usize>,
    /// Of each worker.
    pub devices: Vec<usize>,
}

impl ShapeRequest {
    pub fn schedule(&self) -> Result<Schedule, ScheduleError> {
        let stages = self.replicas.len();
        match self.replicas.iter().any(|&count| count > 1) {
            true => RoundRobin::new(self.replicas.clone()).schedule(stages, self.micro_batches),
            false => (self.rule.scheduler(self.chunks)).schedule(stages, self.micro_batches),
        }
    }

    /// The candidates that this one is compared with first.
    pub fn group(&self) -> (Rule, u8) {
        (self.rule, self.recompute as u8)
    }

    /// Seconds that a step takes at least, however the model is cut: some worker has its share of the
    /// work or more.
    pub fn bound(&self, model: &Model) -> f64 {
        let speeds = self
            .devices
            .iter()
            .map(|&device| model.machine.devices[device].speed);
        let fastest = speeds.clone().fold(0.0, f64::max);
        let share = model.total() / speeds.sum::<f64>();
        let micro_batches = self.micro_batches as f64;
        let is_plain = self.replicas.len() == self.devices.len();
        match self.rule {
            // The first micro-batch has to reach that worker, and the last gradient to leave it.
            Rule::GPipe | Rule::OneForwardOneBackward if is_plain => {
                model.total() / fastest + (micro_batches - 1.0) * share
            }
            _ => (micro_batches * share).max(model.total() / fastest / 2.0),
        }
    }
}

/// All numbers of workers if there are few, else powers of two and all of them.
pub(super) fn usual_workers(most: usize) -> Vec<usize> {
    let is_usual = |&count: &usize| count <= FEW || count.is_power_of_two() || count == most;
    (1..=most).filter(is_usual).collect()
}

/// All shapes with a number of micro-batches, for a model of `layers` layers.
pub(super) fn shapes(
    request: &PlanRequest,
    micro_batches: usize,
    layers: usize,
) -> Vec<ShapeRequest> {
    let mut shapes = Vec::new();
    for &rule in request
        .rules
        .iter()
        .filter(|&&rule| rule != Rule::PipeDream)
    {
        for (chunks, replicas) in layouts(request, rule, layers) {
            let workers = match rule {
                Rule::OneForwardOneBackward => replicas.iter().map(|&r| r.min(micro_batches)).sum(),
                _ => replicas.len() / chunks,
            };
            for devices in orders(request, workers) {
                for &recompute in &request.recompute {
                    shapes.push(ShapeRequest {
                        rule,
                        chunks,
                        micro_batches,
                        recompute,
                        replicas: replicas.clone(),
                        devices: devices.clone(),
                    });
                }
            }
        }
    }
    shapes
}

/// Stages of each worker, and replicas of each stage.
fn layouts(request: &PlanRequest, rule: Rule, layers: usize) -> Vec<(usize, Vec<usize>)> {
    let chunks = match rule {
        Rule::Interleaved => request.chunks.clone(),
        Rule::ZeroBubbleV => vec![2],
        _ => vec![1],
    };
    let mut layouts = Vec::new();
    for &workers in &request.workers {
        for &chunks in &chunks {
            // One worker has nothing to interleave with.
            let is_worth_it = chunks == 1 || workers > 1;
            if is_worth_it && workers.saturating_mul(chunks) <= layers {
                layouts.push((chunks, vec![1; workers * chunks]));
            }
        }
        if request.replicas && rule == Rule::OneForwardOneBackward {
            let all = replicas(workers).into_iter();
            let replicated = all.filter(|r| r.len() <= layers && r.iter().any(|&count| count > 1));
            layouts.extend(replicated.map(|replicas| (1, replicas)));
        }
    }
    layouts
}

/// Ways to give workers to stages: all if there are few, else as many to each stage as to any other.
fn replicas(workers: usize) -> Vec<Vec<usize>> {
    if workers > FEW {
        let stages = (1..=workers).filter(|stages| workers.is_multiple_of(*stages));
        return stages
            .map(|stages| vec![workers / stages; stages])
            .collect();
    }
    let mut all = Vec::new();
    compositions(workers, &mut Vec::new(), &mut all);
    all
}

/// All lists of positive numbers with a sum.
fn compositions(sum: usize, begun: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
    if sum == 0 {
        all.push(begun.clone());
    }
    for first in 1..=sum {
        begun.push(first);
        compositions(sum - first, begun, all);
        begun.pop();
    }
}

/// Which device is which worker. Like devices are not told apart; if there are too many ways, the fastest
/// ones are taken in the machine's order.
fn orders(request: &PlanRequest, workers: usize) -> Vec<Vec<usize>> {
    let devices = &request.machine.devices;
    let alike = |a: usize, b: usize| {
        (devices[a].speed, devices[a].memory) == (devices[b].speed, devices[b].memory)
    };
    if (1..devices.len()).all(|device| alike(0, device)) {
        return vec![(0..workers).collect()];
    }
    let mut all = Vec::new();
    let is_complete = permutations(workers, devices.len(), &alike, &mut Vec::new(), &mut all);
    match is_complete {
        true => all,
        false => vec![fastest(request, workers)],
    }
}

/// All ways to choose a device for each worker, of like devices always the first that is left. Whether
/// there are few enough.
fn permutations(
    workers: usize,
    devices: usize,
    alike: &impl Fn(usize, usize) -> bool,
    begun: &mut Vec<usize>,
    all: &mut Vec<Vec<usize>>,
) -> bool {
    if begun.len() == workers {
        all.push(begun.clone());
        return all.len() <= MOST_ORDERS;
    }
    for device in 0..devices {
        let is_left = |other: usize| !begun.contains(&other);
        let is_first = (0..device).all(|other| !(is_left(other) && alike(other, device)));
        if is_left(device) && is_first {
            begun.push(device);
            let goes_on = permutations(workers, devices, alike, begun, all);
            begun.pop();
            if !goes_on {
                return false;
            }
        }
    }
    true
}

fn fastest(request: &PlanRequest, workers: usize) -> Vec<usize> {
    let devices = &request.machine.devices;
    let mut by_speed: Vec<_> = (0..devices.len()).collect();
    by_speed.sort_by(|&a, &b| devices[b].speed.total_cmp(&devices[a].speed));
    by_speed.truncate(workers);
    by_speed.sort_unstable();
    by_speed
}
