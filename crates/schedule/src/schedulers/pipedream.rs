//! 1F1B with replicas of stages. Weights change at once or at the end of the step.

use super::{Definition, Scheduler};
use crate::{Action, Pass, Schedule, ScheduleError};

pub(super) const RULE: Definition = Definition {
    synchronous: false,
    takes_replicas: true,
    ..Definition::new("pipedream", |options| {
        Box::new(PipeDream::new(options.replicas.clone()))
    })
};

/// PipeDream's asynchronous schedule: 1F1B in which each backward pass changes the weights at once.
///
/// Without a flush there is no bubble once the pipeline is full. (PipeDream's mini-batch is called a
/// micro-batch here.) But weights change between the forward and the backward pass of a micro-batch.
/// To use the same ones in both, a stage keeps a version for each micro-batch in flight, one more
/// than its warm-up; see [`Schedule::weight_versions`]. Only under this schedule does training differ
/// from training on one device.
///
/// A stage may have several replicas: workers that take its micro-batches in turn (1F1B-RR). Stage
/// `s` with `r` replicas warms up with ⌈`n` / `r`⌉ − 1 forward passes, where `n` is the number of
/// workers from `s` on. Replicas without a micro-batch are left out.
///
/// Narayanan et al., *PipeDream: Generalized Pipeline Parallelism for DNN Training*, SOSP 2019.
///
/// ```
/// use stovepipe_schedule::{PipeDream, Scheduler};
///
/// let schedule = PipeDream::new(vec![2, 1]).schedule(2, 4)?;
/// assert_eq!(
///     schedule.to_string(),
///     "0F0 0F2 0B0 0U0 0B2 0U2\n\
///      0F1 0F3 0B1 0U1 0B3 0U3\n\
///      1F0 1B0 1U0 1F1 1B1 1U1 1F2 1B2 1U2 1F3 1B3 1U3"
/// );
/// # Ok::<(), stovepipe_schedule::ScheduleError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct PipeDream {
    replicas: Vec<usize>,
}

impl PipeDream {
    /// The number of replicas of each stage. An empty list means one each.
    #[must_use]
    pub fn new(replicas: Vec<usize>) -> Self {
        Self { replicas }
    }
}

impl Scheduler for PipeDream {
    fn name(&self) -> &str {
        "PipeDream"
    }

    fn stages(&self, workers: usize) -> usize {
        stages(&self.replicas, workers)
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        let backward = &[Pass::Backward, Pass::Update];
        in_turn(&self.replicas, stages, micro_batches, backward)
    }
}

/// 1F1B with replicas of stages, which take micro-batches in turn. Weights change at the end of the
/// step: [`PipeDream`]'s order with the result of one device.
///
/// ```
/// use stovepipe_schedule::{RoundRobin, Scheduler};
///
/// let schedule = RoundRobin::new(vec![2, 1]).schedule(2, 2)?;
/// assert_eq!(schedule.to_string(), "0F0 0B0\n0F1 0B1\n1F0 1B0 1F1 1B1");
/// assert_eq!(schedule.replicas(0), [0, 1]);
/// # Ok::<(), stovepipe_schedule::ScheduleError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct RoundRobin {
    replicas: Vec<usize>,
}

impl RoundRobin {
    /// The number of replicas of each stage. An empty list means one each.
    #[must_use]
    pub fn new(replicas: Vec<usize>) -> Self {
        Self { replicas }
    }
}

impl Scheduler for RoundRobin {
    fn name(&self) -> &str {
        "1F1B-RR"
    }

    fn stages(&self, workers: usize) -> usize {
        stages(&self.replicas, workers)
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        in_turn(&self.replicas, stages, micro_batches, &[Pass::Backward])
    }
}

fn stages(replicas: &[usize], workers: usize) -> usize {
    match replicas.len() {
        0 => workers,
        stages => stages,
    }
}

fn in_turn(
    replicas: &[usize],
    stages: usize,
    micro_batches: usize,
    backward: &[Pass],
) -> Result<Schedule, ScheduleError> {
    Schedule::check_size(stages, micro_batches)?;
    let replicas = match replicas.len() {
        0 => vec![1; stages],
        replicas if replicas != stages => {
            return Err(ScheduleError::ReplicaCount { replicas, stages });
        }
        _ => replicas.to_vec(),
    };
    if let Some(stage) = replicas.iter().position(|&count| count == 0) {
        return Err(ScheduleError::NoReplicas { stage });
    }
    let busy = |&count: &usize| count.min(micro_batches);
    let replicas: Vec<_> = replicas.iter().map(busy).collect();
    let mut from_here: usize = replicas.iter().sum();
    let mut workers = Vec::with_capacity(from_here);
    for (stage, &count) in replicas.iter().enumerate() {
        let warm_up = from_here.div_ceil(count) - 1;
        let of_replica = |replica| {
            let own = (replica..micro_batches).step_by(count);
            replica_actions(stage, own, warm_up, backward)
        };
        workers.extend((0..count).map(of_replica));
        from_here -= count;
    }
    Schedule::new(workers)
}

/// 1F1B over some of the micro-batches.
fn replica_actions(
    stage: usize,
    micro_batches: impl Iterator<Item = usize> + Clone,
    warm_up: usize,
    backward: &[Pass],
) -> Vec<Action> {
    let passes = |i| (backward.iter()).map(move |&pass| Action::new(stage, pass, i));
    let mut backwards = micro_batches.clone();
    let mut actions = Vec::new();
    for (index, micro_batch) in micro_batches.enumerate() {
        actions.push(Action::forward(stage, micro_batch));
        if index >= warm_up {
            actions.extend(backwards.next().into_iter().flat_map(passes));
        }
    }
    actions.extend(backwards.flat_map(passes));
    actions
}
