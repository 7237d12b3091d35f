//! All forward passes, then all backward passes.

use super::{Definition, Scheduler};
use crate::{Action, Schedule, ScheduleError};

pub(super) const RULE: Definition = Definition::new("gpipe", |_| Box::new(GPipe));

/// The schedule of GPipe: all forward passes, then all backward passes.
///
/// Three stages and four micro-batches, if all passes take the same time:
///
/// ```text
/// clock    0  1  2  3  4  5  6  7  8  9 10 11
/// stage 0  F0 F1 F2 F3  ·  ·  ·  · B0 B1 B2 B3
/// stage 1   · F0 F1 F2 F3  ·  · B0 B1 B2 B3  ·
/// stage 2   ·  · F0 F1 F2 F3 B0 B1 B2 B3  ·  ·
/// ```
///
/// The dots are the bubble. For `p` stages and `m` micro-batches, a worker waits `p − 1` of
/// `m + p − 1` clock cycles in each direction. Every stage holds the activations of all `m`
/// micro-batches at once (or their inputs, if activations are recomputed).
///
/// Backward passes run from the first micro-batch to the last, as in all schedules here: gradients are added
/// in the same order, so all give the same bits.
///
/// Huang et al., *GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism*,
/// NeurIPS 2019, [arXiv:1811.06965](https://arxiv.org/abs/1811.06965).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct GPipe;

impl Scheduler for GPipe {
    fn name(&self) -> &str {
        "GPipe"
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        Schedule::one_stage_a_worker(stages, micro_batches, |stage| {
            let forwards = (0..micro_batches).map(|i| Action::forward(stage, i));
            let backwards = (0..micro_batches).map(|i| Action::backward(stage, i));
            forwards.chain(backwards).collect()
        })
    }
}
