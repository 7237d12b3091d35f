//! 1F1B with replicas of stages. Weights change at once or at the end of the step.

use super::{Definition, Scheduler};
use crate::{Action, Pass, Schedule, ScheduleError};

pub(super) const RULE: Definition = Definition {
    synchronous: false,
    takes_replicas: true,
    ..Definition::new("pipedream", |options| {
        Box::new(PipeDream {
            replicas: options.replicas.clone(),
            update_every: options.update_every,
        })
    })
};

/// PipeDream's asynchronous schedule: 1F1B that updates weights without a flush.
///
/// The order of the passes is that of one long step of
/// [`OneForwardOneBackward`](crate::OneForwardOneBackward). Each stage updates its weights as soon as it
/// has the gradients of the next `n` micro-batches, and goes on; see [`Schedule::update_every`]. So
/// there is no bubble once the pipeline is full. With `n` = 1, the default, it is PipeDream's own
/// schedule. (What is called a micro-batch here is a mini-batch there.)
///
/// Weights change between the forward and the backward pass of a micro-batch. To use the same ones in
/// both, a stage keeps older versions; see [`Schedule::versions`]. Only under this schedule does
/// training differ from training on one device.
///
/// A stage may have several replicas: workers that take its micro-batches in turn (1F1B-RR). Stage
/// `s` with `r` replicas warms up with ⌈`w` / `r`⌉ − 1 forward passes, where `w` is the number of
/// workers from `s` on. Replicas add up their gradients at every update, so that all stages have the
/// same updates, and each replica needs a micro-batch in each of them. The default of `n` is the
/// number of replicas of the stage that has most.
///
/// Narayanan et al., *PipeDream: Generalized Pipeline Parallelism for DNN Training*, SOSP 2019.
///
/// ```
/// use stovepipe_schedule::{PipeDream, Scheduler};
///
/// let schedule = PipeDream::new(vec![2, 1]).schedule(2, 4)?;
/// assert_eq!(
///     schedule.to_string(),
///     "0F0 0F2 0B0 0U1 0B2 0U3\n\
///      0F1 0F3 0B1 0U1 0B3 0U3\n\
///      1F0 1B0 1F1 1B1 1U1 1F2 1B2 1F3 1B3 1U3"
/// );
/// # Ok::<(), stovepipe_schedule::ScheduleError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct PipeDream {
    replicas: Vec<usize>,
    update_every: Option<usize>,
}

impl PipeDream {
    /// The number of replicas of each stage. An empty list means one each.
    #[must_use]
    pub fn new(replicas: Vec<usize>) -> Self {
        Self {
            replicas,
            update_every: None,
        }
    }

    /// The number of micro-batches of each update. Schedules have whole updates only.
    #[must_use]
    pub fn with_update_every(self, micro_batches: usize) -> Self {
        Self {
            update_every: Some(micro_batches),
            ..self
        }
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
        Schedule::check_size(stages, micro_batches)?;
        let replicas = of_each(&self.replicas, stages)?;
        let most = replicas.iter().copied().max().unwrap_or(1);
        let every = self.update_every.unwrap_or(most);
        if every == 0 || !micro_batches.is_multiple_of(every) {
            return Err(ScheduleError::UpdateSize {
                micro_batches,
                every,
            });
        }
        let mut replicas_of = replicas.iter().copied().enumerate();
        if let Some((stage, replicas)) = replicas_of.find(|&(_, replicas)| replicas > every) {
            return Err(ScheduleError::ReplicasOfUpdate {
                stage,
                replicas,
                every,
            });
        }
        in_turn(&replicas, micro_batches, Some(every))
    }
}

/// 1F1B with replicas of stages, which take micro-batches in turn. Weights change at the end of the
/// step: [`PipeDream`]'s order with the result of one device. Replicas without a micro-batch are left
/// out.
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
        Schedule::check_size(stages, micro_batches)?;
        let mut replicas = of_each(&self.replicas, stages)?;
        for count in &mut replicas {
            *count = (*count).min(micro_batches);
        }
        in_turn(&replicas, micro_batches, None)
    }
}

fn stages(replicas: &[usize], workers: usize) -> usize {
    match replicas.len() {
        0 => workers,
        stages => stages,
    }
}

/// The number of replicas of each stage.
fn of_each(replicas: &[usize], stages: usize) -> Result<Vec<usize>, ScheduleError> {
    let replicas = match replicas.len() {
        0 => vec![1; stages],
        replicas if replicas != stages => {
            return Err(ScheduleError::ReplicaCount { replicas, stages });
        }
        _ => replicas.to_vec(),
    };
    match replicas.iter().position(|&count| count == 0) {
        Some(stage) => Err(ScheduleError::NoReplicas { stage }),
        None => Ok(replicas),
    }
}

/// 1F1B in which the replicas of each stage take micro-batches in turn, with an update after `every` so
/// many.
fn in_turn(
    replicas: &[usize],
    micro_batches: usize,
    every: Option<usize>,
) -> Result<Schedule, ScheduleError> {
    let mut from_here: usize = replicas.iter().sum();
    let mut workers = Vec::with_capacity(from_here);
    for (stage, &count) in replicas.iter().enumerate() {
        let warm_up = from_here.div_ceil(count) - 1;
        let of_replica = |replica| {
            let own = (replica..micro_batches).step_by(count).collect::<Vec<_>>();
            replica_actions(stage, &own, warm_up, every)
        };
        workers.extend((0..count).map(of_replica));
        from_here -= count;
    }
    Schedule::new(workers)
}

/// 1F1B over some of the micro-batches. An update follows the last backward pass that it waits for.
fn replica_actions(
    stage: usize,
    own: &[usize],
    warm_up: usize,
    every: Option<usize>,
) -> Vec<Action> {
    let update = |index: usize| {
        let number = |index: usize| Some(own.get(index)? / every?);
        let done = number(index)?;
        let last = (done + 1) * every? - 1;
        (number(index + 1) != Some(done)).then_some(Action::new(stage, Pass::Update, last))
    };
    let backward = |index| [Some(Action::backward(stage, own[index])), update(index)];
    let mut actions = Vec::new();
    for (index, &micro_batch) in own.iter().enumerate() {
        actions.push(Action::forward(stage, micro_batch));
        if let Some(index) = index.checked_sub(warm_up) {
            actions.extend(backward(index).into_iter().flatten());
        }
    }
    let left = own.len().saturating_sub(warm_up)..own.len();
    actions.extend(left.flat_map(backward).flatten());
    actions
}
