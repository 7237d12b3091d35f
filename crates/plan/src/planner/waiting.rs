//! Skips on their way between stages.
//!
//! A value lies on its taker's device from the sender's forward pass on, and its gradient on the sender's device until
//! the sender's backward pass. How many do at once depends on the times of all passes. Here all stages are equally
//! fast, so that it does not depend on the cut.

use std::{cell::RefCell, collections::HashMap, ops::Range, time::Duration};

use stovepipe_schedule::{CostError, Costs, Pass, Schedule};

use super::ranges::stage_of;
use crate::Profile;

pub(super) struct Waiting {
    /// By stage and micro-batch.
    passes: Vec<Vec<Passes>>,
    /// By stage and micro-batch, whether all activations are kept.
    whole: Vec<Vec<bool>>,
    /// Of each stage, the most micro-batches between both passes.
    in_flight: Vec<usize>,
    /// By the stages of sender and taker, and a worker.
    known: RefCell<HashMap<[usize; 3], Counts>>,
}

/// Of a micro-batch in a stage: who runs it, and when its passes end.
#[derive(Clone, Copy, Default)]
struct Passes {
    worker: usize,
    forward: Duration,
    backward: Duration,
}

/// How many there are at once, at most.
#[derive(Clone, Copy)]
struct Counts {
    /// Values in a worker of the taker, but for those of micro-batches in flight there. If that worker has the sender,
    /// too, they become gradients.
    values: u64,
    /// Other gradients in a worker of the sender.
    gradients: u64,
}

impl Waiting {
    /// `whole` says, by stage and micro-batch, whether all activations are kept.
    pub fn new(schedule: &Schedule, whole: &[Vec<bool>]) -> Result<Self, CostError> {
        let costs = Costs::uniform(schedule.stages(), 1.0, 1.0, 1.0);
        let simulation = schedule.simulate(&costs)?;
        let mut passes = vec![vec![Passes::default(); schedule.micro_batches()]; schedule.stages()];
        for (worker, spans) in simulation.timeline().workers.iter().enumerate() {
            for (action, end) in spans
                .iter()
                .filter_map(|span| Some((span.action?, span.end)))
            {
                let own = &mut passes[action.stage][action.micro_batch];
                match action.pass {
                    Pass::Forward => (own.worker, own.forward) = (worker, end),
                    pass if pass.sends_gradient() => own.backward = end,
                    _ => {}
                }
            }
        }
        Ok(Self {
            passes,
            whole: whole.to_vec(),
            in_flight: schedule.peak_in_flight(),
            known: RefCell::default(),
        })
    }

    /// Bytes of skips that wait on a worker for one of its stages, or for others that took what that one sent. They do
    /// not count what micro-batches in flight hold.
    pub fn bytes(
        &self,
        profile: &Profile,
        ranges: &[Range<usize>],
        (worker, stage): (usize, usize),
    ) -> u64 {
        let mut sum = 0_u64;
        for skip in &profile.skips {
            let sender = stage_of(skip.from, ranges);
            let takers = skip.to.iter().map(|&layer| stage_of(layer, ranges));
            let mut takers: Vec<_> = takers.collect();
            takers.retain(|&taker| taker != sender);
            let count = |taker: usize| match stage {
                _ if stage == sender => self.counts(sender, taker, worker).gradients,
                _ => self.counts(sender, taker, worker).values,
            };
            // Each layer that takes a value has a gradient for it, but those of a stage get one value.
            if stage != sender {
                takers.dedup();
                takers.retain(|&taker| taker == stage);
            }
            let all = takers.into_iter().map(count).sum::<u64>();
            sum = sum.saturating_add(skip.bytes.saturating_mul(all));
        }
        sum
    }

    fn counts(&self, sender: usize, taker: usize, worker: usize) -> Counts {
        let mut known = self.known.borrow_mut();
        let count = || {
            let all = self.passes[sender].iter().zip(&self.passes[taker]);
            let (mut values, mut gradients) = (Vec::new(), Vec::new());
            for ((sender, taker), &is_whole) in all.zip(&self.whole[sender]) {
                match [sender.worker == worker, taker.worker == worker] {
                    [false, true] => values.push(sender.forward..taker.backward),
                    // The gradient takes the value's place.
                    [true, true] if !is_whole => values.push(sender.forward..sender.backward),
                    // The value is among the activations of the sender.
                    [true, _] => gradients.push(taker.backward..sender.backward),
                    [false, false] => {}
                }
            }
            let [values, gradients] = [values, gradients].map(most_at_once);
            Counts {
                values: values.saturating_sub(self.in_flight[taker] as u64),
                gradients,
            }
        };
        *known.entry([sender, taker, worker]).or_insert_with(count)
    }
}

/// How many of these times overlap at most. One that ends when another one begins does not.
fn most_at_once(times: Vec<Range<Duration>>) -> u64 {
    let mut changes: Vec<_> = times
        .into_iter()
        .filter(|time| !time.is_empty())
        .flat_map(|time| [(time.start, 1), (time.end, -1_i64)])
        .collect();
    changes.sort_unstable();
    let counts = changes.iter().scan(0, |now, (_, change)| {
        *now += change;
        Some(*now)
    });
    counts.max().unwrap_or(0).unsigned_abs()
}
