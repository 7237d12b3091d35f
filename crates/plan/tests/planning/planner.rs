//! Plans, compared with every candidate.

use std::{cell::RefCell, collections::HashMap, ops::Range};

use proptest::prelude::*;
use stovepipe_plan::{
    BUCKET, DeviceSpec, LayerProfile, LinkLevel, Machine, OptimizerState, PlanError, PlanRequest,
    Profile, Setup, SkipProfile, Verdict,
};
use stovepipe_schedule::{
    Action, Bucket, Costs, DataParallel, GPipe, Link, Pass, PipeDream, Recompute, RoundRobin, Rule,
    RuleOptions, Schedule, Scheduler, Segments, SkipCosts, StageCosts, StageMemory, WeightPolicy,
};

/// All ways to write `sum` as `parts` positive numbers.
fn compositions(sum: usize, parts: usize) -> Vec<Vec<usize>> {
    match parts {
        0 if sum == 0 => vec![vec![]],
        0 => vec![],
        _ => (1..=sum)
            .flat_map(|first| {
                let rest = compositions(sum - first, parts - 1).into_iter();
                rest.map(move |rest| [vec![first], rest].concat())
            })
            .collect(),
    }
}

/// All ways to choose a device for each worker.
fn arrangements(devices: usize, workers: usize) -> Vec<Vec<usize>> {
    if workers == 0 {
        return vec![vec![]];
    }
    let shorter = arrangements(devices, workers - 1).into_iter();
    shorter
        .flat_map(|begun| {
            let left: Vec<_> = (0..devices).filter(|d| !begun.contains(d)).collect();
            left.into_iter().map(move |d| [&begun[..], &[d]].concat())
        })
        .collect()
}

/// The costs of a cut, added up layer by layer.
fn costs(
    request: &PlanRequest,
    on_their_way: &OnTheirWay,
    micro_batches: usize,
    recompute: &Recompute,
    cut: &[usize],
    devices: &[usize],
) -> Costs {
    let schedule = on_their_way.schedule;
    let samples = request.mini_batch.div_ceil(micro_batches);
    let profile = request.profile.for_samples(samples);
    let device = |worker: usize| &request.machine.devices[devices[worker]];
    let connection = |&(a, b): &(usize, usize)| {
        let level = request.machine.link(devices[a], devices[b]);
        level.map_or(Link::default(), |level| Link::from(*level))
    };
    let worst = |pairs: &[(usize, usize)]| {
        let links: Vec<_> = pairs.iter().map(connection).collect();
        let latencies = links.iter().map(|link| link.latency);
        let bandwidths = links.iter().map(|link| link.bandwidth);
        Link {
            latency: latencies.fold(0.0, f64::max),
            bandwidth: bandwidths.fold(f64::INFINITY, f64::min),
        }
    };
    let mut on_their_way = on_their_way.bytes(&profile, cut);
    // On a GPU, a message of each neighbour arrives while another one is used.
    for stage in 1..cut.len() {
        let output = profile.layers[cut[..stage].iter().sum::<usize>() - 1].output;
        let are_together = |i| schedule.worker_of(stage - 1, i) == schedule.worker_of(stage, i);
        if (0..schedule.micro_batches()).all(are_together) {
            continue;
        }
        for neighbour in [stage - 1, stage] {
            let mut workers = schedule.replicas(neighbour).iter();
            if workers.any(|&worker| device(worker).name != "cpu") {
                on_their_way[neighbour] += output;
            }
        }
    }
    let mut stages = Vec::new();
    let mut first = 0;
    // The first stage finds its inputs in the mini-batch.
    let mut input = 0.0;
    let fed = |&worker: &usize| {
        let (mut now, mut most, mut all) = (0.0, 0.0_f64, 0);
        for action in schedule.workers()[worker].iter().filter(|a| a.stage == 0) {
            match action.pass {
                Pass::Forward => (now, all) = (now + 1.0, all + 1),
                Pass::Backward | Pass::InputGradient => now -= 1.0,
                _ => {}
            }
            most = most.max(now);
        }
        // A CPU has the whole mini-batch.
        match device(worker).name.as_str() {
            "cpu" => most.max((all / schedule.updates().max(1)) as f64),
            _ => most,
        }
    };
    let fed = schedule.replicas(0).iter().map(fed).fold(0.0, f64::max);
    for (stage, &count) in cut.iter().enumerate() {
        let layers = &profile.layers[first..first + count];
        let taken = taken_elsewhere(&profile, 0..first, first..first + count);
        input += taken as f64;
        first += count;
        let workers = schedule.replicas(stage);
        let speeds = workers.iter().map(|&w| device(w).speed);
        let speed = speeds.fold(f64::INFINITY, f64::min);
        let sum = |part: &dyn Fn(&LayerProfile) -> f64| layers.iter().map(part).sum::<f64>();
        let weight = sum(&|l| l.weight.unwrap_or(l.backward / 2.0)) / speed;
        let parameters = sum(&|l| l.parameters as f64);
        let trained = sum(&|l| trained_bytes(l) as f64);
        let activations = input + sum(&|l| l.kept.unwrap_or(l.output) as f64);
        let context = |l: &LayerProfile| l.context.or(l.kept).unwrap_or(l.output);
        let replicas = workers.len() as f64;
        let neighbours: Vec<_> = workers.windows(2).map(|w| (w[0], w[1])).collect();
        let ring = worst(&neighbours);
        let own = first - count..first;
        let is_forward = |action: &Action| action.pass == Pass::Forward;
        let mut orders = schedule.workers().iter();
        let is_first = orders.all(|own| !own.iter().skip_while(|a| is_forward(a)).any(is_forward));
        let copies = if *recompute == Recompute::Never || is_first {
            2.0
        } else {
            4.0
        };
        let rerun = Rerun::of(&profile, own.clone(), &recompute.segments(own));
        let shared = match recompute {
            Recompute::Never => shared(&profile, schedule, (stage, cut)),
            _ => 0.0,
        };
        stages.push(StageCosts {
            forward: sum(&|l| l.forward) / speed,
            quiet: rerun.quiet / speed,
            again: rerun.again / speed,
            late: rerun.late / speed,
            input: sum(&|l| l.backward) / speed - weight,
            weight: weight + waits(request, schedule, (workers, device(workers[0])), layers),
            update: 0.0,
            buckets: buckets(request.bucket, schedule, stage, layers)
                .into_iter()
                .map(|(ready, bytes)| Bucket {
                    ready,
                    seconds: 2.0
                        * (replicas - 1.0)
                        * (ring.latency + bytes / replicas / ring.bandwidth),
                })
                .collect(),
            output: layers.last().unwrap().output as f64,
            memory: StageMemory {
                fixed: if stage == 0 {
                    fed * profile.input as f64
                } else {
                    0.0
                } + on_their_way[stage] as f64
                    + parameters
                    + trained * f64::from(request.state.on_device)
                    + copies * sum(&|l| l.bookkeeping.unwrap_or(0) as f64)
                    + sum(&|l| l.cast.unwrap_or(0) as f64),
                gradients: trained,
                version: parameters,
                input: rerun.inputs,
                activations: activations - shared,
                kept: rerun.kept,
                rerun: rerun.most,
                context: layers[0].context.map_or(input, |_| 0.0) + sum(&|l| context(l) as f64),
                workspace: workspace(layers),
            },
        });
        input = layers.last().unwrap().output as f64;
    }
    let mut links = Vec::new();
    for stage in 1..cut.len() {
        let [before, after] = [stage - 1, stage].map(|stage| schedule.replicas(stage).iter());
        let pairs = before.flat_map(|&a| after.clone().map(move |&b| (a, b)));
        links.push(worst(&pairs.collect::<Vec<_>>()));
    }
    if links.is_empty() {
        links.push(Link::default());
    }
    let mut skips = Vec::new();
    for from in 0..cut.len() {
        for to in from + 1..cut.len() {
            let layers = |stage: usize| {
                let first = cut[..stage].iter().sum::<usize>();
                first..first + cut[stage]
            };
            let bytes = taken_elsewhere(&profile, layers(from), layers(to)) as f64;
            let micro_batches = 0..schedule.micro_batches();
            let pairs = micro_batches.map(|i| [from, to].map(|stage| schedule.worker_of(stage, i)));
            let pairs: Vec<_> = pairs.map(|[a, b]| (a, b)).collect();
            let link = worst(&pairs);
            skips.push(SkipCosts {
                from,
                to,
                bytes,
                link,
            });
        }
    }
    let slowest = |stage: usize| {
        let speeds = schedule.replicas(stage).iter().map(|&w| device(w).speed);
        speeds.fold(f64::INFINITY, f64::min)
    };
    // All stages of a worker have the same replicas.
    let speed =
        |(worker, actions): (usize, &Vec<Action>)| device(worker).speed / slowest(actions[0].stage);
    Costs {
        stages,
        links,
        skips,
        recompute: recompute.clone(),
        speeds: schedule.workers().iter().enumerate().map(speed).collect(),
        weights: WeightPolicy::default(),
    }
}

/// What a stage gets from others of its worker, which keep it anyway if nothing is recomputed.
fn shared(profile: &Profile, schedule: &Schedule, (stage, cut): (usize, &[usize])) -> f64 {
    let layers = |stage: usize| {
        let first = cut[..stage].iter().sum::<usize>();
        first..first + cut[stage]
    };
    let micro_batches = 0..schedule.micro_batches();
    let workers = |stage: usize| {
        let micro_batches = micro_batches.clone();
        micro_batches.map(move |i| schedule.worker_of(stage, i))
    };
    let own = |other: &usize| workers(*other).eq(workers(stage));
    let from = |other: usize| {
        let is_next = u64::from(other + 1 == stage);
        let output = profile.layers[layers(other).end - 1].output;
        is_next * output + taken_elsewhere(profile, layers(other), layers(stage))
    };
    (0..stage).filter(own).map(from).sum::<u64>() as f64
}

/// Seconds in which a pass that adds to gradients waits, on average, if these are in a store: passes of the stage one
/// by one, and in each the layers from the last to the first.
fn waits(
    request: &PlanRequest,
    schedule: &Schedule,
    (workers, device): (&[usize], &DeviceSpec),
    layers: &[LayerProfile],
) -> f64 {
    let ([worker], Some(store), true) = (workers, device.store, request.state.offloads_gradients)
    else {
        return 0.0;
    };
    let actions = &schedule.workers()[*worker];
    let is_split = actions.iter().any(|a| a.pass == Pass::WeightGradient);
    let half = |l: &LayerProfile| l.weight.unwrap_or(l.backward / 2.0);
    let computes = |l: &LayerProfile| if is_split { half(l) } else { l.backward } / device.speed;
    let moves = |l: &LayerProfile| trained_bytes(l) as f64 / store;
    let micro_batches = schedule.micro_batches();
    let mut all = 0.0;
    for micro_batch in 0..micro_batches {
        for pair in layers.windows(2).rev() {
            let comes = if micro_batch == 0 {
                0.0
            } else {
                moves(&pair[0])
            };
            all += (moves(&pair[1]) + comes - computes(&pair[0])).max(0.0);
        }
    }
    let (first, last) = (&layers[0], &layers[layers.len() - 1]);
    let begins = moves(first) + moves(last) - computes(last);
    let other: fn(&LayerProfile) -> f64 = match is_split {
        true => |l| l.backward - l.weight.unwrap_or(l.backward / 2.0),
        false => |l| l.forward,
    };
    let between = layers.iter().map(other).sum::<f64>() / device.speed;
    // Of all such passes of the worker: the first one waits for nothing.
    let (mut seconds, mut passes, mut follows) = (0.0, 0, false);
    for action in actions {
        let adds = matches!(action.pass, Pass::Backward | Pass::WeightGradient);
        if adds {
            if passes > 0 {
                seconds += if follows { begins } else { begins - between }.max(0.0);
            }
            passes += 1;
        }
        follows = adds;
    }
    all / micro_batches as f64 + seconds / f64::from(passes)
}

/// Seconds of an update, in which states go there and come, and gradients come twice.
fn visits(request: &PlanRequest, schedule: &Schedule, cut: &[usize], devices: &[usize]) -> f64 {
    let of_worker = |(actions, &device): (&Vec<Action>, &usize)| {
        let Some(store) = request.machine.devices[device].store else {
            return 0.0;
        };
        let mut stages: Vec<_> = actions.iter().map(|action| action.stage).collect();
        stages.sort_unstable();
        stages.dedup();
        let of_stage = |stage: usize| {
            let first: usize = cut[..stage].iter().sum();
            let layers = &request.profile.layers[first..first + cut[stage]];
            let trained: u64 = layers.iter().map(trained_bytes).sum();
            let is_away = request.state.offloads_gradients && schedule.replicas(stage).len() == 1;
            let both_ways = request.state.offloaded + u8::from(is_away);
            trained as f64 * 2.0 * f64::from(both_ways)
        };
        stages.into_iter().map(of_stage).sum::<f64>() / store
    };
    let workers = schedule.workers().iter().zip(devices).map(of_worker);
    workers.fold(0.0, f64::max)
}

/// What a layer's pass needs besides.
fn beside(layer: &LayerProfile) -> u64 {
    layer.workspace.unwrap_or(trained_bytes(layer))
}

/// What a pass of some layers needs besides what all of them keep.
fn workspace(layers: &[LayerProfile]) -> f64 {
    let beyond = |at: usize| {
        let later = layers[at + 1..].iter();
        let kept: u64 = later.map(|l| l.kept.unwrap_or(l.output)).sum();
        beside(&layers[at]) as f64 - kept as f64
    };
    (0..layers.len()).map(beyond).fold(0.0, f64::max)
}

/// Bytes of skips from some layers to others.
fn taken_elsewhere(profile: &Profile, from: Range<usize>, to: Range<usize>) -> u64 {
    let takers = |skip: &SkipProfile| skip.to.iter().filter(|taker| to.contains(taker)).count();
    let skips = profile
        .skips
        .iter()
        .filter(|skip| from.contains(&skip.from));
    skips
        .map(|skip| skip.bytes * takers(skip).min(1) as u64)
        .sum()
}

/// When the forward and the backward pass of each micro-batch end in each stage, if passes take a second and whole
/// backward passes two.
fn ends(schedule: &Schedule) -> HashMap<(usize, usize, bool), i64> {
    let (mut done, mut ends) = (HashMap::<Action, i64>::new(), HashMap::new());
    let mut next = vec![0; schedule.workers().len()];
    let mut free = vec![0; schedule.workers().len()];
    let left = |next: &[usize]| {
        let mut workers = schedule.workers().iter().zip(next);
        workers.any(|(actions, &next)| next < actions.len())
    };
    while left(&next) {
        for (worker, actions) in schedule.workers().iter().enumerate() {
            let Some(&action) = actions.get(next[worker]) else {
                continue;
            };
            let ready = match schedule.input(action) {
                Some(input) => done.get(&input).copied(),
                None => Some(0),
            };
            let Some(ready) = ready else { continue };
            // Replicas update at the same time.
            let replicas = match action.pass {
                Pass::Update => schedule.replicas(action.stage),
                _ => &[worker],
            };
            let is_there =
                |&other: &usize| schedule.workers()[other].get(next[other]) == Some(&action);
            if !replicas.iter().all(is_there) {
                continue;
            }
            let ready = replicas
                .iter()
                .map(|&other| free[other])
                .fold(ready, i64::max);
            let length = match action.pass {
                Pass::Backward => 2,
                Pass::Update => 0,
                _ => 1,
            };
            let end = ready + length;
            for &replica in replicas {
                free[replica] = end;
                next[replica] += 1;
            }
            done.insert(action, end);
            let is_forward = match action.pass {
                Pass::Forward => true,
                Pass::Backward | Pass::InputGradient => false,
                _ => continue,
            };
            ends.insert((action.stage, action.micro_batch, is_forward), end);
        }
    }
    ends
}

/// Skips that wait for stages, under a schedule.
struct OnTheirWay<'a> {
    schedule: &'a Schedule,
    ends: HashMap<(usize, usize, bool), i64>,
    /// By stage and micro-batch, whether all activations are kept.
    kept: Vec<Vec<bool>>,
    /// How many, by sender, taker and worker: values beyond the micro-batches that a stage has between its passes, and
    /// gradients of those that it sent.
    known: RefCell<HashMap<[usize; 3], [usize; 2]>>,
}

impl<'a> OnTheirWay<'a> {
    fn new(schedule: &'a Schedule, recompute: &Recompute) -> Self {
        let stages = 0..schedule.stages();
        Self {
            schedule,
            ends: ends(schedule),
            kept: stages
                .map(|stage| recompute.kept(schedule, stage))
                .collect(),
            known: RefCell::default(),
        }
    }

    /// Bytes for each stage. Of several replicas, the most.
    fn bytes(&self, profile: &Profile, cut: &[usize]) -> Vec<u64> {
        let ends: Vec<usize> = (1..=cut.len())
            .map(|count| cut[..count].iter().sum())
            .collect();
        let stage_of = |layer: usize| ends.iter().position(|&end| layer < end).unwrap();
        let of_worker = |stage: usize, worker: usize| {
            let mut all = 0;
            for skip in &profile.skips {
                let sender = stage_of(skip.from);
                let mut takers: Vec<_> = skip.to.iter().map(|&to| stage_of(to)).collect();
                if sender != stage && takers.contains(&stage) {
                    all += self.counts([sender, stage, worker])[0] as u64 * skip.bytes;
                }
                takers.retain(|&taker| sender == stage && taker != stage);
                for taker in takers {
                    all += self.counts([stage, taker, worker])[1] as u64 * skip.bytes;
                }
            }
            all
        };
        let of_stage = |stage: usize| {
            let workers = self.schedule.replicas(stage).iter();
            workers
                .map(|&worker| of_worker(stage, worker))
                .max()
                .unwrap()
        };
        (0..cut.len()).map(of_stage).collect()
    }

    fn counts(&self, key @ [sender, taker, worker]: [usize; 3]) -> [usize; 2] {
        let count = || {
            let end = |stage: usize, i, forward| self.ends[&(stage, i, forward)];
            let gone = |i| end(sender, i, false);
            let has = |stage: usize, i| self.schedule.worker_of(stage, i) == worker;
            let last = self.ends.values().copied().max().unwrap();
            let most = |is_there: &dyn Fn(usize, i64) -> bool| {
                let all = 0..self.schedule.micro_batches();
                let at = |now: i64| all.clone().filter(|&i| is_there(i, now)).count();
                (0..=last).map(at).max().unwrap()
            };
            // Where both stages are on the worker, a value is among the sender's activations if these are kept; if not,
            // its gradient follows it there.
            let kept = &self.kept[sender];
            let values = most(&|i, now| {
                let waits = match has(sender, i) {
                    true => !kept[i] && now < gone(i),
                    false => now < end(taker, i, false),
                };
                has(taker, i) && end(sender, i, true) <= now && waits
            });
            let gradients = most(&|i, now| {
                let is_gradient = end(taker, i, false) <= now && now < gone(i);
                has(sender, i) && is_gradient && (kept[i] || !has(taker, i))
            });
            let in_flight = self.schedule.peak_in_flight()[taker];
            [values.saturating_sub(in_flight), gradients]
        };
        *self.known.borrow_mut().entry(key).or_insert_with(count)
    }
}

/// What a stage of some layers repeats and keeps of a micro-batch that recomputes segments of them.
#[derive(Default)]
struct Rerun {
    quiet: f64,
    again: f64,
    late: f64,
    inputs: f64,
    kept: f64,
    most: f64,
}

impl Rerun {
    /// Each value that is kept, with the first layer before whose backward pass it is gone.
    fn of(profile: &Profile, own: Range<usize>, segments: &[Range<usize>]) -> Self {
        let layers = &profile.layers;
        let is_again = |layer: usize| segments.iter().any(|run| run.contains(&layer));
        let begins = |layer: usize| segments.iter().any(|run| run.start == layer);
        let bytes = |layer: usize| layers[layer].kept.unwrap_or(layers[layer].output) as f64;
        let mut all = Self::default();
        let mut values: Vec<(usize, f64)> = Vec::new();
        let end = own.end;
        for layer in own.clone() {
            let mut input = match layer {
                0 => 0,
                _ => layers[layer - 1].output,
            } as f64;
            // What a segment sends, of which nothing is kept, or other stages. Its gradient is as large.
            let ended = segments.iter().find(|run| run.end == layer);
            let senders = match layer == own.start {
                true => Some(0..layer),
                false => ended.cloned(),
            };
            let taken = senders.map(|from| taken_elsewhere(profile, from, layer..own.end));
            input += taken.unwrap_or(0) as f64;
            // A layer that keeps its activations has its output among them; within a segment nothing is kept.
            let is_needed = begins(layer) || !is_again(layer);
            if layer == own.start || (is_needed && is_again(layer - 1)) {
                match is_again(layer) {
                    true => all.inputs += input,
                    false => all.kept += input,
                }
                values.push((layer, input));
            }
            if is_again(layer) {
                all.quiet += layers[layer].quiet.unwrap_or(layers[layer].forward);
            } else {
                all.quiet += layers[layer].forward;
                all.kept += bytes(layer);
                values.push((layer, bytes(layer)));
            }
        }
        for (place, run) in segments.iter().rev().enumerate() {
            let seconds: f64 = run.clone().map(|layer| layers[layer].forward).sum();
            match place {
                0 => all.again = seconds,
                _ => all.late += seconds,
            }
        }
        // Backward, layer by layer: values and tapes up to it are there, and the last segment's from the begin.
        let last = segments.last();
        for layer in own {
            let is_there = |other: usize| other <= layer;
            let kept: f64 = (values.iter().filter(|value| is_there(value.0)))
                .map(|value| value.1)
                .sum();
            let tapes = segments.iter().filter(|run| {
                let runs_early = last == Some(run) && run.end <= layer;
                run.contains(&layer) || runs_early
            });
            let tapes = tapes.flat_map(|run| run.clone()).filter(|&at| is_there(at));
            let tapes: f64 = tapes.map(bytes).sum();
            // While a segment goes backward, it has the gradients of what layers after it took.
            let going = segments.iter().find(|run| run.contains(&layer));
            let of_skips = going.map(|run| taken_elsewhere(profile, run.clone(), run.end..end));
            let beside = beside(&layers[layer]) + of_skips.unwrap_or(0);
            all.most = all.most.max(kept + tapes + beside as f64);
        }
        all
    }
}

/// All ways to recompute some layers of a model.
fn segmentations(layers: usize) -> Vec<Recompute> {
    let mut all: Vec<Vec<Range<usize>>> = vec![Vec::new()];
    for layer in 0..layers {
        let longer = all.iter().flat_map(|runs| {
            let mut begun = runs.clone();
            begun.push(layer..layer + 1);
            let last = runs.last().filter(|last| last.end == layer);
            let grown = last.map(|last| {
                let mut runs = runs.clone();
                *runs.last_mut().unwrap() = last.start..layer + 1;
                runs
            });
            [Some(runs.clone()), Some(begun), grown]
                .into_iter()
                .flatten()
        });
        all = longer.collect();
    }
    let runs = all.into_iter().filter(|runs| !runs.is_empty());
    runs.map(|runs| Recompute::Segments(Segments::new(runs).unwrap()))
        .collect()
}

/// The gradients of a stage's layers in buckets: the part of the last pass after which each is complete,
/// and its bytes. Each has as many layers as fit, and at least one.
fn buckets(
    limit: u64,
    schedule: &Schedule,
    stage: usize,
    layers: &[LayerProfile],
) -> Vec<(f64, f64)> {
    if schedule.replicas(stage).len() == 1 {
        return Vec::new();
    }
    let actions = || schedule.workers().iter().flatten();
    let is_split = actions().any(|action| action.pass == Pass::WeightGradient);
    let seconds = |layers: &[LayerProfile]| -> f64 {
        let own = |l: &LayerProfile| match is_split {
            true => l.weight.unwrap_or(l.backward / 2.0),
            false => l.backward,
        };
        layers.iter().map(own).sum()
    };
    let trained: Vec<usize> = (0..layers.len())
        .filter(|&i| trained_bytes(&layers[i]) > 0)
        .collect();
    let bytes = |own: &[usize]| own.iter().map(|&i| trained_bytes(&layers[i])).sum::<u64>();
    let mut left = &trained[..];
    let mut buckets = Vec::new();
    while !left.is_empty() {
        let limit = if buckets.is_empty() {
            limit.min(1 << 20)
        } else {
            limit
        };
        let mut firsts = 0..left.len();
        let first = firsts
            .find(|&first| bytes(&left[first..]) <= limit)
            .unwrap_or(left.len() - 1);
        let ready = seconds(&layers[left[first]..]) / seconds(layers);
        buckets.push((ready, bytes(&left[first..]) as f64));
        left = &left[..first];
    }
    buckets
}

/// PipeDream's schedules: of each stage and of replicas of stages, each with a micro-batch in every update.
fn windows(request: &PlanRequest, micro_batches: usize) -> Vec<Schedule> {
    let most = *request.workers.iter().max().unwrap();
    let all = (request.workers.iter()).flat_map(|&workers| {
        let stages = 1..=workers.min(request.profile.layers.len());
        stages.flat_map(move |stages| compositions(workers, stages))
    });
    let fits = |replicas: &Vec<usize>| {
        let one_each = replicas.iter().all(|&count| count == 1);
        (one_each || request.replicas) && replicas.iter().all(|&count| count <= micro_batches)
    };
    let schedules = all.filter(fits).map(|replicas| {
        let stages = replicas.len();
        let scheduler = PipeDream::new(replicas).with_update_every(micro_batches);
        let updates = 2 * most.max(2);
        scheduler.schedule(stages, updates * micro_batches).unwrap()
    });
    schedules.collect()
}

/// What a window starts with: each worker's weights and optimizer states.
fn kept_for_failures(request: &PlanRequest, schedule: &Schedule, cut: &[usize]) -> Vec<u64> {
    let workers = schedule.workers().iter().map(|actions| {
        let stage = actions[0].stage;
        let first: usize = cut[..stage].iter().sum();
        let layers = &request.profile.layers[first..first + cut[stage]];
        let parameters: u64 = layers.iter().map(|layer| layer.parameters).sum();
        let trained: u64 = layers.iter().map(trained_bytes).sum();
        let is_window = schedule.is_asynchronous();
        u64::from(is_window) * (parameters + trained * u64::from(request.state.on_device))
    });
    workers.collect()
}

/// The fastest step of all candidates that fit, by trying every one; or the fastest update.
fn brute_force(request: &PlanRequest) -> Option<f64> {
    let layers = request.profile.layers.len();
    let (mut best, one) = (None::<f64>, vec![1]);
    let mut modes = request.recompute.clone();
    if request.by_layer {
        modes.extend(segmentations(layers));
    }
    for &micro_batches in &request.micro_batches {
        let is_asynchronous = request.rules == [Rule::PipeDream];
        let mut schedules = match is_asynchronous {
            true => windows(request, micro_batches),
            false => Vec::new(),
        };
        for &workers in request.workers.iter().filter(|_| !is_asynchronous) {
            for &rule in &request.rules {
                let takes_chunks = rule.takes_chunks();
                for &chunks in if takes_chunks { &request.chunks } else { &one } {
                    let scheduler = rule.scheduler(&RuleOptions::with_chunks(chunks));
                    let stages = scheduler.stages(workers);
                    // A single worker has nothing to interleave.
                    let is_worth_it = workers > 1 || chunks == 1;
                    if stages <= layers && is_worth_it {
                        schedules.push(scheduler.schedule(stages, micro_batches).unwrap());
                    }
                }
            }
            for pipelines in
                (2..=workers).filter(|p| request.replicas && workers.is_multiple_of(*p))
            {
                for &rule in request.rules.iter().filter(|rule| !rule.takes_chunks()) {
                    let stages = rule.stages(workers / pipelines);
                    for shares in compositions(micro_batches, pipelines) {
                        let scheduler = DataParallel {
                            scheduler: rule,
                            shares,
                        };
                        if stages <= layers {
                            schedules.push(scheduler.schedule(stages, micro_batches).unwrap());
                        }
                    }
                }
            }
            for stages in (1..=workers.min(layers)).filter(|_| request.replicas) {
                for replicas in compositions(workers, stages) {
                    let schedule = RoundRobin::new(replicas).schedule(stages, micro_batches);
                    schedules.push(schedule.unwrap());
                }
            }
        }
        for schedule in &schedules {
            let cuts = compositions(layers, schedule.stages());
            let devices = arrangements(request.machine.devices.len(), schedule.workers().len());
            for recompute in &modes {
                let on_their_way = OnTheirWay::new(schedule, recompute);
                let places = devices
                    .iter()
                    .flat_map(|devices| cuts.iter().map(move |cut| (devices, cut)));
                for (devices, cut) in places {
                    let costs = costs(
                        request,
                        &on_their_way,
                        micro_batches,
                        recompute,
                        cut,
                        devices,
                    );
                    let simulation = schedule.simulate(&costs).unwrap();
                    let kept = kept_for_failures(request, schedule, cut);
                    let memory = simulation.peak_memory().into_iter().zip(kept);
                    let fits = memory.zip(devices).all(|((needs, kept), &device)| {
                        let has = request.machine.devices[device].memory;
                        has.is_none_or(|has| needs as u64 + kept <= has)
                    });
                    let time = simulation.makespan() / schedule.updates().max(1) as f64
                        + visits(request, schedule, cut, devices);
                    if fits && best.is_none_or(|best| time < best) {
                        best = Some(time);
                    }
                }
            }
        }
    }
    best
}

/// The second device is three times as fast.
#[test]
fn a_plan_has_shares() {
    let layer = LayerProfile {
        forward: 1.0,
        backward: 2.0,
        ..LayerProfile::default()
    };
    let profile = Profile {
        samples: 1,
        input: 0,
        layers: vec![layer],
        skips: vec![],
    };
    let mut machine = Machine::uniform(2);
    machine.devices[1].speed = 3.0;
    let plan = |replicas| {
        let request = PlanRequest {
            replicas,
            workers: vec![1, 2],
            micro_batches: vec![8],
            ..PlanRequest::new(&profile, &machine, 8)
        };
        request.plan().unwrap().best
    };
    let best = plan(true);
    let shares: Vec<_> = best.devices.iter().zip(&best.shares).collect();
    assert!(
        shares == [(&0, &1), (&1, &3)] || shares == [(&1, &3), (&0, &1)],
        "{best:?}"
    );
    assert_eq!(
        (&best.replicas[..], best.forecast.step_time),
        (&[2][..], 6.0)
    );
}

/// Five layers with 1 s forward, 4 s backward. Gradients are complete at 9 s (the last layer), at 17 s (the
/// next two) and at 25 s.
#[test]
fn gradients_are_added_up_in_buckets() {
    let mib = |parameters: f64| (parameters * f64::from(1 << 20)) as u64;
    let layer = |parameters: f64| LayerProfile {
        forward: 1.0,
        backward: 4.0,
        parameters: mib(parameters),
        ..LayerProfile::default()
    };
    let profile = Profile {
        samples: 1,
        input: 0,
        layers: [3.0, 10.0, 20.0, 0.75, 0.5].map(layer).to_vec(),
        skips: vec![],
    };
    let schedule = DataParallel::equal(GPipe, 2).schedule(1, 2).unwrap();
    for (mib_a_second, bucket, expected) in [
        (1.0, BUCKET, 50.75),   // 9 to 9.5, 17 to 37.75, and 13 s more
        (100.0, BUCKET, 25.13), // to 9.005, 17.2075 and 25.13
        (1.0, u64::MAX, 58.75), // the first bucket is small; 25 to 58.75
        (1.0, 1, 50.0),         // layer by layer: to 9.5, 13.75, 37, 47 and 50
    ] {
        let level = LinkLevel {
            workers: 2,
            bandwidth: mib(mib_a_second) as f64,
            latency: 0.0,
        };
        let setup = Setup {
            profiles: std::slice::from_ref(&profile),
            machine: &Machine {
                levels: vec![level],
                ..Machine::uniform(2)
            },
            devices: &[0, 1],
            schedule: &schedule,
            recompute: &Recompute::Never,
            weights: WeightPolicy::default(),
            state: OptimizerState::new(2),
            bucket,
        };
        let found = setup.forecast(&[5]).unwrap().step_time;
        assert!((found - expected).abs() < 1e-9, "{found} {expected}");
    }
}

/// Of states that lie elsewhere, those of three layers are there at an update, when activations are gone; and so are
/// gradients that lie elsewhere.
#[test]
fn states_elsewhere_visit_a_device() {
    let layer = |parameters| LayerProfile {
        forward: 1.0,
        backward: 2.0,
        parameters,
        output: 1,
        ..LayerProfile::default()
    };
    let profile = Profile {
        samples: 1,
        input: 1,
        layers: [10, 20, 0, 30, 40, 15].map(layer).to_vec(),
        skips: vec![],
    };
    let forecast = |cut: &[usize], state| {
        let schedule = GPipe.schedule(cut.len(), 1).unwrap();
        let setup = Setup {
            profiles: std::slice::from_ref(&profile),
            machine: &Machine::uniform(cut.len()),
            devices: &(0..cut.len()).collect::<Vec<_>>(),
            schedule: &schedule,
            recompute: &Recompute::Never,
            weights: WeightPolicy::default(),
            state,
            bucket: BUCKET,
        };
        setup.forecast(cut).unwrap().memory
    };
    let optimizer = |cut: &[usize], state| {
        let memory = forecast(cut, state);
        memory.iter().map(|own| own.optimizer).collect::<Vec<_>>()
    };
    let away = |on_device, offloaded| OptimizerState {
        on_device,
        offloaded,
        ..OptimizerState::new(0)
    };
    assert_eq!(optimizer(&[6], away(2, 0)), [2 * 115]);
    // All activations are gone, and all gradients are there.
    assert_eq!(optimizer(&[6], away(0, 2)), [2 * (20 + 30 + 40)]);
    assert_eq!(optimizer(&[6], away(1, 1)), [115 + (20 + 30 + 40)]);
    // And a message of the other stage, of a byte.
    assert_eq!(optimizer(&[3, 3], away(0, 1)), [30 - 1, 85 - 1]);
    let gradients = |cut: &[usize]| {
        let state = OptimizerState {
            offloads_gradients: true,
            ..away(0, 1)
        };
        let memory = forecast(cut, state).into_iter();
        memory
            .map(|own| (own.gradients, own.optimizer))
            .collect::<Vec<_>>()
    };
    assert_eq!(gradients(&[6]), [(90, 90)]);
    assert_eq!(gradients(&[3, 3]), [(30, 30 - 1), (85, 85 - 1)]);
    // Sums over mini-batches are where gradients are: with replicas, on their devices.
    let accumulating = |offloads_gradients, replicas| {
        let schedule = RoundRobin::new(vec![replicas])
            .schedule(1, replicas)
            .unwrap();
        let state = OptimizerState {
            offloads_gradients,
            accumulates: true,
            ..away(0, 1)
        };
        let setup = Setup {
            profiles: std::slice::from_ref(&profile),
            machine: &Machine::uniform(replicas),
            devices: &(0..replicas).collect::<Vec<_>>(),
            schedule: &schedule,
            recompute: &Recompute::Never,
            weights: WeightPolicy::default(),
            state,
            bucket: BUCKET,
        };
        let memory = setup.forecast(&[6]).unwrap().memory;
        (memory[0].gradients, memory[0].optimizer)
    };
    assert_eq!(accumulating(true, 1), (90, 90));
    assert_eq!(accumulating(true, 2), (115, 115 + 90));
    assert_eq!(accumulating(false, 1), (115, 115 + 90));
}

/// While a layer's backward pass runs, the gradients of the next layer go and its own come, but for the first
/// micro-batch. An update moves states there and back, and takes gradients twice.
#[test]
fn what_is_offloaded_takes_time() {
    let layer = |backward, parameters| LayerProfile {
        forward: 1.0,
        backward,
        parameters,
        ..LayerProfile::default()
    };
    let profile = Profile {
        samples: 1,
        input: 0,
        layers: vec![layer(4.0, 10), layer(1.0, 20), layer(2.0, 30)],
        skips: vec![],
    };
    let step_time = |store, rule: Rule, cut: &[usize]| {
        let mut machine = Machine::uniform(cut.len());
        (machine.devices.iter_mut()).for_each(|device| device.store = store);
        let setup = Setup {
            profiles: std::slice::from_ref(&profile),
            machine: &machine,
            devices: &(0..cut.len()).collect::<Vec<_>>(),
            schedule: &rule.schedule(cut.len(), 2).unwrap(),
            recompute: &Recompute::Never,
            weights: WeightPolicy::default(),
            state: OptimizerState {
                offloaded: 2,
                offloads_gradients: true,
                ..OptimizerState::new(0)
            },
            bucket: BUCKET,
        };
        setup.forecast(cut).unwrap().step_time
    };
    // The second layer waits 30 / 10 − 1 and (30 + 20) / 10 − 1 seconds, the first one not at all. GPipe's second backward
    // pass follows at once, and waits (10 + 30) / 10 − 2 seconds when it begins.
    let update = |bytes: f64| bytes * (2.0 * 2.0 + 2.0) / 10.0;
    assert_eq!(step_time(None, Rule::GPipe, &[3]), 2.0 * (3.0 + 7.0));
    let found = step_time(Some(10.0), Rule::OneForwardOneBackward, &[3]);
    assert_eq!(found, 2.0 * (3.0 + 7.0 + 3.0) + update(60.0));
    let found = step_time(Some(10.0), Rule::GPipe, &[3]);
    assert_eq!(found, 2.0 * (3.0 + 7.0 + 3.0) + 2.0 + update(60.0));
    // In halves, gradients of weights take half as long: the second layer waits half a second more each time, the first
    // one (20 + 10) / 10 − 2 seconds for the second micro-batch, and the last one (10 + 30) / 10 − 1 if it follows.
    let halves = Rule::ZeroBubbleH1.schedule(1, 2).unwrap();
    let adds = |action: &Action| action.pass.computes_weight_gradients();
    let pairs = halves.workers()[0].windows(2);
    let follows = pairs.filter(|pair| pair.iter().all(adds)).count() as f64;
    let found = step_time(Some(10.0), Rule::ZeroBubbleH1, &[3]);
    assert_eq!(
        found,
        2.0 * (3.0 + 7.0 + 3.5) + 1.0 + 3.0 * follows + update(60.0)
    );
    // The first stage's second pass waits (10 + 20) / 10 − 1 seconds, the other one's (30 + 30) / 10 − 2: half of that is
    // in each of its two passes. Both updates are as long, and begin together.
    let found = step_time(Some(10.0), Rule::GPipe, &[2, 1]);
    assert_eq!(found, 5.0 + (2.0 + 2.0) + 2.0 * (5.0 + 1.0) + update(30.0));
}

/// Bytes of the parameters that are trained.
fn trained_bytes(layer: &LayerProfile) -> u64 {
    layer.trained.unwrap_or(layer.parameters)
}

prop_compose! {
    fn layer()(
        forward in 0.1..10.0_f64, backward in 0.1..20.0_f64, weight in proptest::option::of(0.0..1.0_f64),
        quiet in proptest::option::of(0.5..1.0_f64), fixed in 0.0..0.5_f64, parameters in 0..100_u64,
        output in 1..1000_u64, kept in proptest::option::of(1..2000_u64),
        trained in proptest::option::of(0.0..=1.0_f64), cast in proptest::option::of(0..50_u64),
        bookkeeping in proptest::option::of(0..20_u64),
        context in proptest::option::of(0..3000_u64),
        workspace in proptest::option::of(0..3000_u64),
    ) -> LayerProfile {
        LayerProfile {
            name: String::new(),
            forward,
            quiet: quiet.map(|share| share * forward),
            backward,
            weight: weight.map(|share| share * backward),
            forward_fixed: fixed * forward,
            backward_fixed: fixed * backward,
            parameters,
            trained: trained.map(|share: f64| (share * parameters as f64) as u64),
            cast,
            output,
            kept,
            bookkeeping,
            context,
            workspace,
        }
    }
}

prop_compose! {
    /// From a layer to one or two later ones.
    fn skip(layers: usize)(
        from in 0..layers.saturating_sub(1).max(1), ways in proptest::collection::btree_set(1..8_usize, 1..3),
        bytes in 1..1500_u64,
    ) -> SkipProfile {
        let to = ways.into_iter().map(|way| from + way);
        SkipProfile { from, to: to.filter(|&to| to < layers).collect(), bytes }
    }
}

prop_compose! {
    fn profile(layers: Range<usize>)(
        layers in proptest::collection::vec(layer(), layers),
    )(
        skips in proptest::collection::vec(skip(layers.len()), 0..3), layers in Just(layers),
    ) -> Profile {
        let mut profile = Profile { samples: 2, input: 100, layers, skips };
        profile.skips.retain(|skip| !skip.to.is_empty());
        profile
    }
}

fn machine(devices: usize, unequal: bool, memory: Option<u64>) -> Machine {
    let device = |index: usize| DeviceSpec {
        name: ["cpu", "cuda:0"][index % 2].to_owned(),
        speed: 1.0 + f64::from(unequal) * index as f64 / 2.0,
        memory: memory.map(|bytes| bytes + 100 * index as u64 * u64::from(unequal)),
        store: None,
    };
    Machine {
        devices: (0..devices).map(device).collect(),
        levels: vec![LinkLevel {
            workers: devices,
            bandwidth: 1e3,
            latency: 0.05,
        }],
    }
}

fn compare(request: &PlanRequest) -> Result<(), TestCaseError> {
    match (request.plan(), brute_force(request)) {
        (Ok(plan), Some(best)) => {
            prop_assert!(plan.exact);
            let found = plan.best.forecast.step_time;
            let is_best = (found - best).abs() <= 1e-9 * best;
            prop_assert!(is_best, "{found} {best} {:?}", plan.best);
            for other in &plan.runners_up {
                let is_too_large = matches!(other.verdict, Verdict::TooLarge { .. });
                let is_slower = other.candidate.forecast.step_time >= found * (1.0 - 1e-9);
                prop_assert!(is_slower || is_too_large);
            }
        }
        (Err(PlanError::TooLarge { .. }), None) => {}
        (plan, best) => prop_assert!(false, "{plan:?} {best:?}"),
    }
    Ok(())
}

/// A chain whose layers may be recomputed, on devices of unequal memory and speed, under one rule.
fn by_layer(
    (profile, memories, speeds): (Profile, Vec<u64>, Vec<f64>),
    (rule, workers, micro_batches): (Rule, usize, usize),
) -> Result<(), TestCaseError> {
    let mut machine = machine(memories.len(), false, Some(0));
    for (device, (memory, speed)) in machine.devices.iter_mut().zip(memories.iter().zip(speeds)) {
        (device.memory, device.speed) = (Some(*memory), speed);
    }
    let workers = workers.min(machine.devices.len()).min(profile.layers.len());
    let request = PlanRequest {
        rules: vec![rule],
        workers: vec![workers],
        chunks: vec![1],
        micro_batches: vec![micro_batches],
        state: OptimizerState::new(1),
        ..PlanRequest::new(&profile, &machine, 8)
    };
    if rule.stages(workers) > profile.layers.len() {
        return Ok(());
    }
    compare(&request)
}

prop_compose! {
    fn limited_devices()(
        devices in 1..4_usize,
    )(
        memories in proptest::collection::vec(1_000..20_000_u64, devices),
        speeds in proptest::collection::vec(proptest::sample::select(&[0.5, 1.0, 1.5][..]), devices),
    ) -> (Vec<u64>, Vec<f64>) {
        (memories, speeds)
    }
}

fn any_rule() -> impl Strategy<Value = Rule> {
    proptest::sample::select(Rule::synchronous().collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn plans_by_layer_are_the_best(
        profile in profile(1..7), (memories, speeds) in limited_devices(),
        rule in any_rule(), workers in 1..4_usize, micro_batches in 1..6_usize,
    ) {
        by_layer((profile, memories, speeds), (rule, workers, micro_batches))?;
    }
}

proptest! {
    /// Layers that are recomputed cost what they do one by one.
    #[test]
    fn forecasts_know_segments(
        profile in profile(2..9), rule in any_rule(), workers in 1..4_usize,
        micro_batches in 1..6_usize, places in (any::<u64>(), any::<u64>()),
    ) {
        let scheduler = rule.scheduler(&RuleOptions::with_chunks(1));
        let (stages, layers) = (scheduler.stages(workers), profile.layers.len());
        prop_assume!(stages <= layers);
        let machine = machine(workers, true, None);
        let request = request(&profile, &machine);
        let modes = [segmentations(layers), vec![Recompute::Never; 4]].concat();
        let recompute = &modes[places.0 as usize % modes.len()];
        let cuts = compositions(layers, stages);
        let cut = &cuts[places.1 as usize % cuts.len()];
        let schedule = scheduler.schedule(stages, micro_batches).unwrap();
        let devices: Vec<_> = (0..workers).collect();
        let on_their_way = OnTheirWay::new(&schedule, recompute);
        let costs = costs(&request, &on_their_way, micro_batches, recompute, cut, &devices);
        let expected = schedule.simulate(&costs).unwrap();
        let samples = request.mini_batch.div_ceil(micro_batches);
        let setup = Setup {
            profiles: &[profile.for_samples(samples)],
            machine: &machine,
            devices: &devices,
            schedule: &schedule,
            recompute,
            weights: WeightPolicy::default(),
            state: request.state,
            bucket: BUCKET,
        };
        let found = setup.forecast(cut).unwrap();
        prop_assert!((found.step_time / expected.makespan() - 1.0).abs() < 1e-9);
        for (found, expected) in found.memory.iter().zip(expected.peak_memory()) {
            prop_assert_eq!(found.total(), expected as u64);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    #[ignore = "takes a minute"]
    fn ten_thousand_plans_by_layer_are_the_best(
        profile in profile(1..7), (memories, speeds) in limited_devices(),
        rule in any_rule(), workers in 1..4_usize, micro_batches in 1..6_usize,
    ) {
        by_layer((profile, memories, speeds), (rule, workers, micro_batches))?;
    }
}

fn request<'a>(profile: &'a Profile, machine: &'a Machine) -> PlanRequest<'a> {
    PlanRequest {
        chunks: vec![2],
        micro_batches: vec![1, 3, 4],
        state: OptimizerState::new(1),
        by_layer: false,
        ..PlanRequest::new(profile, machine, 8)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn plans_are_the_best(profile in profile(1..6), devices in 1..4_usize) {
        let machine = machine(devices, false, None);
        compare(&request(&profile, &machine))?;
    }

    #[test]
    fn plans_fit(profile in profile(2..6), memory in 1_000..20_000_u64) {
        let machine = machine(2, false, Some(memory));
        compare(&request(&profile, &machine))?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn replicas_are_considered(
        profile in profile(1..5), memory in 1_000..20_000_u64, bucket in 1..200_u64,
    ) {
        let machine = machine(3, false, Some(memory));
        let request = PlanRequest {
            replicas: true,
            bucket,
            rules: vec![Rule::GPipe, Rule::OneForwardOneBackward],
            workers: (1..=3).collect(),
            ..request(&profile, &machine)
        };
        compare(&request)?;
    }

    /// Replicas recompute the same layers, which have to fit the devices of all.
    #[test]
    fn replicas_recompute_by_layer(
        profile in profile(1..6), (memories, speeds) in limited_devices(), rule in any_rule(),
        shares in proptest::collection::vec(1..4_usize, 1..3), of_stages: bool, m in 1..5_usize,
    ) {
        let (layers, devices) = (profile.layers.len(), memories.len());
        let pipelines = shares.len().min(devices);
        let round_robin = RoundRobin::new(vec![pipelines, devices - pipelines]);
        let data_parallel = DataParallel {
            scheduler: rule.scheduler(&RuleOptions::with_chunks(2)),
            shares: shares[..pipelines].to_vec(),
        };
        let (stages, micro_batches, schedule) = if of_stages && pipelines < devices {
            (2, m, round_robin.schedule(2, m))
        } else {
            let (stages, m) = (data_parallel.scheduler.stages(devices / pipelines), m.max(pipelines));
            (stages, m, data_parallel.schedule(stages, m))
        };
        if stages > layers {
            return Ok(());
        }
        let schedule = schedule.unwrap();
        let mut machine = machine(devices, false, Some(0));
        for (device, (memory, speed)) in machine.devices.iter_mut().zip(memories.iter().zip(speeds)) {
            (device.memory, device.speed) = (Some(*memory), speed);
        }
        let request = request(&profile, &machine);
        let devices: Vec<_> = (0..schedule.workers().len()).collect();
        let mut best = None::<f64>;
        for recompute in segmentations(layers).iter().chain(&[Recompute::Never, Recompute::Always]) {
            let on_their_way = OnTheirWay::new(&schedule, recompute);
            for cut in compositions(layers, stages) {
                let costs = costs(&request, &on_their_way, micro_batches, recompute, &cut, &devices);
                let simulation = schedule.simulate(&costs).unwrap();
                let mut memory = simulation.peak_memory().into_iter().zip(&memories);
                let fits = memory.all(|(needs, has)| needs as u64 <= *has);
                if fits && best.is_none_or(|best| simulation.makespan() < best) {
                    best = Some(simulation.makespan());
                }
            }
        }
        let setup = Setup {
            profiles: &[profile.for_samples(request.mini_batch.div_ceil(micro_batches))],
            machine: &machine,
            devices: &devices,
            schedule: &schedule,
            recompute: &Recompute::Always,
            weights: WeightPolicy::default(),
            state: request.state,
            bucket: BUCKET,
        };
        let found = setup.choose_layers(None).unwrap();
        let mut memory = found.memory.iter().zip(&memories);
        let fits = memory.all(|(needs, has)| needs.total() <= *has);
        prop_assert_eq!(fits, best.is_some());
        if let Some(best) = best {
            prop_assert!((found.step_time / best - 1.0).abs() < 1e-9, "{} {best}", found.step_time);
        }
    }

    /// States, and gradients where there are no replicas, lie in stores of unlike speed.
    #[test]
    fn what_is_offloaded_is_considered(
        profile in profile(1..5), stores in prop::collection::vec(1.0..40.0_f64, 3),
        has_stores in 1..8_u8, replicas: bool, rule in any_rule(), gradients: bool,
    ) {
        let mut machine = machine(3, false, None);
        let devices = machine.devices.iter_mut().zip(stores).enumerate();
        for (number, (device, store)) in devices {
            device.store = (has_stores & 1 << number != 0).then_some(store);
        }
        let request = PlanRequest {
            replicas,
            rules: vec![Rule::GPipe, if replicas { Rule::OneForwardOneBackward } else { rule }],
            workers: (1..=if replicas { 3 } else { profile.layers.len().min(3) }).collect(),
            chunks: vec![1],
            state: OptimizerState {
                offloaded: 2,
                offloads_gradients: gradients,
                ..OptimizerState::new(0)
            },
            ..request(&profile, &machine)
        };
        compare(&request)?;
    }

    #[test]
    fn without_a_flush(
        profile in profile(1..5), memory in 2_000..40_000_u64, bucket in 1..200_u64, replicas: bool,
        unequal: bool,
    ) {
        let machine = machine(3, unequal, Some(memory));
        let request = PlanRequest {
            replicas,
            bucket,
            rules: vec![Rule::PipeDream],
            workers: (1..=if replicas { 3 } else { profile.layers.len().min(3) }).collect(),
            ..request(&profile, &machine)
        };
        compare(&request)?;
    }

    /// A model of one layer, on up to three devices of unequal speed.
    #[test]
    fn faster_replicas_have_larger_shares(
        profile in profile(1..2), speeds in prop::collection::vec(0.25..4.0_f64, 3), m in 1..9_usize,
    ) {
        let mut machine = Machine::uniform(3);
        for (device, speed) in machine.devices.iter_mut().zip(speeds) {
            device.speed = speed;
        }
        let request = PlanRequest {
            replicas: true,
            rules: vec![Rule::GPipe],
            workers: vec![1, 2, 3],
            micro_batches: vec![m],
            ..request(&profile, &machine)
        };
        compare(&request)?;
    }

    #[test]
    fn unequal_devices_are_ordered(profile in profile(3..6), memory in 2_000..20_000_u64) {
        let machine = machine(3, true, Some(memory));
        let request = PlanRequest {
            rules: vec![Rule::OneForwardOneBackward, Rule::ZeroBubbleH1],
            ..request(&profile, &machine)
        };
        compare(&request)?;
    }
}

/// Backward passes in halves are tried where a layer can defer something, and where nothing else is.
#[test]
fn halves_that_gain_nothing_are_not_tried() {
    let machine = Machine::uniform(2);
    let plan = |weights: [Option<f64>; 3], rules: &[Rule]| {
        let layer = |weight| LayerProfile {
            forward: 1.0,
            backward: 2.0,
            weight,
            output: 1,
            ..LayerProfile::default()
        };
        let layers = weights.map(layer).to_vec();
        let profile = Profile {
            samples: 1,
            input: 1,
            layers,
            skips: vec![],
        };
        let request = PlanRequest {
            rules: rules.to_vec(),
            workers: vec![2],
            ..PlanRequest::new(&profile, &machine, 4)
        };
        let plan = request.plan().unwrap();
        let others = plan.runners_up.iter().map(|other| other.candidate.schedule);
        let tried: Vec<_> = others.chain([plan.best.schedule]).collect();
        let has_halves = tried.iter().any(|rule| rule.needs_halves());
        assert!(request.left_out().iter().all(|rule| !tried.contains(rule)));
        (plan.best.schedule.needs_halves(), has_halves)
    };
    let synchronous: Vec<_> = Rule::synchronous().collect();
    let all = [
        Rule::GPipe,
        Rule::OneForwardOneBackward,
        Rule::ZeroBubbleH1,
        Rule::ZeroBubbleH2,
    ];
    let nothing = Some(0.0);
    assert_eq!(plan([nothing; 3], &synchronous), (false, false));
    assert_eq!(plan([nothing; 3], &all), (false, false));
    assert!(plan([nothing, Some(1.0), nothing], &all).1);
    assert_eq!(plan([Some(1.0); 3], &all), (true, true));
    assert_eq!(plan([None; 3], &all), (true, true));
    assert_eq!(plan([nothing; 3], &[Rule::ZeroBubbleH1]), (true, true));
}
