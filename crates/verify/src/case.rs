//! One way to run a model.

use std::fmt;

use stovepipe_schedule::{Recompute, Rule, Scheduler};

/// One way to run a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) rule: Rule,
    pub(crate) workers: usize,
    pub(crate) micro_batches: usize,
    pub(crate) recompute: Recompute,
}

impl Case {
    /// The plainest way there is: one stage, one micro-batch after the other, nothing run twice.
    pub(crate) fn plainest(micro_batches: usize) -> Self {
        Self {
            rule: Rule::GPipe,
            workers: 1,
            micro_batches,
            recompute: Recompute::Never,
        }
    }

    pub(crate) fn stages(&self) -> usize {
        self.rule.stages(self.workers)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count| if count == 1 { "" } else { "s" };
        let (stages, micro_batches) = (self.stages(), self.micro_batches);
        write!(f, "{}, {stages} stage{}, ", self.rule, plural(stages))?;
        write!(
            f,
            "{micro_batches} micro-batch{}, ",
            if micro_batches == 1 { "" } else { "es" }
        )?;
        write!(f, "recompute {}", self.recompute)
    }
}
