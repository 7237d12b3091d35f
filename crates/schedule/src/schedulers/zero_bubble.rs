//! Backward passes in halves. The second halves fill the bubble.

use super::{Definition, Scheduler};
use crate::{Action, Pass, Schedule, ScheduleError};

pub(super) const H1: Definition = Definition {
    needs_halves: true,
    ..Definition::new("zb-h1", |_| Box::new(ZeroBubbleH1))
};
pub(super) const H2: Definition = Definition {
    needs_halves: true,
    ..Definition::new("zb-h2", |_| Box::new(ZeroBubbleH2))
};

/// ZB-H1: 1F1B whose weight gradients fill the bubble, within the memory of 1F1B.
///
/// The previous stage waits for the gradient of the input only, so that half of a backward pass
/// comes first. The gradients of the weights may be computed at any time after it. Stage `s` of `p`
/// delays the first `s` of them until nothing else is left to do. This reduces the bubble from
/// `(p − 1)(F + I + W)` to `(p − 1)(F + I − W)`.
///
/// Three stages and four micro-batches, if all passes take the same time:
///
/// ```text
/// clock    0  1  2  3  4  5  6  7  8  9 10 11 12 13
/// stage 0 F0 F1 F2  ·  · I0 W0 F3 I1 W1 I2 W2 I3 W3
/// stage 1  · F0 F1  · I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
/// stage 2  ·  · F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
/// ```
///
/// Qi et al., *Zero Bubble Pipeline Parallelism*, ICLR 2024,
/// [arXiv:2401.10241](https://arxiv.org/abs/2401.10241), where the halves are called B and W.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ZeroBubbleH1;

impl Scheduler for ZeroBubbleH1 {
    fn name(&self) -> &str {
        "ZB-H1"
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        Schedule::one_stage_a_worker(stages, micro_batches, |stage| {
            stage_actions(stage, stages - 1 - stage, stage, micro_batches)
        })
    }
}

/// ZB-H2: twice the warm-up of [`ZeroBubbleH1`], for a bubble of `(p − 1)(F + I − 2W)`.
///
/// With `F = I = W` and at least `2p − 1` micro-batches, each worker is busy from its first action to
/// its last. There is no bubble if workers do not wait for each other between steps. Stage `s` holds
/// up to `2(p − s) − 1` micro-batches. The source is that of ZB-H1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ZeroBubbleH2;

impl Scheduler for ZeroBubbleH2 {
    fn name(&self) -> &str {
        "ZB-H2"
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        Schedule::one_stage_a_worker(stages, micro_batches, |stage| {
            stage_actions(stage, 2 * (stages - 1 - stage), 2 * stage, micro_batches)
        })
    }
}

/// After the warm-up, forward passes and input gradients in turn. `late` weight gradients come last.
fn stage_actions(stage: usize, warm_up: usize, late: usize, micro_batches: usize) -> Vec<Action> {
    let mut actions = Vec::with_capacity(3 * micro_batches);
    let mut forwards = (0..micro_batches).map(|i| Action::forward(stage, i));
    let mut weights = (0..micro_batches).map(|i| Action::new(stage, Pass::WeightGradient, i));
    actions.extend(forwards.by_ref().take(warm_up));
    for micro_batch in 0..micro_batches {
        actions.extend(forwards.next());
        actions.push(Action::new(stage, Pass::InputGradient, micro_batch));
        if micro_batch >= late {
            actions.extend(weights.next());
        }
    }
    actions.extend(weights);
    actions
}
