//! Replicas of whole pipelines.

use crate::{Action, Schedule, ScheduleError, Scheduler};

/// Repeats the schedule of a whole pipeline: data parallelism, with replicas that take micro-batches in
/// turn. [`RoundRobin`](crate::RoundRobin) has replicas of single stages.
///
/// With `R` replicas, replica `r` has micro-batches `r`, `r + R`, … and workers of its own: those of
/// replica 0 come first. With fewer micro-batches than replicas, the last ones have nothing to do.
///
/// ```
/// use stovepipe_schedule::{OneForwardOneBackward, DataParallel, Scheduler};
///
/// let scheduler = DataParallel { scheduler: OneForwardOneBackward, replicas: 2 };
/// assert_eq!(scheduler.stages(4), 2);
/// let schedule = scheduler.schedule(2, 3)?;
/// assert_eq!(
///     schedule.to_string(),
///     "0F0 0F2 0B0 0B2\n1F0 1B0 1F2 1B2\n0F1 0B1\n1F1 1B1"
/// );
/// assert_eq!([0, 1].map(|stage| schedule.replicas(stage)), [[0, 2], [1, 3]]);
/// # Ok::<(), stovepipe_schedule::ScheduleError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DataParallel<S> {
    /// Makes the schedule of each replica, with one worker a stage.
    pub scheduler: S,
    /// The number of replicas.
    pub replicas: usize,
}

impl<S: Scheduler> Scheduler for DataParallel<S> {
    fn name(&self) -> &str {
        self.scheduler.name()
    }

    fn stages(&self, workers: usize) -> usize {
        match workers.checked_div(self.replicas) {
            Some(workers_of_one) => self.scheduler.stages(workers_of_one),
            None => 0,
        }
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        Schedule::check_size(stages, micro_batches)?;
        if self.replicas == 0 {
            return Err(ScheduleError::NoReplicas { stage: 0 });
        }
        let busy = self.replicas.min(micro_batches);
        let mut workers = Vec::new();
        for replica in 0..busy {
            let own = (micro_batches - replica).div_ceil(busy);
            let schedule = self.scheduler.schedule(stages, own)?;
            let of_all = |action: &Action| Action {
                micro_batch: replica + action.micro_batch * busy,
                ..*action
            };
            let own = schedule.workers().iter();
            workers.extend(own.map(|actions| actions.iter().map(of_all).collect()));
        }
        Schedule::new(workers)
    }
}
