//! The limit of a schedule's speed.
//!
//! A schedule is simulated with the times of its passes alone: transfers and waiting for a
//! processor take no time. With K equal stages and no recomputation, a step
//! takes (m + K − 1) / K of a plain loop's time for a micro-batch, so K threads reach
//! m·K / (m + K − 1) / K of the speed of K independent copies of the loop.

use std::collections::HashMap;

use stovepipe::schedule::{Action, Pass, Schedule};

use crate::{Failure, piped::PipedSettings};

/// The seconds of a stage for one micro-batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageCost {
    pub forward: f64,
    /// Backward, without a recomputation.
    pub backward: f64,
}

/// The share of the rate of K independent copies that the plan's stages can reach: Σ over stages of
/// m · (forward + backward), over K times the length of the simulated schedule. With
/// `recompute`, a recomputed pass adds its forward time to its backward time.
pub fn share_of_copies(
    plan: &PipedSettings,
    costs: &[StageCost],
    recompute: bool,
) -> Result<f64, Failure> {
    let schedule = plan.actions()?;
    let length = play(&schedule, |action| {
        let StageCost { forward, backward } = costs[action.stage];
        let again = recompute && plan.recomputes(&schedule, action.stage, action.micro_batch);
        match action.pass {
            Pass::Forward => forward,
            Pass::Backward | Pass::InputGradient if again => forward + backward,
            Pass::Backward | Pass::InputGradient => backward,
            // The whole backward pass is counted as one: see `zero_bubble` for halves.
            Pass::WeightGradient | Pass::Update => 0.0,
        }
    });
    let work: f64 = costs.iter().map(|cost| cost.forward + cost.backward).sum();
    Ok(plan.micro_batches as f64 * work / (costs.len() as f64 * length))
}

/// The length of a schedule in which each action begins as soon as its worker is free and its input
/// has arrived.
fn play(schedule: &Schedule, cost: impl Fn(Action) -> f64) -> f64 {
    let mut ends: HashMap<Action, f64> = HashMap::new();
    let mut free = vec![0.0_f64; schedule.workers().len()];
    let mut next = vec![0; free.len()];
    let total: usize = schedule.workers().iter().map(Vec::len).sum();
    while ends.len() < total {
        for (worker, actions) in schedule.workers().iter().enumerate() {
            while let Some(&action) = actions.get(next[worker]) {
                let arrived = match schedule.input(action) {
                    None => 0.0,
                    Some(input) => match ends.get(&input) {
                        Some(&end) => end,
                        None => break,
                    },
                };
                free[worker] = free[worker].max(arrived) + cost(action);
                ends.insert(action, free[worker]);
                next[worker] += 1;
            }
        }
    }
    free.into_iter().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use stovepipe::{prelude::Recompute, schedule::Rule};

    use super::*;

    const EQUAL: StageCost = StageCost {
        forward: 1.0,
        backward: 2.0,
    };

    fn share(schedule: Rule, recompute: Recompute, m: usize, k: usize) -> f64 {
        let plan = PipedSettings {
            schedule,
            recompute,
            ..PipedSettings::new(vec![1; k], m)
        };
        share_of_copies(&plan, &vec![EQUAL; k], true).unwrap()
    }

    #[test]
    fn equal_stages_reach_the_formula() {
        for schedule in [Rule::GPipe, Rule::OneForwardOneBackward] {
            for (m, k) in [(1, 1), (1, 2), (4, 2), (32, 2), (5, 3)] {
                let formula = m as f64 / (m + k - 1) as f64;
                let found = share(schedule, Recompute::Never, m, k);
                assert!((found - formula).abs() < 1e-9, "m {m}, K {k}: {found}");
            }
        }
    }

    #[test]
    fn recomputation_costs_a_forward_pass() {
        // Work of 3 and recomputation of 1 in both stages, m + K − 1 times.
        let found = share(Rule::GPipe, Recompute::Always, 4, 2);
        assert!((found - 4.0 / 5.0 * 3.0 / 4.0).abs() < 1e-9, "{found}");
        // The only stage starts backward at once: nothing to recompute.
        let plain = share(Rule::OneForwardOneBackward, Recompute::Always, 4, 1);
        assert_eq!(plain, 1.0);
    }
}
