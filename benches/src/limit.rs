//! How fast a schedule could be at best.
//!
//! A schedule is played with the times that its passes would take if nothing were lost: not in
//! handing over, not in waiting for a processor. With K equal stages and nothing recomputed a step
//! takes (m + K − 1) / K of what a plain loop needs for a micro-batch, so K threads reach
//! m·K / (m + K − 1) / K of what they reach with independent copies of the loop.

use std::collections::HashMap;

use stovepipe::schedule::{Action, Pass, Schedule};

use crate::{Failure, piped::PipelineSettings};

/// What a stage needs for one micro-batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageCost {
    /// Forward.
    pub forward: f64,
    /// Backward, without a recomputation.
    pub backward: f64,
}

/// The share of the rate of K independent copies that the plan's stages can reach: Σ over stages of
/// m · (forward + backward), over K times the length of the played schedule. A pass that is
/// recomputed adds its forward to its backward if `recompute` says so.
///
/// # Errors
///
/// If the plan has no schedule.
pub fn share_of_copies(
    plan: &PipelineSettings,
    costs: &[StageCost],
    recompute: bool,
) -> Result<f64, Failure> {
    let schedule = plan.actions()?;
    let length = play(&schedule, |action| {
        let StageCost { forward, backward } = costs[action.stage];
        let twice = recompute && plan.recomputes(&schedule, action.stage, action.micro_batch);
        match action.pass {
            Pass::Forward => forward,
            Pass::Backward | Pass::InputGradient if twice => forward + backward,
            Pass::Backward | Pass::InputGradient => backward,
            // Halves are not told apart here: see `zero_bubble`.
            Pass::WeightGradient | Pass::Update => 0.0,
        }
    });
    let work: f64 = costs.iter().map(|cost| cost.forward + cost.backward).sum();
    Ok(plan.micro_batches as f64 * work / (costs.len() as f64 * length))
}

/// How long a schedule takes if each action begins as soon as its worker is free and its input is
/// there.
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
        let plan = PipelineSettings {
            schedule,
            recompute,
            ..PipelineSettings::new(vec![1; k], m)
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
        // Three of work and one of recomputation, in both stages, at each of m + K − 1 places.
        let found = share(Rule::GPipe, Recompute::Always, 4, 2);
        assert!((found - 4.0 / 5.0 * 3.0 / 4.0).abs() < 1e-9, "{found}");
        // One stage turns around at once: nothing to recompute.
        let plain = share(Rule::OneForwardOneBackward, Recompute::Always, 4, 1);
        assert_eq!(plain, 1.0);
    }
}
