//! What several tests need.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use proptest::prelude::*;
use stovepipe_schedule::{
    Action, Costs, GPipe, Interleaved, Link, OneForwardOneBackward, Pass, PipeDream, Recompute,
    RoundRobin, Schedule, Scheduler, StageCosts, StageMemory, ZeroBubbleH1, ZeroBubbleH2,
    ZeroBubbleV,
};

/// Every rule that gives the result of one device.
pub fn synchronous() -> Vec<Box<dyn Scheduler>> {
    vec![
        Box::new(GPipe),
        Box::new(OneForwardOneBackward),
        Box::new(Interleaved { chunks: 1 }),
        Box::new(Interleaved { chunks: 2 }),
        Box::new(Interleaved { chunks: 3 }),
        Box::new(Interleaved { chunks: 4 }),
        Box::new(ZeroBubbleH1),
        Box::new(ZeroBubbleH2),
        Box::new(ZeroBubbleV),
        Box::new(RoundRobin::default()),
    ]
}

/// Every rule.
pub fn schedulers() -> Vec<Box<dyn Scheduler>> {
    let mut all = synchronous();
    all.push(Box::new(PipeDream::default()));
    all
}

/// A schedule of any rule, with random replicas where it has some.
pub fn any_schedule(stages: usize, micro_batches: usize) -> impl Strategy<Value = Schedule> {
    (1..=stages, 1..=micro_batches).prop_flat_map(|(stages, micro_batches)| {
        let replicas = prop::collection::vec(1..=4_usize, stages);
        (0..13_usize, replicas).prop_map(move |(rule, replicas)| {
            let scheduler: Box<dyn Scheduler> = match rule {
                11 => Box::new(PipeDream::new(replicas)),
                12 => Box::new(RoundRobin::new(replicas)),
                _ => schedulers().swap_remove(rule),
            };
            scheduler.schedule(stages, micro_batches).unwrap()
        })
    })
}

/// What a random schedule is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The workers of each stage.
    pub placement: Vec<Vec<usize>>,
    pub micro_batches: usize,
    /// By stage and micro-batch, whether its backward pass comes in halves.
    pub split: Vec<Vec<bool>>,
    pub training: bool,
    pub asynchronous: bool,
    /// Decides which action is next, again and again.
    pub choices: Vec<usize>,
}

impl Plan {
    /// The passes of a stage for a micro-batch, in order.
    pub fn passes(&self, stage: usize, micro_batch: usize) -> Vec<Pass> {
        let backward: &[Pass] = match (self.training, self.split[stage][micro_batch]) {
            (false, _) => &[],
            (true, false) => &[Pass::Backward],
            (true, true) => &[Pass::InputGradient, Pass::WeightGradient],
        };
        let update = (self.training && self.asynchronous).then_some(Pass::Update);
        let first = [Pass::Forward].into_iter();
        first
            .chain(backward.iter().copied())
            .chain(update)
            .collect()
    }

    /// What an action needs, its own stage's pass before it included: written anew from the rules,
    /// not asked of the crate.
    pub fn needs(&self, action: Action) -> Vec<Action> {
        let Action {
            stage,
            pass,
            micro_batch,
        } = action;
        let passes = self.passes(stage, micro_batch);
        let at = passes.iter().position(|&p| p == pass).unwrap();
        let mut needs = Vec::new();
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

    pub fn worker(&self, action: Action) -> usize {
        let workers = &self.placement[action.stage];
        workers[action.micro_batch % workers.len()]
    }

    /// All actions, in an order in which one worker alone could do them.
    pub fn order(&self) -> Vec<Action> {
        let stages = self.placement.len();
        let mut left: Vec<Action> = Vec::new();
        for stage in 0..stages {
            for micro_batch in 0..self.micro_batches {
                let passes = self.passes(stage, micro_batch);
                left.extend(passes.iter().map(|&p| Action::new(stage, p, micro_batch)));
            }
        }
        let mut done = Vec::new();
        let mut choices = self.choices.iter().cycle();
        while !left.is_empty() {
            let ready: Vec<_> = (0..left.len())
                .filter(|&i| self.needs(left[i]).iter().all(|need| done.contains(need)))
                .collect();
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
            lists[self.worker(action)].push(action);
        }
        lists
    }
}

/// Random stages, replicas, halves and orders: whatever is a schedule.
pub fn any_plan() -> impl Strategy<Value = Plan> {
    let sizes = (1..=4_usize, 1..=5_usize, 1..=4_usize);
    sizes.prop_flat_map(|(stages, micro_batches, workers)| {
        let placement = prop::collection::vec(
            (
                Just((0..workers).collect::<Vec<_>>()).prop_shuffle(),
                1..=workers.min(micro_batches),
            ),
            stages,
        );
        let split =
            prop::collection::vec(prop::collection::vec(any::<bool>(), micro_batches), stages);
        let choices = prop::collection::vec(0..1000_usize, 1..40);
        (placement, split, any::<[bool; 3]>(), choices).prop_map(
            move |(placement, split, [training, or_so, asynchronous], choices)| {
                let some = |(mut workers, count): (Vec<usize>, usize)| {
                    workers.truncate(count);
                    workers
                };
                let mut placement: Vec<_> = placement.into_iter().map(some).collect();
                close_ranks(&mut placement);
                Plan {
                    placement,
                    micro_batches,
                    split,
                    training: training || or_so,
                    asynchronous,
                    choices,
                }
            },
        )
    })
}

/// Numbers workers anew, so that each has something to do.
fn close_ranks(placement: &mut [Vec<usize>]) {
    let mut used: Vec<_> = placement.iter().flatten().copied().collect();
    used.sort_unstable();
    used.dedup();
    for worker in placement.iter_mut().flatten() {
        *worker = used.binary_search(worker).unwrap();
    }
}

/// Unequal stages, links, and any recomputation. Times are multiples of 1/8 s: sums are exact.
pub fn any_costs(stages: usize) -> impl Strategy<Value = Costs> {
    let eighths = |most: u32| (0..most).prop_map(|n| f64::from(n) / 8.0);
    let stage = [(); 6].map(|()| eighths(40));
    let memory = [(); 5].map(|()| eighths(1000));
    let stage = (stage, memory).prop_map(|([forward, quiet, input, weight, update, output], m)| {
        let memory = StageMemory {
            fixed: m[0],
            version: m[1],
            input: m[2],
            activations: m[3],
            context: m[4],
        };
        StageCosts {
            forward,
            quiet,
            input,
            weight,
            update,
            output,
            memory,
        }
    });
    let bandwidth = prop_oneof![Just(f64::INFINITY), Just(0.5), Just(1.0), Just(8.0)];
    let link =
        (eighths(16), bandwidth).prop_map(|(latency, bandwidth)| Link { latency, bandwidth });
    let links = prop_oneof![
        prop::collection::vec(link.clone(), 1),
        prop::collection::vec(link, (stages - 1).max(1)),
    ];
    (prop::collection::vec(stage, stages), links, 0..3_usize).prop_map(
        |(stages, links, recompute)| Costs {
            stages,
            links,
            recompute: Recompute::ALL[recompute],
        },
    )
}
