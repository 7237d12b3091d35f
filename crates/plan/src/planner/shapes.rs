//! Lists the shapes to choose from.

use stovepipe_schedule::{
    DataParallel, Rule, RuleOptions, Schedule, ScheduleError, Scheduler, WeightPolicy,
};

use super::{
    Candidate, Forecast, PlanError, PlanRequest,
    request::FEW,
    shape::{Mode, ProfiledModel, Shape},
};

/// The most orders of different devices that are tried.
const MOST_ORDERS: usize = 120;

/// The parameters of a shape.
#[derive(Clone, Debug)]
pub(super) struct ShapeRequest {
    pub rule: Rule,
    pub chunks: usize,
    /// Of an update.
    pub micro_batches: usize,
    pub updates: usize,
    pub mode: Mode,
    /// Of each stage.
    pub replicas: Vec<usize>,
    /// Of replicas of the whole pipeline. Otherwise empty.
    pub shares: Vec<usize>,
    /// Of each worker.
    pub devices: Vec<usize>,
}

impl ShapeRequest {
    pub fn schedule(&self) -> Result<Schedule, ScheduleError> {
        let stages = self.replicas.len();
        let mut options = RuleOptions {
            update_every: Some(self.micro_batches),
            ..RuleOptions::with_chunks(self.chunks)
        };
        let micro_batches = self.updates * self.micro_batches;
        if !self.shares.is_empty() {
            let replicated = DataParallel {
                scheduler: self.rule.scheduler(&options),
                shares: self.shares.clone(),
            };
            return replicated.schedule(stages, micro_batches);
        }
        if self.replicas.iter().any(|&count| count > 1) {
            options.replicas.clone_from(&self.replicas);
        }
        (self.rule.scheduler(&options)).schedule(stages, micro_batches)
    }

    pub fn shape<'a>(
        &'a self,
        model: &'a ProfiledModel<'a>,
        schedule: &'a Schedule,
    ) -> Result<Shape<'a>, PlanError> {
        let options = (&self.mode, WeightPolicy::default());
        Shape::new(model, &self.devices, schedule, options)
    }

    pub fn candidate(self, forecast: Forecast) -> Candidate {
        Candidate {
            schedule: self.rule,
            chunks: self.chunks,
            micro_batches: self.micro_batches,
            replicas: self.replicas,
            shares: self.shares,
            devices: self.devices,
            forecast,
        }
    }

    /// The planner reports the best candidate of each group.
    pub fn group(&self) -> (Rule, String) {
        let mode = match &self.mode {
            Mode::Fixed(recompute) => recompute.to_string(),
            Mode::ByLayer => "by-layer".to_owned(),
        };
        (self.rule, mode)
    }

    pub fn is_by_layer(&self) -> bool {
        matches!(self.mode, Mode::ByLayer)
    }

    /// A lower bound of the seconds of a step or an update, for every cut: some worker has at least its share
    /// of the work.
    pub fn bound(&self, model: &ProfiledModel) -> f64 {
        let speed = |&device: &usize| model.machine.devices[device].speed;
        let mut speeds: Vec<f64> = self.devices.iter().map(speed).collect();
        speeds.sort_by(|a, b| b.total_cmp(a));
        let fastest = speeds.first().copied().unwrap_or(1.0);
        let (way, total) = model.way_and_total();
        let micro_batches = (self.updates * self.micro_batches) as f64;
        let is_plain = self.replicas.len() == self.devices.len();
        let ratio = if is_plain && matches!(self.rule, Rule::GPipe | Rule::OneForwardOneBackward) {
            // The first micro-batch has to reach a worker, and the last gradient to leave it: no worker k has
            // more than 1/m of the time that the workers before it leave.
            1.0 - 1.0 / micro_batches
        } else {
            1.0
        };
        let shares = speeds
            .iter()
            .zip(0..)
            .map(|(speed, place)| speed * ratio.powi(place));
        let all = micro_batches * total / shares.sum::<f64>();
        all.max(way / fastest) / self.updates as f64
    }
}

/// All shapes with a number of micro-batches, for a model of `layers` layers.
pub(super) fn shapes(
    request: &PlanRequest,
    micro_batches: usize,
    layers: usize,
) -> Vec<ShapeRequest> {
    let mut shapes = Vec::new();
    let rules = || request.rules.iter();
    let has_synchronous = rules().any(|rule| rule.is_synchronous());
    let left_out = request.left_out();
    let is_wanted =
        |rule: &&Rule| rule.is_synchronous() == has_synchronous && !left_out.contains(rule);
    for &rule in rules().filter(is_wanted) {
        let layouts = layouts(request, rule, layers).into_iter();
        let fits = |layout: &Layout| layout.fits(rule, micro_batches);
        for layout in layouts.filter(fits) {
            let Layout {
                chunks, replicas, ..
            } = &layout;
            // Replicas of stages without a micro-batch are left out. Such stages have no chunks.
            let busy: usize = replicas.iter().map(|&r| r.min(micro_batches)).sum();
            for devices in orders(request, busy / chunks) {
                for shares in shares(request, &devices, layout.pipelines, micro_batches) {
                    for mode in request.modes() {
                        shapes.push(ShapeRequest {
                            rule,
                            chunks: *chunks,
                            micro_batches,
                            updates: request.updates(rule),
                            mode,
                            replicas: replicas.clone(),
                            shares: shares.clone(),
                            devices: devices.clone(),
                        });
                    }
                }
            }
        }
    }
    shapes
}

/// How many workers and stages there are.
struct Layout {
    /// Stages of each worker.
    chunks: usize,
    /// Of each stage.
    replicas: Vec<usize>,
    /// Replicas of the whole pipeline, or 1.
    pipelines: usize,
}

impl Layout {
    fn fits(&self, rule: Rule, micro_batches: usize) -> bool {
        // At an update of an asynchronous schedule, each replica has a gradient.
        let has_work = |&replicas: &usize| rule.is_synchronous() || replicas <= micro_batches;
        self.pipelines <= micro_batches && self.replicas.iter().all(has_work)
    }
}

fn layouts(request: &PlanRequest, rule: Rule, layers: usize) -> Vec<Layout> {
    let chunks = if rule.takes_chunks() {
        request.chunks.clone()
    } else {
        vec![rule.stages(1)]
    };
    let mut layouts = Vec::new();
    for &workers in &request.workers {
        // Without a flush there are replicas of stages only.
        let most = match request.replicas && rule.is_synchronous() {
            true => workers,
            false => 1,
        };
        for pipelines in (1..=most).filter(|count| workers.is_multiple_of(*count)) {
            let workers = workers / pipelines;
            for &chunks in &chunks {
                // A single worker has nothing to interleave. Two stages of a V may fit it where one does not: each is
                // recomputed on its own.
                let is_worth_it = chunks == 1 || workers > 1 || !rule.takes_chunks();
                if is_worth_it && workers.saturating_mul(chunks) <= layers {
                    let replicas = vec![pipelines; workers * chunks];
                    layouts.push(Layout {
                        chunks,
                        replicas,
                        pipelines,
                    });
                }
            }
        }
        if request.replicas && rule.takes_replicas() {
            let all = replicas(workers).into_iter();
            // Those of a single stage are replicas of the pipeline.
            let is_pipeline = |r: &Vec<usize>| rule.is_synchronous() && r.len() == 1;
            let is_new = |r: &Vec<usize>| !is_pipeline(r) && r.iter().any(|&count| count > 1);
            let replicated = all.filter(|r| r.len() <= layers && is_new(r));
            layouts.extend(replicated.map(|replicas| Layout {
                chunks: 1,
                replicas,
                pipelines: 1,
            }));
        }
    }
    layouts
}

/// Shares for replicas of a pipeline on these devices: equal ones, and those by speed if they differ.
fn shares(
    request: &PlanRequest,
    devices: &[usize],
    pipelines: usize,
    micro_batches: usize,
) -> Vec<Vec<usize>> {
    if pipelines == 1 {
        return vec![Vec::new()];
    }
    let seconds = |&device: &usize| 1.0 / request.machine.devices[device].speed;
    let replicas = devices.chunks(devices.len() / pipelines).map(|own| {
        let seconds = own.iter().map(seconds);
        (seconds.clone().sum::<f64>(), seconds.fold(0.0, f64::max))
    });
    let replicas: Vec<_> = replicas.collect();
    // With stages of equal work, the first micro-batch takes the time of all of them, each further one
    // that of the slowest. The next one goes to the replica that would be done first.
    let mut counts = vec![0_usize; pipelines];
    for _ in 0..micro_batches {
        let end = |&replica: &usize| {
            let (all, slowest) = replicas[replica];
            all + counts[replica] as f64 * slowest
        };
        let first = (0..pipelines).min_by(|a, b| end(a).total_cmp(&end(b)));
        counts[first.unwrap_or_default()] += 1;
    }
    let divisor = counts
        .iter()
        .copied()
        .fold(0, greatest_common_divisor)
        .max(1);
    let by_speed: Vec<_> = counts.iter().map(|count| count / divisor).collect();
    let equal = vec![1; pipelines];
    let are_equal = (replicas.windows(2)).all(|pair| pair[0] == pair[1]);
    if are_equal || by_speed == equal || by_speed.contains(&0) {
        vec![equal]
    } else {
        vec![equal, by_speed]
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 {
        a
    } else {
        greatest_common_divisor(b, a % b)
    }
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
    let equal = |a: usize, b: usize| devices[a].is_like(&devices[b]);
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
