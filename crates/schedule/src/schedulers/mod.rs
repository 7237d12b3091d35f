//! Who makes schedules: one rule a file.

mod gpipe;
mod interleaved;
mod one_forward_one_backward;
mod pipedream;
mod rule;
mod zero_bubble;
mod zero_bubble_v;

use std::fmt::Debug;

pub use gpipe::GPipe;
pub use interleaved::Interleaved;
pub use one_forward_one_backward::OneForwardOneBackward;
pub use pipedream::{PipeDream, RoundRobin};
pub use rule::{Rule, UnknownRule};
pub use zero_bubble::{ZeroBubbleH1, ZeroBubbleH2};
pub use zero_bubble_v::ZeroBubbleV;

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

    /// The number of stages into which a model is cut for so many workers: as many, unless the rule
    /// says otherwise.
    ///
    /// ```
    /// # use stovepipe_schedule::{Interleaved, OneForwardOneBackward, Scheduler};
    /// assert_eq!(OneForwardOneBackward.stages(3), 3);
    /// assert_eq!(Interleaved { chunks: 2 }.stages(3), 6);
    /// ```
    fn stages(&self, workers: usize) -> usize {
        workers
    }

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

    fn stages(&self, _: usize) -> usize {
        Schedule::stages(self)
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        let own = (Schedule::stages(self), self.micro_batches());
        if (stages, micro_batches) == own {
            return Ok(self.clone());
        }
        Err(ScheduleError::Fixed {
            stages: own.0,
            micro_batches: own.1,
            asked_stages: stages,
            asked_micro_batches: micro_batches,
        })
    }
}

/// Refuses what no rule has a schedule for.
fn check_size(stages: usize, micro_batches: usize) -> Result<(), ScheduleError> {
    match (stages, micro_batches) {
        (0, _) => Err(ScheduleError::NoStages),
        (_, 0) => Err(ScheduleError::NoMicroBatches),
        _ => Ok(()),
    }
}

/// Makes a schedule in which worker `i` has stage `i` alone, from each stage's actions.
pub(crate) fn one_stage_a_worker(
    stages: usize,
    micro_batches: usize,
    actions: impl FnMut(usize) -> Vec<Action>,
) -> Result<Schedule, ScheduleError> {
    check_size(stages, micro_batches)?;
    Schedule::new((0..stages).map(actions).collect())
}
