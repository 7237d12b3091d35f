//! Replicas of whole pipelines.

use std::iter::repeat_n;

use crate::{Action, Schedule, ScheduleError, Scheduler};

/// Repeats the schedule of a whole pipeline: data parallelism.
/// [`RoundRobin`](crate::RoundRobin) has replicas of single stages.
///
/// Each replica has workers of its own: those of replica 0 come first. Replicas share out the
/// micro-batches, by count: with shares of 3 and 1, the first one has three of every four. With few
/// micro-batches, some replicas may have none. Their workers are left out.
///
/// | shares | replica of micro-batch 0, 1, 2, … |
/// |---|---|
/// | 1, 1, 1 | 0 1 2 · 0 1 2 · … |
/// | 3, 1 | 0 0 0 1 · 0 0 0 1 · … |
/// | 1, 3 | 1 1 0 1 · 1 1 0 1 · … |
/// | 3, 2, 1 | 0 1 0 1 0 2 · … |
///
/// ```
/// use stovepipe_schedule::{DataParallel, OneForwardOneBackward, Scheduler};
///
/// let scheduler = DataParallel::equal(OneForwardOneBackward, 2);
/// assert_eq!(scheduler.stages(4), 2);
/// let schedule = scheduler.schedule(2, 3)?;
/// assert_eq!(
///     schedule.to_string(),
///     "0F0 0F2 0B0 0B2\n1F0 1B0 1F2 1B2\n0F1 0B1\n1F1 1B1"
/// );
/// assert_eq!([0, 1].map(|stage| schedule.replicas(stage)), [[0, 2], [1, 3]]);
///
/// let unequal = DataParallel { shares: vec![3, 1], ..scheduler };
/// assert_eq!(unequal.schedule(1, 4)?.to_string(), "0F0 0B0 0F1 0B1 0F2 0B2\n0F3 0B3");
/// # Ok::<(), stovepipe_schedule::ScheduleError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DataParallel<S> {
    /// Makes the schedule of each replica, with one worker a stage.
    pub scheduler: S,
    /// For each replica, how many of every `Σ shares` micro-batches it takes.
    pub shares: Vec<usize>,
}

impl<S> DataParallel<S> {
    /// Replicas that take micro-batches in turn.
    pub fn equal(scheduler: S, replicas: usize) -> Self {
        let shares = repeat_n(1, replicas).collect();
        Self { scheduler, shares }
    }

    /// The replica of each micro-batch, without end. It ends at once if there are no shares.
    ///
    /// With a share of `s` of `S`, a replica should have its `k`-th micro-batch among the first
    /// ⌈`kS/s`⌉. Of the replicas that have less than their share, the next micro-batch goes to the one
    /// with the earliest such deadline, the first one of equals. So at any time each replica has its
    /// share to within one micro-batch. (The earliest deadline first: Liu and Layland, *Scheduling
    /// Algorithms for Multiprogramming in a Hard-Real-Time Environment*, 1973.)
    ///
    /// ```
    /// use stovepipe_schedule::{DataParallel, GPipe};
    ///
    /// let scheduler = DataParallel { scheduler: GPipe, shares: vec![3, 2, 1] };
    /// assert_eq!(scheduler.turns().take(7).collect::<Vec<_>>(), [0, 1, 0, 1, 0, 2, 0]);
    /// ```
    pub fn turns(&self) -> impl Iterator<Item = usize> {
        let share = |replica: usize| self.shares[replica] as u128;
        let replicas = 0..self.shares.len();
        let all: u128 = replicas.clone().map(share).sum();
        let mut taken = vec![0_u128; replicas.len()];
        (1_u128..).map_while(move |count| {
            let is_behind = |&replica: &usize| taken[replica] * all < count * share(replica);
            let deadline = |&replica: &usize| ((taken[replica] + 1) * all).div_ceil(share(replica));
            let replica = replicas.clone().filter(is_behind).min_by_key(deadline)?;
            taken[replica] += 1;
            Some(replica)
        })
    }
}

impl<S: Scheduler> Scheduler for DataParallel<S> {
    fn name(&self) -> &str {
        self.scheduler.name()
    }

    fn stages(&self, workers: usize) -> usize {
        match workers.checked_div(self.shares.len()) {
            Some(workers_of_one) => self.scheduler.stages(workers_of_one),
            None => 0,
        }
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        Schedule::check_size(stages, micro_batches)?;
        if self.shares.is_empty() {
            return Err(ScheduleError::NoReplicas { stage: 0 });
        }
        if let Some(replica) = self.shares.iter().position(|&share| share == 0) {
            return Err(ScheduleError::NoShare { replica });
        }
        let mut of_replicas = vec![Vec::new(); self.shares.len()];
        for (micro_batch, replica) in self.turns().take(micro_batches).enumerate() {
            of_replicas[replica].push(micro_batch);
        }
        let mut workers = Vec::new();
        for own in of_replicas.iter().filter(|own| !own.is_empty()) {
            let schedule = self.scheduler.schedule(stages, own.len())?;
            let of_all = |action: &Action| Action {
                micro_batch: own[action.micro_batch],
                ..*action
            };
            let actions = schedule.workers().iter();
            workers.extend(actions.map(|actions| actions.iter().map(of_all).collect()));
        }
        Schedule::new(workers)
    }
}
