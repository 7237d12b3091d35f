//! Simulated steps, compared with published figures, closed forms, bounds and a naive simulator.

use std::{collections::HashMap, time::Duration};

use crate::common::{self, any_costs, any_draft, schedule_and_costs};
use proptest::prelude::*;
use stovepipe_schedule::{
    Action, Bucket, CostError, Costs, DataParallel, GPipe, Interleaved, Link,
    OneForwardOneBackward, Pass, Recompute, Rule, RuleOptions, Schedule, Scheduler, SkipCosts,
    Span, SpanKind, VHalf, VMin, VOneForwardOneBackward, ZeroBubbleH1, ZeroBubbleH2, ZeroBubbleV,
};

fn bubble(scheduler: &dyn Scheduler, micro_batches: usize, costs: &Costs) -> f64 {
    let schedule = scheduler.schedule(costs.stages.len(), micro_batches);
    let schedule = schedule.unwrap();
    schedule.simulate(costs).unwrap().bubble()
}

/// Qi et al., Zero Bubble Pipeline Parallelism, 2024: the profiled times of its two smaller models, in
/// milliseconds, and the bubble rates that its scheduler finds for them.
#[test]
fn bubbles_are_as_published_with_zero_bubble() {
    let check = |p, m, [forward, input, weight, latency]: [f64; 4], expected: [f64; 3]| {
        let mut costs = Costs::uniform(p, forward, input, weight);
        costs.links[0].latency = latency;
        let schedulers: [&dyn Scheduler; 3] =
            [&OneForwardOneBackward, &ZeroBubbleH1, &ZeroBubbleH2];
        for (scheduler, expected) in schedulers.into_iter().zip(expected) {
            let found = bubble(scheduler, m, &costs);
            let [found, expected] = [found, expected].map(|bubble| format!("{bubble:.4}"));
            assert_eq!(found, expected, "{scheduler:?}");
        }
    };
    let times = [18.522, 18.086, 9.337, 0.601];
    check(8, 24, times, [0.2431, 0.1585, 0.1083]);
    let times = [11.347, 11.248, 8.132, 0.377];
    check(16, 48, times, [0.2552, 0.1397, 0.0672]);
}

/// The same for schedules of Qi et al., Pipeline Parallelism with Controllable Memory, 2024: the bubble rates of
/// what its authors' scheduler makes. The times are a worker's, which has two stages.
#[test]
fn bubbles_are_as_published_with_less_memory() {
    let check = |p: usize, m, [forward, input, weight, latency]: [f64; 4], expected: [f64; 3]| {
        let [forward, input, weight] = [forward, input, weight].map(|time| time / 2.0);
        let mut costs = Costs::uniform(2 * p, forward, input, weight);
        costs.links[0].latency = latency;
        let schedulers: [&dyn Scheduler; 3] = [&VMin, &VHalf, &VOneForwardOneBackward];
        for (scheduler, expected) in schedulers.into_iter().zip(expected) {
            let found = bubble(scheduler, m, &costs);
            let [found, expected] = [found, expected].map(|bubble| format!("{bubble:.4}"));
            assert_eq!(found, expected, "{scheduler:?}");
        }
    };
    let times = [18.522, 18.086, 9.337, 0.601];
    check(8, 24, times, [0.3353, 0.1702, 0.2503]);
    let times = [11.347, 11.248, 8.132, 0.377];
    check(16, 48, times, [0.2927, 0.1682, 0.2350]);
    check(8, 64, [3.0, 4.0, 2.0, 0.0], [0.2902, 0.0657, 0.0604]);
}

/// With more micro-batches the bubble of V-Min grows, by 3 each here; that of V-Half does not.
#[test]
fn the_bubble_of_v_half_does_not_grow() {
    for (f, i, w) in [(3.0, 4.0, 2.0), (2.0, 2.0, 1.0), (4.0, 3.0, 2.0)] {
        let [few, many] = [32, 64].map(|m| bubble_time(&VHalf, 8, m, [f, i, w]));
        assert!(many <= few + 1e-9, "{f} {i} {w}: {few} {many}");
    }
    let [few, many] = [40, 41].map(|m| bubble_time(&VMin, 8, m, [3.0, 4.0, 2.0]));
    assert_eq!(many - few, 3.0);
}

/// The step's time without its passes.
fn bubble_time(scheduler: &dyn Scheduler, p: usize, m: usize, [f, i, w]: [f64; 3]) -> f64 {
    let stages = scheduler.stages(p);
    let share = (stages / p) as f64;
    let costs = Costs::uniform(stages, f / share, i / share, w / share);
    let schedule = scheduler.schedule(stages, m).unwrap();
    schedule.simulate(&costs).unwrap().step_time() - m as f64 * (f + i + w)
}

proptest! {
    /// The table of bubbles, exactly: times are whole numbers.
    #[test]
    fn bubbles_have_their_closed_form(
        p in 1..10_usize, more in 0..20_usize, f in 1..20_u32, i in 1..20_u32, w in 0..20_u32,
    ) {
        // Enough micro-batches for a steady state, weight gradients short enough to hide.
        let (m, w) = (2 * p - 1 + more, w.min(i).min(f));
        let [f, i, w] = [f, i, w].map(f64::from);
        let before = (p - 1) as f64;
        let check = |scheduler: &dyn Scheduler, expected: f64| {
            let found = bubble_time(scheduler, p, m, [f, i, w]);
            prop_assert_eq!(found, expected, "{:?} p {} m {}", scheduler, p, m);
            Ok(())
        };
        check(&GPipe, before * (f + i + w))?;
        check(&OneForwardOneBackward, before * (f + i + w))?;
        check(&ZeroBubbleH1, before * (f + i - w))?;
        check(&ZeroBubbleH2, (before * (f + i - 2.0 * w)).max(0.0))?;
    }

    #[test]
    fn interleaving_divides_the_bubble(p in 1..8_usize, rounds in 1..5_usize, chunks in 1..5_usize) {
        let found = bubble_time(&Interleaved { chunks }, p, rounds * p, [12.0, 24.0, 24.0]);
        prop_assert_eq!(found, (p - 1) as f64 * 60.0 / chunks as f64);
    }

    /// In slots: a pass of a stage.
    #[test]
    fn less_memory_leaves_the_published_slots_idle(p in 3..33_usize, more in 0..32_usize) {
        let m = 2 * p + more;
        let slots = |scheduler: &dyn Scheduler| bubble_time(scheduler, p, m, [2.0; 3]) as usize;
        let saved = |by: usize, slots: usize| if p.is_multiple_of(by) { slots } else { 0 };
        prop_assert_eq!(slots(&VMin), 4 * p - 5 - saved(3, 2));
        prop_assert_eq!(slots(&VHalf), 3 * p - 4 - saved(2, 3));
        prop_assert_eq!(slots(&OneForwardOneBackward), 6 * p - 6);
        if let Some(most) = [(8, 21), (12, 35), (16, 49)].iter().find(|(of, _)| *of == p) {
            prop_assert!(slots(&VOneForwardOneBackward) <= most.1);
        }
    }

    #[test]
    fn zero_bubble_v_has_none(p in 1..12_usize, more in 0..20_usize) {
        let found = bubble_time(&ZeroBubbleV, p, 2 * p - 1 + more, [2.0; 3]);
        prop_assert_eq!(found, 0.0);
    }
}

/// Whatever grows with the square of the number of stages would not fit a machine, or take hours.
#[test]
fn many_stages() {
    let stages = 300_000;
    for (rule, chunks) in Rule::ALL
        .map(|rule| (rule, 2))
        .into_iter()
        .chain([(Rule::Interleaved, stages)])
    {
        let scheduler = rule.scheduler(&RuleOptions::with_chunks(chunks));
        let schedule = scheduler.schedule(stages, 1).unwrap();
        let costs = Costs::uniform(stages, 1.0, 1.0, 0.0);
        let simulation = schedule.simulate(&costs).unwrap();
        assert_eq!(simulation.makespan(), 6e5, "{rule}");
        assert!(simulation.critical_path().len() >= 2 * stages, "{rule}");
        let workers = simulation.timeline().workers.len();
        assert_eq!(simulation.peak_memory().len(), workers, "{rule}");
        assert_eq!(simulation.busy().iter().sum::<f64>(), 6e5, "{rule}");
    }
}

/// From the first stage to the third.
const SKIP: SkipCosts = SkipCosts {
    from: 0,
    to: 2,
    bytes: 1.0,
    link: Link {
        latency: 0.0,
        bandwidth: 1.0,
    },
};

/// A simulator without an order: it computes all times from the previous times until none changes. It
/// uses only the lists of actions of the schedule.
struct Naive<'a> {
    schedule: &'a Schedule,
    costs: &'a Costs,
    place: HashMap<Action, (usize, usize)>,
    /// When each worker's actions begin and end, without recomputations before them.
    times: Vec<Vec<(f64, f64)>>,
}

impl<'a> Naive<'a> {
    fn new(schedule: &'a Schedule, costs: &'a Costs) -> Self {
        let places = schedule
            .workers()
            .iter()
            .enumerate()
            .flat_map(|(worker, actions)| {
                (0..)
                    .zip(actions)
                    .map(move |(index, &action)| (action, (worker, index)))
            });
        let times = schedule.workers().iter().map(|a| vec![(0.0, 0.0); a.len()]);
        let mut naive = Self {
            schedule,
            costs,
            place: places.collect(),
            times: times.collect(),
        };
        loop {
            let times = naive.step();
            if times == naive.times {
                return naive;
            }
            naive.times = times;
        }
    }

    fn step(&self) -> Vec<Vec<(f64, f64)>> {
        let workers = 0..self.times.len();
        let mut arrivals = HashMap::new();
        for (action, arrival) in workers.clone().flat_map(|worker| self.arrivals(worker)) {
            let latest = arrivals.entry(action).or_insert(0.0);
            *latest = f64::max(*latest, arrival);
        }
        let updates = self.updates();
        let of_worker = |worker: usize| {
            let mut free = 0.0;
            let times = self.schedule.workers()[worker].iter().map(|&action| {
                let arrived = arrivals.get(&action).or_else(|| updates.get(&action));
                let arrived = arrived.copied().unwrap_or(0.0);
                let begin = f64::max(free + self.recomputation(action), arrived);
                free = begin + self.length(worker, action);
                (begin, free)
            });
            times.collect()
        };
        workers.map(of_worker).collect()
    }

    /// When all replicas of a stage have come to each of its updates, and all-reduces have ended.
    fn updates(&self) -> HashMap<Action, f64> {
        let mut latest: HashMap<Action, f64> = HashMap::new();
        for (worker, actions) in self.schedule.workers().iter().enumerate() {
            for (index, &action) in actions.iter().enumerate() {
                if action.pass == Pass::Update {
                    let before = index
                        .checked_sub(1)
                        .map_or(0.0, |i| self.times[worker][i].1);
                    let latest = latest.entry(action).or_default();
                    *latest = latest.max(before);
                }
            }
        }
        for (&update, latest) in &mut latest {
            let reduced = self.all_reduces(update.stage, Some(update));
            *latest = reduced.last().map_or(*latest, |slot| latest.max(slot.1));
        }
        latest
    }

    /// When what a worker sends arrives, by the action that it is for.
    fn arrivals(&self, worker: usize) -> Vec<(Action, f64)> {
        let mut links: HashMap<usize, f64> = HashMap::new();
        let mut arrivals = Vec::new();
        for (index, &action) in self.schedule.workers()[worker].iter().enumerate() {
            let end = self.times[worker][index].1;
            for (receiver, bytes, link) in self.messages(action) {
                let to = self.place[&receiver].0;
                let seconds = bytes / link.bandwidth;
                let arrival = if to == worker {
                    end
                } else if seconds == 0.0 {
                    end + link.latency
                } else {
                    let free = links.entry(to).or_insert(0.0);
                    *free = free.max(end) + seconds;
                    *free + link.latency
                };
                arrivals.push((receiver, arrival));
            }
        }
        arrivals
    }

    /// What an action sends, in order: the actions that get it, bytes and links.
    fn messages(&self, action: Action) -> Vec<(Action, f64, Link)> {
        let micro_batch = action.micro_batch;
        let output = self.receiver(action).map(|(receiver, before)| {
            let link = self.costs.links[before.min(self.costs.links.len() - 1)];
            (receiver, self.costs.stages[before].output, link)
        });
        let skips = self.costs.skips.iter().filter_map(|skip| {
            let passes = match action.pass {
                Pass::Forward if skip.from == action.stage => vec![(skip.to, Pass::Forward)],
                Pass::Backward | Pass::InputGradient if skip.to == action.stage => {
                    vec![
                        (skip.from, Pass::Backward),
                        (skip.from, Pass::InputGradient),
                    ]
                }
                _ => vec![],
            };
            let actions = passes
                .into_iter()
                .map(|(stage, pass)| Action::new(stage, pass, micro_batch));
            let receiver = actions
                .into_iter()
                .find(|action| self.place.contains_key(action));
            Some((receiver?, skip.bytes, skip.link))
        });
        match action.pass {
            Pass::Forward => skips.chain(output).collect(),
            _ => output.into_iter().chain(skips).collect(),
        }
    }

    /// The action that gets an action's result, and the lower of both stages.
    fn receiver(&self, action: Action) -> Option<(Action, usize)> {
        let (stage, micro_batch) = (action.stage, action.micro_batch);
        match action.pass {
            Pass::Forward => {
                let next = Action::forward(stage + 1, micro_batch);
                self.place.contains_key(&next).then_some((next, stage))
            }
            Pass::Backward | Pass::InputGradient if stage > 0 => {
                let passes = [Pass::Backward, Pass::InputGradient];
                let actions = passes.map(|pass| Action::new(stage - 1, pass, micro_batch));
                let before = actions.into_iter().find(|a| self.place.contains_key(a));
                before.map(|before| (before, stage - 1))
            }
            _ => None,
        }
    }

    /// Whether a micro-batch's activations are kept by a stage.
    fn is_kept(&self, action: Action) -> bool {
        let (stage, micro_batch) = (action.stage, action.micro_batch);
        let (worker, at) = self.place[&Action::forward(stage, micro_batch)];
        let actions = &self.schedule.workers()[worker];
        let is_training = actions.iter().any(|a| a.pass != Pass::Forward);
        let is_last = micro_batch + 1 == self.schedule.micro_batches();
        let at_once = actions.get(at + 1).is_some_and(|next| {
            [Pass::Backward, Pass::InputGradient].contains(&next.pass)
                && (next.stage, next.micro_batch) == (stage, micro_batch)
        });
        let by_mode = match self.costs.recompute {
            Recompute::Always | Recompute::Segments(_) => false,
            Recompute::ExceptLast => is_last,
            Recompute::Never => true,
        };
        !is_training || at_once || by_mode
    }

    fn recomputation(&self, action: Action) -> f64 {
        match action.pass {
            Pass::Backward | Pass::InputGradient if !self.is_kept(action) => {
                self.costs.stages[action.stage].again / self.speed(self.place[&action].0)
            }
            _ => 0.0,
        }
    }

    fn length(&self, worker: usize, action: Action) -> f64 {
        let costs = &self.costs.stages[action.stage];
        let seconds = match action.pass {
            Pass::Forward if self.is_kept(action) => costs.forward,
            Pass::Forward => costs.quiet,
            Pass::Backward if self.is_kept(action) => costs.input + costs.weight,
            Pass::Backward => costs.late + costs.input + costs.weight,
            Pass::InputGradient if self.is_kept(action) => costs.input,
            Pass::InputGradient => costs.late + costs.input,
            Pass::WeightGradient => costs.weight,
            Pass::Update => costs.update,
        };
        seconds / self.speed(worker)
    }

    fn speed(&self, worker: usize) -> f64 {
        let speed = self.costs.speeds.get(worker);
        speed.copied().unwrap_or(1.0)
    }

    /// The spans of a worker: passes, recomputations before them, and updates at the end.
    fn spans(&self, worker: usize) -> Vec<Span> {
        let mut spans = Vec::new();
        let mut free = 0.0;
        let actions = &self.schedule.workers()[worker];
        for (&action, &(begin, end)) in actions.iter().zip(&self.times[worker]) {
            let (of, again) = (Some(action), self.recomputation(action));
            if again > 0.0 {
                spans.push(span(of, SpanKind::Recompute, free, free + again));
            }
            spans.push(span(of, action.pass.into(), begin, end));
            free = end;
        }
        if self.schedule.is_training() && !self.schedule.is_asynchronous() {
            let has = |stage: &usize| actions.iter().any(|a| a.stage == *stage);
            let own: Vec<usize> = (0..self.schedule.stages()).filter(has).collect();
            let complete =
                |stage: usize| self.all_reduces(stage, None).last().map_or(0.0, |it| it.1);
            let mut left = own.clone();
            left.retain(|&stage| self.costs.stages[stage].update > 0.0);
            while !left.is_empty() {
                let first = |a: &usize, b: &usize| complete(*a).total_cmp(&complete(*b));
                let next = (0..left.len()).min_by(|&a, &b| first(&left[a], &left[b]));
                let stage = left.remove(next.unwrap());
                let start = free.max(complete(stage));
                free = start + self.costs.stages[stage].update / self.speed(worker);
                spans.push(span(None, SpanKind::Update, start, free));
            }
        }
        let has = |stage: &usize| actions.iter().any(|a| a.stage == *stage);
        for stage in (0..self.schedule.stages()).filter(has) {
            let reduced = self.every_all_reduce(stage).into_iter();
            spans.extend(reduced.map(|(start, end)| span(None, SpanKind::AllReduce, start, end)));
        }
        spans.sort_by_key(|span| span.start);
        spans
    }

    /// Those at the end of a step, or before each update.
    fn every_all_reduce(&self, stage: usize) -> Vec<(f64, f64)> {
        let actions = self.schedule.workers().iter().flatten();
        let mut updates: Vec<_> = actions
            .filter(|action| (action.stage, action.pass) == (stage, Pass::Update))
            .map(|&update| Some(update))
            .collect();
        updates.sort();
        updates.dedup();
        match (self.schedule.is_training(), updates.is_empty()) {
            (false, _) => return Vec::new(),
            (true, true) => updates.push(None),
            (true, false) => {}
        }
        let reduced = updates
            .iter()
            .flat_map(|&update| self.all_reduces(stage, update));
        reduced.collect()
    }

    /// When the gradients of a stage are added up, at the end or before an update. A bucket ends when an
    /// earlier one or itself was ready and all from there on were reduced: the latest of these.
    fn all_reduces(&self, stage: usize, before: Option<Action>) -> Vec<(f64, f64)> {
        let workers = 0..self.schedule.workers().len();
        let last_of = |worker: usize| {
            let actions = &self.schedule.workers()[worker];
            let update = actions.iter().position(|&action| Some(action) == before);
            let actions = &actions[..update.unwrap_or(actions.len())];
            let mut timed = actions.iter().zip(&self.times[worker]);
            let adds = |action: &Action| {
                action.stage == stage
                    && [Pass::Backward, Pass::WeightGradient].contains(&action.pass)
            };
            let (action, time) = timed.rfind(|(action, _)| adds(action))?;
            Some((time.1, self.length(worker, *action)))
        };
        let last: Vec<_> = workers.filter_map(last_of).collect();
        if last.len() < 2 {
            return Vec::new();
        }
        let buckets = &self.costs.stages[stage].buckets;
        let ready = |k: usize| {
            let left = 1.0 - buckets[k].ready;
            let of_workers = last.iter().map(|(end, length)| end - left * length);
            of_workers.fold(0.0, f64::max)
        };
        let end = |k: usize| {
            let seconds = |j: usize| buckets[j..=k].iter().map(|b| b.seconds).sum::<f64>();
            (0..=k).map(|j| ready(j) + seconds(j)).fold(0.0, f64::max)
        };
        let numbers = 0..buckets.len();
        numbers
            .map(|k| (end(k) - buckets[k].seconds, end(k)))
            .collect()
    }

    /// The most bytes of a worker, by what is there after each action and in the midst of it.
    fn peak_memory(&self, worker: usize) -> f64 {
        let actions = &self.schedule.workers()[worker];
        let mut kept: HashMap<(usize, usize), f64> = HashMap::new();
        let mut peak = 0.0_f64;
        let is_training = self.schedule.is_training();
        for &action in actions {
            let memory = self.costs.stages[action.stage].memory;
            let key = (action.stage, action.micro_batch);
            let mut keep = |bytes: f64, workspace: f64| {
                kept.insert(key, bytes);
                peak = peak.max(kept.values().sum::<f64>() + workspace);
            };
            let workspace = memory.workspace;
            match action.pass {
                Pass::Forward if !is_training => {}
                Pass::Forward if self.is_kept(action) => keep(memory.activations, workspace),
                Pass::Forward => keep(memory.input + memory.kept, workspace),
                Pass::Backward | Pass::InputGradient => {
                    match self.is_kept(action) {
                        true => keep(memory.activations, workspace),
                        false => keep(memory.rerun, 0.0),
                    }
                    let after = match action.pass {
                        Pass::InputGradient => memory.context,
                        _ => 0.0,
                    };
                    keep(after, 0.0);
                }
                Pass::WeightGradient => {
                    keep(memory.context, workspace);
                    keep(0.0, 0.0);
                }
                Pass::Update => {}
            }
            if matches!(action.pass, Pass::Backward | Pass::WeightGradient) {
                kept.insert((action.stage, usize::MAX), memory.gradients);
                peak = peak.max(kept.values().sum());
            }
        }
        let versions = self.schedule.versions(self.costs.weights).unwrap();
        let of_stage = |stage| {
            let mut replicas = self.schedule.replicas(stage).iter();
            let replica = replicas.position(|&replica| replica == worker)?;
            let (memory, versions) = (self.costs.stages[stage].memory, versions.peaks(stage));
            Some(memory.fixed + (versions[replica] - 1) as f64 * memory.version)
        };
        let fixed: f64 = (0..self.schedule.stages()).filter_map(of_stage).sum();
        fixed + peak
    }
}

fn span(action: Option<Action>, kind: SpanKind, start: f64, end: f64) -> Span {
    let [start, end] = [start, end].map(Duration::from_secs_f64);
    common::span(kind, action, start, end)
}

/// Compares a simulation with the naive one. All times are exact in binary.
fn check_simulation(schedule: &Schedule, costs: &Costs) -> Result<(), TestCaseError> {
    let simulation = schedule.simulate(costs).unwrap();
    let timeline = simulation.timeline();
    let naive = Naive::new(schedule, costs);
    let workers = schedule.workers().len();
    for worker in 0..workers {
        let spans = timeline.workers[worker].iter();
        let spans = spans.map(|&span| Span {
            version: None,
            ..span
        });
        prop_assert_eq!(
            spans.collect::<Vec<_>>(),
            naive.spans(worker),
            "{}",
            schedule
        );
        let memory = simulation.peak_memory()[worker];
        prop_assert_eq!(memory, naive.peak_memory(worker), "{}", schedule);
        // Over time: in order, up to that peak, and back to nothing.
        let over_time = &simulation.memory()[worker];
        prop_assert!(over_time.is_sorted_by(|one, next| one.seconds <= next.seconds));
        let mut totals = over_time.iter().map(|at| at.held.total());
        let most = totals.clone().fold(0.0, f64::max);
        prop_assert_eq!(
            simulation.fixed_memory()[worker] + most,
            memory,
            "{}",
            schedule
        );
        // Gradients stay.
        let end = over_time.last().map_or(0.0, |at| at.held.gradients);
        let rest = totals.next_back().unwrap_or(0.0) - end;
        prop_assert!(rest.abs() < 1e-6 * memory.max(1.0), "{}", schedule);
    }
    prop_assert_eq!(simulation.makespan(), timeline.length().as_secs_f64());
    let stages = 0..schedule.stages();
    let sum = |stage| {
        let reduced = naive.every_all_reduce(stage);
        reduced.iter().map(|it| it.1 - it.0).sum::<f64>()
    };
    let most = stages.map(sum).fold(0.0, f64::max);
    prop_assert_eq!(simulation.all_reduce(), most);
    let mut without = costs.clone();
    let buckets = without
        .stages
        .iter_mut()
        .flat_map(|stage| &mut stage.buckets);
    buckets.for_each(|bucket| bucket.seconds = 0.0);
    let exposed = simulation.makespan() - schedule.simulate(&without).unwrap().makespan();
    prop_assert_eq!(simulation.exposed_all_reduce(), exposed);
    // The first stage waits for the updates of others, too.
    let all = (0..schedule.stages()).map(sum).sum();
    let bound = if schedule.is_asynchronous() {
        all
    } else {
        most
    };
    prop_assert!((0.0..=bound).contains(&exposed));

    // A worker's step is from its first recomputation or pass to its last.
    let is_pass = |span: &&Span| span.action.is_some();
    let passes = |worker: usize| timeline.workers[worker].iter().filter(is_pass);
    let step_time = (0..workers).map(|worker| {
        let start = passes(worker).next().unwrap().start;
        (passes(worker).next_back().unwrap().end - start).as_secs_f64()
    });
    let step_time = step_time.fold(0.0, f64::max);
    prop_assert_eq!(simulation.step_time(), step_time);
    let busy = |worker| passes(worker).map(|span| span.length().as_secs_f64()).sum();
    let busy: Vec<f64> = (0..workers).map(busy).collect();
    prop_assert_eq!(simulation.busy(), busy.clone());
    if step_time > 0.0 {
        let bubble = 1.0 - busy.iter().sum::<f64>() / (workers as f64 * step_time);
        prop_assert!((simulation.bubble() - bubble).abs() < 1e-12);
        for (worker, busy) in busy.iter().enumerate() {
            prop_assert!((simulation.utilisation()[worker] - busy / step_time).abs() < 1e-12);
        }
    }
    check_critical_path(schedule, costs, &naive)
}

/// The path is a chain of actions from 0 to the end. Each waits for the one before.
fn check_critical_path(
    schedule: &Schedule,
    costs: &Costs,
    naive: &Naive,
) -> Result<(), TestCaseError> {
    let simulation = schedule.simulate(costs).unwrap();
    let path = simulation.critical_path();
    let place = |(worker, action): (usize, Action)| {
        let mut actions = schedule.workers()[worker].iter();
        actions.position(|&other| other == action).unwrap()
    };
    let time = |at: (usize, Action)| naive.times[at.0][place(at)];
    let ends = naive.times.iter().flatten().map(|time| time.1);
    prop_assert_eq!(time(*path.last().unwrap()).1, ends.fold(0.0, f64::max));
    let (worker, first) = path[0];
    prop_assert_eq!(place((worker, first)), 0);
    prop_assert_eq!(time(path[0]).0, naive.recomputation(first));
    for pair in path.windows(2) {
        let (before, after) = (pair[0], pair[1]);
        if after.1.pass == Pass::Update && schedule.replicas(after.1.stage).len() > 1 {
            // Of the actions right before an update of replicas, the one that ends last.
            let replicas = schedule.replicas(after.1.stage).iter();
            let ends = replicas.map(|&worker| naive.times[worker][place((worker, after.1)) - 1].1);
            prop_assert_eq!(time(before).1, ends.fold(0.0, f64::max));
            prop_assert_eq!(place(before) + 1, place((before.0, after.1)));
            continue;
        }
        let is_neighbour = before.0 == after.0 && place(before) + 1 == place(after);
        let ready = time(before).1 + naive.recomputation(after.1);
        // Either the worker did not wait, or it waited for the action before.
        if !(is_neighbour && ready == time(after).0) {
            let mut messages = naive.messages(before.1).into_iter();
            prop_assert!(messages.any(|(receiver, ..)| receiver == after.1));
            prop_assert!(time(before).1 <= time(after).0);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn schedulers_take_the_time_that_a_naive_simulator_finds((schedule, costs) in schedule_and_costs(6, 9)) {
        check_simulation(&schedule, &costs)?;
    }

    #[test]
    fn any_order_takes_the_time_that_a_naive_simulator_finds(
        (draft, costs) in any_draft().prop_flat_map(|draft| {
            let costs = any_costs(draft.placement.len());
            (Just(draft), costs)
        }),
    ) {
        check_simulation(&Schedule::new(draft.lists()).unwrap(), &costs)?;
    }

    /// No step is shorter than the way to a worker and its work, or than the way of a micro-batch to the
    /// last stage and back.
    #[test]
    fn no_step_is_shorter_than_its_work((schedule, costs) in schedule_and_costs(6, 9)) {
        let costs = Costs { speeds: Vec::new(), ..costs };
        let simulation = schedule.simulate(&costs).unwrap();
        let stages = schedule.stages();
        let forward = |stage: usize| costs.stages[stage].forward.min(costs.stages[stage].quiet);
        let link = |stage: usize| costs.links[stage.min(costs.links.len() - 1)];
        let transfer = |micro_batch: usize, stage: usize| {
            let is_near = schedule.worker_of(stage, micro_batch) == schedule.worker_of(stage + 1, micro_batch);
            let seconds = link(stage).latency + costs.stages[stage].output / link(stage).bandwidth;
            if is_near { 0.0 } else { seconds }
        };
        let way = |micro_batch: usize, stage: usize| -> f64 {
            (0..stage).map(|before| forward(before) + transfer(micro_batch, before)).sum()
        };
        for (actions, busy) in schedule.workers().iter().zip(simulation.busy()) {
            let ways = actions.iter().map(|a| way(a.micro_batch, a.stage));
            let start = ways.fold(f64::INFINITY, f64::min);
            prop_assert!(simulation.makespan() >= start + busy);
            prop_assert!(simulation.step_time() >= busy);
        }
        for micro_batch in 0..schedule.micro_batches() {
            let there = way(micro_batch, stages - 1) + forward(stages - 1);
            let back: f64 = (0..stages).map(|stage| costs.stages[stage].input).sum();
            let transfers: f64 = (1..stages).map(|stage| transfer(micro_batch, stage - 1)).sum();
            prop_assert!(simulation.makespan() >= there + back + transfers);
        }
        prop_assert!((0.0..=1.0).contains(&simulation.bubble()));
        prop_assert!(simulation.utilisation().iter().all(|share| (0.0..=1.0).contains(share)));
    }

    /// Slower passes or links never make the step faster.
    #[test]
    fn slower_stages_and_links_never_help((schedule, costs) in schedule_and_costs(6, 9), stage in 0..6_usize) {
        let makespan = |costs: &Costs| schedule.simulate(costs).unwrap().makespan();
        let before = makespan(&costs);
        let mut slower = costs.clone();
        let stage = stage % slower.stages.len();
        slower.stages[stage].forward += 1.0;
        slower.stages[stage].input += 0.5;
        prop_assert!(makespan(&slower) >= before);
        slower.links[0].latency += 1.0;
        prop_assert!(makespan(&slower) >= before);
    }
}

#[test]
fn links_transfer_one_message_at_a_time() {
    let schedule = Schedule::inference(2, 3).unwrap();
    let mut costs = Costs::uniform(2, 1.0, 1.0, 1.0);
    costs.stages[0].output = 4.0;
    costs.links[0].bandwidth = 2.0;
    // Sent at 1, 2, 3; received at 3, 5, 7; the last pass ends at 8.
    assert_eq!(schedule.simulate(&costs).unwrap().makespan(), 8.0);
    costs.links[0].latency = 0.5;
    assert_eq!(schedule.simulate(&costs).unwrap().makespan(), 8.5);
}

/// Three stages, one micro-batch; skips from the first to both others.
#[test]
fn skips_take_the_links_of_their_workers() {
    let mut costs = Costs::uniform(3, 1.0, 1.0, 0.0);
    for stage in &mut costs.stages {
        stage.output = 2.0;
    }
    costs.links[0].bandwidth = 1.0;
    let next = SkipCosts {
        to: 1,
        bytes: 3.0,
        ..SKIP
    };
    costs.skips = vec![
        next,
        SkipCosts {
            bytes: 20.0,
            ..SKIP
        },
    ];
    let schedule = GPipe.schedule(3, 1).unwrap();
    let simulation = schedule.simulate(&costs).unwrap();
    // The first forward pass ends at 1. To the second stage, 3 s of a skip come before 2 s of its output: its pass ends
    // at 7, its output arrives at 9. The long skip arrives at 21: the last stage's passes end at 22 and 23. Its gradient
    // arrives at 25, so the second stage's backward pass ends at 26, and the gradients that it sends at 28 and 31.
    let ends = simulation.timeline().workers.into_iter().map(|spans| {
        spans
            .iter()
            .map(|span| span.end.as_secs_f64())
            .collect::<Vec<_>>()
    });
    let expected = [vec![1.0, 44.0], vec![7.0, 26.0], vec![22.0, 23.0]];
    assert_eq!(ends.collect::<Vec<_>>(), expected);
    let path = simulation
        .critical_path()
        .into_iter()
        .map(|(_, action)| action.to_string());
    assert_eq!(path.collect::<Vec<_>>().join(" "), "0F0 2F0 2B0 0B0");
}

#[test]
fn recomputation_hides_in_the_bubble() {
    // The first stage is idle while the second one works.
    let schedule: Schedule = "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1".parse().unwrap();
    let mut costs = Costs::uniform(2, 1.0, 1.0, 1.0);
    assert_eq!(schedule.simulate(&costs).unwrap().makespan(), 9.0);
    costs.recompute = Recompute::Always;
    // Stage 1: F 1–3, R 3–4, B 4–6, R 6–7, B 7–9; stage 0: R 2–3, B 6–8, R 8–9, B 9–11.
    assert_eq!(schedule.simulate(&costs).unwrap().makespan(), 11.0);
    costs.recompute = Recompute::ExceptLast;
    assert_eq!(schedule.simulate(&costs).unwrap().makespan(), 10.0);
}

#[test]
fn forward_passes_that_keep_less_are_faster() {
    let schedule = GPipe.schedule(1, 2).unwrap();
    let mut costs = Costs::uniform(1, 1.0, 1.0, 1.0);
    costs.stages[0].quiet = 0.5;
    assert_eq!(schedule.simulate(&costs).unwrap().makespan(), 6.0);
    costs.recompute = Recompute::Always;
    assert_eq!(schedule.simulate(&costs).unwrap().makespan(), 7.0);
}

#[test]
fn layers_that_run_again_late_do_not_hide_in_the_bubble() {
    let schedule: Schedule = "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1".parse().unwrap();
    let mut costs = Costs::uniform(2, 1.0, 1.0, 1.0);
    costs.recompute = "0".parse().unwrap();
    for stage in &mut costs.stages {
        (stage.again, stage.late) = (0.5, 0.25);
    }
    // Stage 1: F 1–3, R 3–3.5, B 3.5–5.75, R 5.75–6.25, B 6.25–8.5; stage 0: R 2–2.5, B 5.75–8, R 8–8.5,
    // B 8.5–10.75.
    assert_eq!(schedule.simulate(&costs).unwrap().makespan(), 10.75);
}

/// Two replicas, three micro-batches: the last backward pass of replica 0 is from 6 to 10, that
/// of replica 1 from 1 to 5.
#[test]
fn gradients_are_added_up_while_passes_go_on() {
    let check = |buckets: &[(f64, f64)], expected: [f64; 3]| {
        let mut costs = Costs::uniform(1, 1.0, 2.0, 2.0);
        let bucket = |&(ready, seconds)| Bucket { ready, seconds };
        costs.stages[0].buckets = buckets.iter().map(bucket).collect();
        let schedule = DataParallel::equal(GPipe, 2).schedule(1, 3).unwrap();
        let simulation = schedule.simulate(&costs).unwrap();
        let exposed = simulation.exposed_all_reduce();
        let found = [simulation.makespan(), simulation.all_reduce(), exposed];
        assert_eq!(found, expected, "{buckets:?}");
    };
    check(&[], [10.0, 0.0, 0.0]);
    // One at the end is as an update on its own.
    check(&[(1.0, 1.5)], [11.5, 1.5, 1.5]);
    // Ready at 7 and 10.
    check(&[(0.25, 1.0), (1.0, 0.5)], [10.5, 1.5, 0.5]);
    check(&[(0.25, 3.5), (1.0, 0.5)], [11.0, 4.0, 1.0]);
    // The second is ready before the first.
    check(&[(1.0, 0.5), (0.25, 2.0)], [12.5, 2.5, 2.5]);
}

/// The second of two halves of a backward pass computes the gradients of weights.
#[test]
fn weight_gradients_are_added_up_when_they_are_computed() {
    let mut costs = Costs::uniform(2, 1.0, 1.0, 1.0);
    costs.stages[1].buckets = vec![Bucket {
        ready: 0.5,
        seconds: 1.0,
    }];
    let schedule = DataParallel::equal(ZeroBubbleH1, 2).schedule(2, 2).unwrap();
    // 0F0 0I0 0W0 and 1F0 1I0 1W0: W of the last stage is from 3 to 4, that of the first from 4 to 5.
    let simulation = schedule.simulate(&costs).unwrap();
    assert_eq!(
        (simulation.makespan(), simulation.exposed_all_reduce()),
        (5.0, 0.0)
    );
    let reduced = simulation.timeline().workers[3]
        .iter()
        .find(|s| s.kind == SpanKind::AllReduce)
        .copied();
    assert_eq!(reduced.unwrap().start, Duration::from_millis(3500));
    // The update of the last stage waits for it, and that of the first does not.
    (costs.stages[0].update, costs.stages[1].update) = (0.25, 1.0);
    assert_eq!(schedule.simulate(&costs).unwrap().makespan(), 5.5);
}

#[test]
fn costs_are_checked() {
    let schedule = GPipe.schedule(3, 2).unwrap();
    let error = |change: fn(&mut Costs)| {
        let mut costs = Costs::uniform(3, 1.0, 1.0, 1.0);
        change(&mut costs);
        schedule.simulate(&costs).unwrap_err()
    };
    let check = |change, expected: &str| assert_eq!(error(change).to_string(), expected);
    let stages = "costs are given for 2 stages, but the schedule has 3";
    check(|c| c.stages.truncate(2), stages);
    let links = "links given: give one for all, or one less than the 3 stages";
    check(|c| c.links.clear(), &format!("0 {links}"));
    let three = format!("3 {links}");
    check(|c| c.links = vec![Link::default(); 3], &three);
    let speeds = "2 speeds given, but the schedule has 3 workers";
    check(|c| c.speeds = vec![1.0; 2], speeds);
    let speed = "the speed of a worker is 0.0, which is out of range";
    check(|c| c.speeds = vec![1.0, 0.0, 1.0], speed);
    let forward = "forward of stage 1 is -1.0, which is out of range";
    check(|c| c.stages[1].forward = -1.0, forward);
    let quiet = "quiet forward of stage 2 is NaN, which is out of range";
    check(|c| c.stages[2].quiet = f64::NAN, quiet);
    let input = "input gradient of stage 0 is inf, which is out of range";
    check(|c| c.stages[0].input = f64::INFINITY, input);
    let skip = "skips go from a stage to a later one: not from 1 to 1 of 3 stages";
    check(
        |c| {
            c.skips = vec![SkipCosts {
                from: 1,
                to: 1,
                ..SKIP
            }]
        },
        skip,
    );
    let skip = "skips go from a stage to a later one: not from 0 to 3 of 3 stages";
    check(|c| c.skips = vec![SKIP, SkipCosts { to: 3, ..SKIP }], skip);
    for change in [
        (|c| c.stages[0].weight = -1.0) as fn(&mut Costs),
        |c| c.stages[0].update = -1.0,
        |c| c.stages[0].output = -1.0,
        |c| {
            c.stages[0].buckets = vec![Bucket {
                ready: 1.5,
                seconds: 1.0,
            }]
        },
        |c| {
            c.stages[0].buckets = vec![Bucket {
                ready: 0.5,
                seconds: f64::NAN,
            }]
        },
        |c| c.stages[0].memory.fixed = -1.0,
        |c| c.stages[0].memory.version = -1.0,
        |c| c.stages[0].memory.input = -1.0,
        |c| c.stages[0].memory.activations = -1.0,
        |c| c.stages[0].memory.context = -1.0,
        |c| c.links[0].latency = -1.0,
        |c| c.links[0].bandwidth = 0.0,
        |c| c.links[0].bandwidth = f64::NAN,
        |c| {
            c.skips = vec![SkipCosts {
                bytes: -1.0,
                ..SKIP
            }]
        },
        |c| {
            c.skips = vec![SkipCosts {
                link: Link {
                    latency: -1.0,
                    ..SKIP.link
                },
                ..SKIP
            }];
        },
    ] {
        let error = error(change);
        let is_number = matches!(error, CostError::Number { stage: 0, .. });
        assert!(is_number, "{error}");
    }
}

/// The longest times that are allowed, and zero.
#[test]
fn extreme_costs_are_no_panic() {
    for seconds in [0.0, 1e-300, 1e30] {
        let costs = Costs::uniform(2, seconds, seconds, seconds);
        let schedule = GPipe.schedule(2, 3).unwrap();
        let simulation = schedule.simulate(&costs).unwrap();
        assert!((0.0..=1.0).contains(&simulation.bubble()));
        let timeline = simulation.timeline();
        assert!((0.0..=1.0).contains(&timeline.bubble()));
        assert!(timeline.to_svg(&[]).ends_with("</svg>"));
        assert!(timeline.to_text(80, true).ends_with('\n'));
        assert!(timeline.to_chrome_trace(&[]).is_object());
        let (_, last) = *simulation.critical_path().last().unwrap();
        assert_eq!(last, Action::backward(0, 2));
    }
}
