//! Schedules and costs for several tests.

use std::time::Duration;

use proptest::prelude::*;
use stovepipe_schedule::{
    Action, Bucket, Costs, DataParallel, Link, Pass, Recompute, RoundRobin, Rule, RuleOptions,
    Schedule, Scheduler, SkipCosts, Span, SpanKind, StageCosts, StageMemory, WeightPolicy,
};

/// Lines of schedules or programs, with `/` between workers, and what is expected of each after `=>`.
pub fn rows(table: &str) -> impl Iterator<Item = (String, &str)> {
    let rows = table.lines().map(str::trim);
    let rows = rows.map(|row| row.split_once(" => ").unwrap());
    rows.map(|(text, expected)| (text.replace(" / ", "\n"), expected))
}

/// Every rule, with one to four chunks if it takes chunks, and 1F1B over (no) replicas.
pub fn schedulers() -> Vec<Box<dyn Scheduler>> {
    let of_rule = |rule: Rule| {
        let most = if rule.takes_chunks() { 4 } else { 1 };
        (1..=most).map(move |chunks| rule.scheduler(&RuleOptions::with_chunks(chunks)))
    };
    let round_robin: Box<dyn Scheduler> = Box::new(RoundRobin::default());
    let rules = Rule::ALL.into_iter().flat_map(of_rule);
    rules.chain([round_robin]).collect()
}

/// A schedule of any rule, with random replicas of stages if it takes some, else of the pipeline.
pub fn any_schedule(stages: usize, micro_batches: usize) -> impl Strategy<Value = Schedule> {
    let rule = prop::sample::select(&Rule::ALL[..]);
    let size = (1..=stages, 1..=micro_batches);
    let options = (1..=4_usize, 0..=2_usize, any::<bool>());
    (size, rule, options).prop_flat_map(|(size, rule, (chunks, more, replicated))| {
        let (stages, micro_batches) = size;
        let replicas = prop::collection::vec(1..=4_usize, if replicated { stages } else { 0 });
        replicas.prop_map(move |replicas| {
            let shares = replicas.clone();
            let most = replicas.iter().copied().max().unwrap_or(1);
            let update_every = Some(most + more);
            let scheduler = rule.scheduler(&RuleOptions {
                chunks,
                replicas,
                update_every,
            });
            let micro_batches = match rule.is_synchronous() {
                true => micro_batches,
                false => micro_batches.next_multiple_of(most + more),
            };
            let scheduler: Box<dyn Scheduler> = match shares[..] {
                [] => scheduler,
                _ if rule.takes_replicas() => scheduler,
                _ => Box::new(DataParallel { scheduler, shares }),
            };
            scheduler.schedule(stages, micro_batches).unwrap()
        })
    })
}

/// The parts of a random schedule.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The workers of each stage.
    pub placement: Vec<Vec<usize>>,
    pub micro_batches: usize,
    /// By stage and micro-batch, whether its backward pass comes in halves.
    pub split: Vec<Vec<bool>>,
    pub training: bool,
    /// Micro-batches of each update.
    pub update_every: Option<usize>,
    /// Decide which action is next.
    pub choices: Vec<usize>,
}

impl Draft {
    /// The passes of a stage for a micro-batch, in order.
    pub fn passes(&self, stage: usize, micro_batch: usize) -> Vec<Pass> {
        let backward: &[Pass] = match (self.training, self.split[stage][micro_batch]) {
            (false, _) => &[],
            (true, false) => &[Pass::Backward],
            (true, true) => &[Pass::InputGradient, Pass::WeightGradient],
        };
        [&[Pass::Forward], backward].concat()
    }

    /// The updates of a stage.
    pub fn updates(&self, stage: usize) -> impl Iterator<Item = Action> {
        let every = self.update_every.unwrap_or(self.micro_batches + 1);
        let last = (every - 1..self.micro_batches).step_by(every);
        last.map(move |last| Action::new(stage, Pass::Update, last))
    }

    /// What an action needs, including earlier passes of its own stage: from the rules alone, without the
    /// crate.
    pub fn needs(&self, action: Action) -> Vec<Action> {
        let (stage, pass, micro_batch) = (action.stage, action.pass, action.micro_batch);
        // Gradients of weights come in the order of the updates.
        let adds = matches!(pass, Pass::Backward | Pass::WeightGradient | Pass::Update);
        let is_before = |update: &Action| adds && update.micro_batch < micro_batch;
        let mut needs: Vec<_> = self.updates(stage).filter(is_before).collect();
        if pass == Pass::Update {
            let of_update = micro_batch + 1 - self.update_every.unwrap()..=micro_batch;
            let last = |i| Action::new(stage, *self.passes(stage, i).last().unwrap(), i);
            needs.extend(of_update.map(last));
            return needs;
        }
        let passes = self.passes(stage, micro_batch);
        let at = passes.iter().position(|&p| p == pass).unwrap();
        if at > 0 {
            needs.push(Action::new(stage, passes[at - 1], micro_batch));
        }
        if pass == Pass::Forward && stage > 0 {
            needs.push(Action::forward(stage - 1, micro_batch));
        }
        let is_gradient = matches!(pass, Pass::Backward | Pass::InputGradient);
        if is_gradient && stage + 1 < self.placement.len() {
            let gradient = self.passes(stage + 1, micro_batch)[1];
            needs.push(Action::new(stage + 1, gradient, micro_batch));
        }
        needs
    }

    /// All replicas for an update, else one worker.
    pub fn workers(&self, action: Action) -> &[usize] {
        let workers = &self.placement[action.stage];
        if action.pass == Pass::Update {
            return workers;
        }
        &workers[action.micro_batch % workers.len()..][..1]
    }

    /// All actions, in an order in which one worker could run them.
    pub fn order(&self) -> Vec<Action> {
        let stages = self.placement.len();
        let mut left: Vec<Action> = Vec::new();
        for stage in 0..stages {
            for micro_batch in 0..self.micro_batches {
                let passes = self.passes(stage, micro_batch);
                left.extend(passes.iter().map(|&p| Action::new(stage, p, micro_batch)));
            }
            left.extend(self.updates(stage));
        }
        let mut done = Vec::new();
        let mut choices = self.choices.iter().cycle();
        while !left.is_empty() {
            let is_ready = |&i: &usize| self.needs(left[i]).iter().all(|need| done.contains(need));
            let ready: Vec<_> = (0..left.len()).filter(is_ready).collect();
            let choice = ready[choices.next().unwrap() % ready.len()];
            done.push(left.remove(choice));
        }
        done
    }

    /// The lists of each worker, in that order.
    pub fn lists(&self) -> Vec<Vec<Action>> {
        let workers = self.placement.iter().flatten().max().unwrap() + 1;
        let mut lists = vec![Vec::new(); workers];
        for action in self.order() {
            for &worker in self.workers(action) {
                lists[worker].push(action);
            }
        }
        lists
    }
}

prop_compose! {
    /// Random stages, replicas, halves and orders that are a schedule.
    pub fn any_draft()(
        stages in 1..=4_usize, micro_batches in 1..=6_usize, workers in 1..=4_usize,
    )(
        shuffled in prop::collection::vec(Just((0..workers).collect::<Vec<_>>()).prop_shuffle(), stages),
        counts in prop::collection::vec(1..=workers.min(micro_batches), stages),
        split in prop::collection::vec(prop::collection::vec(any::<bool>(), micro_batches), stages),
        [training, or_so, asynchronous] in any::<[bool; 3]>(),
        every in 1..=micro_batches,
        choices in prop::collection::vec(0..1000_usize, 1..40),
        micro_batches in Just(micro_batches),
    ) -> Draft {
        let mut placement = shuffled;
        for (workers, count) in placement.iter_mut().zip(counts) {
            workers.truncate(count);
        }
        let training = training || or_so;
        let update_every = (training && asynchronous).then(|| {
            // A divisor, and a micro-batch for each replica.
            let every = (1..=every).rev().find(|every| micro_batches.is_multiple_of(*every)).unwrap();
            placement.iter_mut().for_each(|workers| workers.truncate(every));
            every
        });
        renumber(&mut placement);
        Draft { placement, micro_batches, split, training, update_every, choices }
    }
}

/// Renumbers workers, so that each has an action.
fn renumber(placement: &mut [Vec<usize>]) {
    let mut used: Vec<_> = placement.iter().flatten().copied().collect();
    used.sort_unstable();
    used.dedup();
    for worker in placement.iter_mut().flatten() {
        *worker = used.binary_search(worker).unwrap();
    }
}

fn eighths(most: u32) -> impl Strategy<Value = f64> + Clone {
    (0..most).prop_map(|n| f64::from(n) / 8.0)
}

prop_compose! {
    fn any_stage_costs()(
        [forward, quiet, again, late] in [(); 4].map(|()| eighths(40)),
        [input, weight, update, output] in [(); 4].map(|()| eighths(40)),
        [fixed, version, kept_input, kept] in [(); 4].map(|()| eighths(1000)),
        [activations, rerun, context, workspace, gradients] in [(); 5].map(|()| eighths(1000)),
        buckets in prop::collection::vec((eighths(9), eighths(40)), 0..4),
    ) -> StageCosts {
        let bucket = |(ready, seconds)| Bucket { ready, seconds };
        let buckets = buckets.into_iter().map(bucket).collect();
        let memory = StageMemory {
            fixed, gradients, version, activations, input: kept_input, kept, rerun, context, workspace,
        };
        StageCosts { forward, quiet, again, late, input, weight, update, buckets, output, memory }
    }
}

prop_compose! {
    fn any_link()(
        latency in eighths(16), bandwidth in prop::sample::select(&[f64::INFINITY, 0.5, 1.0, 8.0][..]),
    ) -> Link {
        Link { latency, bandwidth }
    }
}

prop_compose! {
    /// To a later one of at least two stages.
    fn any_skip(stages: usize)(
        [one, other] in [(); 2].map(|()| 0..stages), bytes in eighths(40), link in any_link(),
    ) -> Option<SkipCosts> {
        let (from, to) = (one.min(other), one.max(other));
        (from < to).then_some(SkipCosts { from, to, bytes, link })
    }
}

fn any_recompute() -> impl Strategy<Value = Recompute> {
    let segments = "0".parse().unwrap();
    let modes = Recompute::MODES.into_iter();
    prop::sample::select(
        modes
            .chain([Recompute::Segments(segments)])
            .collect::<Vec<_>>(),
    )
}

prop_compose! {
    /// Unequal stages, links, and any recomputation. Times are multiples of 1/8 s: sums are exact.
    pub fn any_costs(stages: usize)(
        links in prop::sample::select(vec![1, (stages - 1).max(1)]),
    )(
        stages in prop::collection::vec(any_stage_costs(), stages),
        links in prop::collection::vec(any_link(), links),
        skips in prop::collection::vec(any_skip(stages), 0..4),
        recompute in any_recompute(),
        weights in Just(WeightPolicy::Stashing),
    ) -> Costs {
        let skips = skips.into_iter().flatten().collect();
        Costs { stages, links, skips, recompute, speeds: Vec::new(), weights }
    }
}

/// A schedule of a rule and costs for it.
pub fn schedule_and_costs(
    stages: usize,
    micro_batches: usize,
) -> impl Strategy<Value = (Schedule, Costs)> {
    any_schedule(stages, micro_batches).prop_flat_map(|schedule| {
        let costs = any_costs(schedule.stages());
        let speed = prop::sample::select(&[0.5, 1.0, 4.0][..]);
        let workers = prop::sample::select(vec![0, schedule.workers().len()]);
        let speeds =
            workers.prop_flat_map(move |workers| prop::collection::vec(speed.clone(), workers));
        let costs = (costs, speeds).prop_map(|(costs, speeds)| Costs { speeds, ..costs });
        (Just(schedule), costs)
    })
}

pub fn span(kind: SpanKind, action: Option<Action>, start: Duration, end: Duration) -> Span {
    Span {
        action,
        kind,
        version: None,
        start,
        end,
    }
}
