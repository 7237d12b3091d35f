//! Who makes schedules.

use std::fmt::Debug;

use crate::{Action, Schedule, ScheduleError};

/// A rule that makes a schedule for any number of stages and micro-batches.
pub trait Scheduler: Debug + Send + Sync {
    /// The name under which people know the rule.
    ///
    /// ```
    /// # use stovepipe_schedule::{GPipe, Scheduler};
    /// assert_eq!(GPipe.name(), "GPipe");
    /// ```
    fn name(&self) -> &str;

    /// Makes a schedule.
    ///
    /// ```
    /// # use stovepipe_schedule::{GPipe, Scheduler};
    /// assert_eq!(GPipe.schedule(1, 2)?.to_string(), "0F0 0F1 0B0 0B1");
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the rule has no schedule for these numbers; none has one for zero stages or zero
    /// micro-batches.
    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError>;
}

/// A fixed schedule serves its own number of stages and micro-batches, and no other.
impl Scheduler for Schedule {
    fn name(&self) -> &str {
        "fixed"
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        if (stages, micro_batches) == (self.stages(), self.micro_batches()) {
            return Ok(self.clone());
        }
        Err(ScheduleError::Fixed {
            stages: self.stages(),
            micro_batches: self.micro_batches(),
            asked_stages: stages,
            asked_micro_batches: micro_batches,
        })
    }
}

/// Makes a schedule in which worker `i` has stage `i` alone, from each stage's actions.
pub(crate) fn one_stage_a_worker(
    stages: usize,
    micro_batches: usize,
    actions: impl FnMut(usize) -> Vec<Action>,
) -> Result<Schedule, ScheduleError> {
    if stages == 0 {
        return Err(ScheduleError::NoStages);
    }
    if micro_batches == 0 {
        return Err(ScheduleError::NoMicroBatches);
    }
    Schedule::new((0..stages).map(actions).collect())
}
