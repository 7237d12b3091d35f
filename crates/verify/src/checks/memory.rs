//! The micro-batches that stages hold.

use stovepipe_pipeline::Held;
use stovepipe_schedule::{Pass, Schedule, Scheduler};

use crate::{case::Case, report::Check, subject::parts};

/// Whether no stage holds more micro-batches than its schedule allows.
pub(crate) fn memory(samples: usize, held: &[(Case, Vec<Held>)]) -> Check {
    let compared = "micro-batches held by each stage with the schedule's bound";
    let mut check = Check::new("memory", compared, 0.0);
    for (case, held) in held {
        let micro_batches = parts(samples, case.micro_batches).len();
        match case.rule.schedule(case.stages(), micro_batches) {
            Ok(schedule) => {
                for (stage, found) in held.iter().enumerate() {
                    let bound = bound(&schedule, stage, case);
                    let excess = found.inputs.saturating_sub(bound.inputs)
                        + found.activations.saturating_sub(bound.activations);
                    check.case(excess as f64, || {
                        format!("stage {stage}: {found:?} for {bound:?} ({case})")
                    });
                }
            }
            Err(error) => check.failed(format!("{case}: {error}")),
        }
    }
    check.finished("a stage kept more than its schedule asks for: please report this")
}

/// The most that a stage may hold at once, by its actions.
fn bound(schedule: &Schedule, stage: usize, case: &Case) -> Held {
    let kept = case.recompute.kept(schedule, stage);
    let (mut now, mut most) = (Held::default(), Held::default());
    let actions = schedule.workers().iter().flatten();
    for action in actions.filter(|action| action.stage == stage) {
        let records = kept[action.micro_batch];
        match action.pass {
            Pass::Forward if records => now.activations += 1,
            Pass::Forward => now.inputs += 1,
            Pass::Backward | Pass::InputGradient if records => now.activations -= 1,
            Pass::Backward | Pass::InputGradient => {
                // The input becomes a tape.
                now.inputs -= 1;
                most.activations = most.activations.max(now.activations + 1);
            }
            Pass::WeightGradient | Pass::Update => {}
        }
        most.inputs = most.inputs.max(now.inputs);
        most.activations = most.activations.max(now.activations);
    }
    most
}
