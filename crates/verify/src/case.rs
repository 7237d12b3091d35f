//! One way to run a model.

use std::fmt;

use stovepipe_pipeline::{BuildError, LayerError, StepError, error::ProcessError};
use stovepipe_schedule::{Recompute, Rule, ScheduleError, Scheduler};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) rule: Rule,
    /// Of each replica.
    pub(crate) workers: usize,
    pub(crate) replicas: usize,
    pub(crate) micro_batches: usize,
    pub(crate) recompute: Recompute,
}

/// Why a case has nothing to compare.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaseError {
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    #[error("without a pipeline: {0}")]
    Plain(#[from] LayerError),
    #[error(transparent)]
    Processes(#[from] ProcessError),
    #[error("a loss of NaN was reported as: {0}")]
    WrongError(#[source] StepError),
    #[error("a loss of NaN was no error")]
    NoError,
    #[error("a step that failed changed {0}")]
    Changed(String),
}

impl CaseError {
    /// Whether a case failed here because it failed in another process.
    pub(crate) fn is_of_other(&self) -> bool {
        matches!(
            self,
            Self::Processes(_)
                | Self::Build(BuildError::Processes(_))
                | Self::Step(StepError::Processes(_) | StepError::Cancelled(_))
                | Self::WrongError(StepError::Processes(_) | StepError::Cancelled(_))
        )
    }
}

impl Case {
    /// One stage, one micro-batch after another, no recomputation.
    pub(crate) fn simplest(micro_batches: usize) -> Self {
        Self::without_recompute(1, micro_batches)
    }

    /// One micro-batch after another, no recomputation.
    pub(crate) fn without_recompute(workers: usize, micro_batches: usize) -> Self {
        Self {
            rule: Rule::GPipe,
            workers,
            replicas: 1,
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
        let (stages, micro_batches) = (self.stages(), self.micro_batches);
        let s = if stages == 1 { "" } else { "s" };
        let es = if micro_batches == 1 { "" } else { "es" };
        let Self {
            rule, recompute, ..
        } = self;
        let replicas = match self.replicas {
            1 => String::new(),
            replicas => format!("{replicas} replicas, "),
        };
        write!(
            f,
            "{rule}, {replicas}{stages} stage{s}, {micro_batches} micro-batch{es}, recompute {recompute}"
        )
    }
}
