//! Lists the shapes to choose from.

use stovepipe_schedule::{Recompute, Rule, RuleOptions, Schedule, ScheduleError, Scheduler};

use super::{Candidate, Forecast, PlanRequest, request::FEW, shape::ProfiledModel};

/// The most orders of different devices that are tried.
const MOST_ORDERS: usize = 120;

/// The parameters of a shape.
#[derive(Clone, Debug)]
pub(super) struct ShapeRequest {
    pub rule: Rule,
    pub chunks: usize,
    pub micro_batches: usize,
    pub recompute: Recompute,
    /// Of each stage. All ones unless the rule takes replicas.
    pub replicas: Vec<usize>,
    /// Of each worker.
    pub devices: Vec<usize>,
}

impl ShapeRequest {
    pub fn schedule(&self) -> Result<Schedule, ScheduleError> {
        let stages = self.replicas.len();
        let mut options = RuleOptions::with_chunks(self.chunks);
        if self.replicas.iter().any(|&count| count > 1) {
            options.replicas.clone_from(&self.replicas);
        }
        (self.rule.scheduler(&options)).schedule(stages, self.micro_batches)
    }

    pub fn candidate(self, forecast: Forecast) -> Candidate {
        Candidate {
            schedule: self.rule,
            chunks: self.chunks,
            micro_batches: self.micro_batches,
            recompute: self.recompute,
            replicas: self.replicas,
            devices: self.devices,
            forecast,
        }
    }

    /// The planner reports the best candidate of each group.
    pub fn group(&self) -> (Rule, u8) {
        (self.rule, self.recompute as u8)
    }

    /// A lower bound of a step's seconds, for every cut: some worker has at least its share of the work.
    pub fn bound(&self, model: &ProfiledModel) -> f64 {
        let speed = |&device: &usize| model.machine.devices[device].speed;
        let speeds = self.devices.iter().map(speed);
        let fastest = speeds.clone().fold(0.0, f64::max);
        let share = model.total() / speeds.sum::<f64>();
        let micro_batches = self.micro_batches as f64;
        let is_plain = self.replicas.len() == self.devices.len();
        if is_plain && matches!(self.rule, Rule::GPipe | Rule::OneForwardOneBackward) {
            // The first micro-batch has to reach that worker, and the last gradient to leave it.
            model.total() / fastest + (micro_batches - 1.0) * share
        } else {
            // Holds for every rule.
            (micro_batches * share).max(model.total() / fastest / 2.0)
        }
    }
}

/// All shapes with a number of micro-batches, for a model of `layers` layers.
pub(super) fn shapes(
    request: &PlanRequest,
    micro_batches: usize,
    layers: usize,
) -> Vec<ShapeRequest> {
    let mut shapes = Vec::new();
    for &rule in request.rules.iter().filter(|rule| rule.is_synchronous()) {
        for (chunks, replicas) in layouts(request, rule, layers) {
            // Only stages of rules without chunks have replicas.
            let busy: usize = replicas.iter().map(|&r| r.min(micro_batches)).sum();
            let workers = busy / chunks;
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
    let chunks = if rule.takes_chunks() {
        request.chunks.clone()
    } else {
        vec![rule.stages(1)]
    };
    let mut layouts = Vec::new();
    for &workers in &request.workers {
        for &chunks in &chunks {
            // A single worker has nothing to interleave.
            let is_worth_it = chunks == 1 || workers > 1;
            if is_worth_it && workers.saturating_mul(chunks) <= layers {
                layouts.push((chunks, vec![1; workers * chunks]));
            }
        }
        if request.replicas && rule.takes_replicas() {
            let all = replicas(workers).into_iter();
            let replicated = all.filter(|r| r.len() <= layers && r.iter().any(|&count| count > 1));
            layouts.extend(replicated.map(|replicas| (1, replicas)));
        }
    }
    layouts
}

/// Distributions of workers over stages: all if there are few workers, else only equal ones.
fn replicas(workers: usize) -> Vec<Vec<usize>> {
    if workers > FEW {
        let stages = (1..=workers).filter(|stages| workers.is_multiple_of(*stages));
        let equal = |stages| vec![workers / stages; stages];
        return stages.map(equal).collect();
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

/// Ways to assign devices to workers. Equal devices are interchangeable. If there are too many ways: the
/// fastest devices in the machine's order.
fn orders(request: &PlanRequest, workers: usize) -> Vec<Vec<usize>> {
    let devices = &request.machine.devices;
    let equal = |a: usize, b: usize| {
        (devices[a].speed, devices[a].memory) == (devices[b].speed, devices[b].memory)
    };
    if (1..devices.len()).all(|device| equal(0, device)) {
        return vec![(0..workers).collect()];
    }
    let mut all = Vec::new();
    if permutations(workers, devices.len(), &equal, &mut Vec::new(), &mut all) {
        all
    } else {
        vec![fastest(request, workers)]
    }
}

/// All ways to choose a device for each worker, of equal devices always the first that is left. Returns
/// whether there are few enough.
fn permutations(
    workers: usize,
    devices: usize,
    equal: &impl Fn(usize, usize) -> bool,
    begun: &mut Vec<usize>,
    all: &mut Vec<Vec<usize>>,
) -> bool {
    if begun.len() == workers {
        all.push(begun.clone());
        return all.len() <= MOST_ORDERS;
    }
    for device in 0..devices {
        let is_left = |other: usize| !begun.contains(&other);
        let is_first = (0..device).all(|other| !(is_left(other) && equal(other, device)));
        if is_left(device) && is_first {
            begun.push(device);
            let continues = permutations(workers, devices, equal, begun, all);
            begun.pop();
            if !continues {
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
