//! Backward passes as early as possible.

use super::{Definition, RoundRobin, Scheduler};
use crate::{Schedule, ScheduleError};

pub(super) const RULE: Definition = Definition {
    aliases: &["pipedream-flush"],
    takes_replicas: true,
    ..Definition::new("1f1b", |options| match &options.replicas[..] {
        [] => Box::new(OneForwardOneBackward),
        replicas => Box::new(RoundRobin::new(replicas.to_vec())),
    })
};

/// The 1F1B schedule: after a warm-up, one forward pass and one backward pass in turn.
///
/// Three stages and four micro-batches, if all passes take the same time:
///
/// ```text
/// clock    0  1  2  3  4  5  6  7  8  9 10 11
/// stage 0  F0 F1 F2  ·  · B0 F3 B1  · B2  · B3
/// stage 1   · F0 F1  · B0 F2 B1 F3 B2  · B3  ·
/// stage 2   ·  · F0 B0 F1 B1 F2 B2 F3 B3  ·  ·
/// ```
///
/// Stage `s` of `p` warms up with `p − 1 − s` forward passes, just enough to keep it busy until
/// the first gradient comes back. From then on, each forward pass is followed by the oldest
/// outstanding backward pass. A stage holds at most `p − s` micro-batches, however many there are.
/// The bubble is that of [`GPipe`](crate::GPipe); 1F1B saves memory.
///
/// The order is that of [`PipeDream`](crate::PipeDream), with a flush at the end of each step, so that all
/// micro-batches see the same weights: PipeDream-Flush (`pipedream-flush` is another name of this rule) of
/// Narayanan et al., *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*, SC
/// 2021, [arXiv:2104.04473](https://arxiv.org/abs/2104.04473).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct OneForwardOneBackward;

impl Scheduler for OneForwardOneBackward {
    fn name(&self) -> &str {
        "1F1B"
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        RoundRobin::default().schedule(stages, micro_batches)
    }
}
