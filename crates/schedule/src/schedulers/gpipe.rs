//! All forward passes, then all backward passes.

use crate::{Action, Schedule, ScheduleError, Scheduler, schedulers::one_stage_a_worker};

/// The schedule of GPipe: all forward passes, then all backward passes.
///
/// Three stages and four micro-batches, each pass as long as the other for the sake of the
/// picture:
///
/// ```text
/// clock    0  1  2  3  4  5  6  7  8  9 10 11
/// stage 0  F0 F1 F2 F3  ·  ·  ·  · B0 B1 B2 B3
/// stage 1   · F0 F1 F2 F3  ·  · B0 B1 B2 B3  ·
/// stage 2   ·  · F0 F1 F2 F3 B0 B1 B2 B3  ·  ·
/// ```
///
/// The dots are the bubble: of `m + p − 1` clock cycles in each direction a worker waits `p − 1`,
/// for `p` stages and `m` micro-batches. Every stage holds the activations (or, when they are
/// recomputed, the inputs) of all `m` micro-batches at once.
///
/// The backward passes run from the first micro-batch to the last, where one might expect the
/// reverse. A sum of floating-point numbers depends on the order of its terms; with every schedule
/// adding gradients in ascending order, all of them yield the same bits. The bubble is the same
/// either way.
///
/// Huang et al., *GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism*,
/// NeurIPS 2019, [arXiv:1811.06965](https://arxiv.org/abs/1811.06965).
///
/// ```
/// use stovepipe_schedule::{GPipe, Scheduler};
///
/// let schedule = GPipe.schedule(2, 2)?;
/// assert_eq!(schedule.to_string(), "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1");
/// # Ok::<(), stovepipe_schedule::ScheduleError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct GPipe;

impl Scheduler for GPipe {
    fn name(&self) -> &str {
        "GPipe"
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        one_stage_a_worker(stages, micro_batches, |stage| {
            let forwards = (0..micro_batches).map(|i| Action::forward(stage, i));
            let backwards = (0..micro_batches).map(|i| Action::backward(stage, i));
            forwards.chain(backwards).collect()
        })
    }
}
