//! One way to run a model.

use std::fmt;

use stovepipe_schedule::{Recompute, Rule, Schedule, ScheduleError, Scheduler};

/// The stages of a worker, where a schedule asks how many.
const CHUNKS: usize = 2;

/// A rule for schedules as the engine wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct By(pub(crate) Rule);

impl Scheduler for By {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn stages(&self, workers: usize) -> usize {
        self.0.scheduler(CHUNKS).stages(workers)
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        self.0.scheduler(CHUNKS).schedule(stages, micro_batches)
    }
}

/// The rules that give the result of one device.
pub(crate) fn synchronous() -> impl Iterator<Item = By> {
    let rules = Rule::ALL
        .into_iter()
        .filter(|&rule| rule != Rule::PipeDream);
    rules.map(By)
}

/// One way to run a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) by: By,
    pub(crate) workers: usize,
    pub(crate) micro_batches: usize,
    pub(crate) recompute: Recompute,
}

impl Case {
    /// The plainest way there is: one stage, one micro-batch after the other, nothing run twice.
    pub(crate) fn plainest(micro_batches: usize) -> Self {
        Self {
            by: By(Rule::GPipe),
            workers: 1,
            micro_batches,
            recompute: Recompute::Never,
        }
    }

    pub(crate) fn stages(&self) -> usize {
        self.by.stages(self.workers)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count| if count == 1 { "" } else { "s" };
        let (stages, micro_batches) = (self.stages(), self.micro_batches);
        write!(f, "{}, {stages} stage{}, ", self.by.0, plural(stages))?;
        write!(
            f,
            "{micro_batches} micro-batch{}, ",
            if micro_batches == 1 { "" } else { "es" }
        )?;
        write!(f, "recompute {}", self.recompute)
    }
}
