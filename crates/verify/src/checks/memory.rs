//! What stages hold.

use stovepipe_pipeline::{Flow, Held, Layer, Objective};
use stovepipe_schedule::{Pass, Schedule, Scheduler};

use crate::{
    case::Case,
    report::Check,
    subject::{Subject, parts},
};

/// Whether no stage holds more micro-batches than its schedule says.
pub(crate) fn memory<L, T, O>(subject: &Subject<L, T, O>, cases: &[Case]) -> Check
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    let compared = "micro-batches held by each stage with the schedule's bound";
    let mut check = Check::new("memory", compared, 0.0);
    for case in cases {
        match held(subject, case) {
            Ok((found, bounds)) => {
                for (stage, (found, bound)) in found.iter().zip(&bounds).enumerate() {
                    let beyond = |found: usize, bound: usize| found.saturating_sub(bound) as f64;
                    let size = beyond(found.inputs, bound.inputs)
                        + beyond(found.activations, bound.activations);
                    let place = || format!("stage {stage}: {found:?} for {bound:?} ({case})");
                    check.case(size, place);
                }
            }
            Err(why) => check.failed(format!("{case}: {why}")),
        }
    }
    check.judged("the engine kept what the schedule did not ask it to: please report this")
}

fn held<L, T, O>(subject: &Subject<L, T, O>, case: &Case) -> Result<(Vec<Held>, Vec<Held>), String>
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    let pipeline = subject.build(case).map_err(|error| error.to_string())?;
    let step = subject
        .train(&pipeline)
        .map_err(|error| error.to_string())?;
    let micro_batches = parts(subject.samples(), case.micro_batches).len();
    let schedule = case.by.schedule(case.stages(), micro_batches);
    let schedule = schedule.map_err(|error| error.to_string())?;
    let stages = 0..case.stages();
    let bounds = stages.map(|stage| bound(&schedule, stage, case));
    Ok((step.held, bounds.collect()))
}

/// Walks through a stage's actions.
fn bound(schedule: &Schedule, stage: usize, case: &Case) -> Held {
    let kept = case.recompute.kept(schedule, stage);
    let (mut now, mut most) = (Held::default(), Held::default());
    let actions = schedule.workers().iter().flatten();
    for action in actions.filter(|action| action.stage == stage) {
        let records = kept[action.micro_batch];
        match action.pass {
            Pass::Forward if records => now.activations += 1,
            Pass::Forward => now.inputs += 1,
            Pass::Backward | Pass::InputGradient => {
                if !records {
                    // The input becomes a tape.
                    now.inputs -= 1;
                    most.activations = most.activations.max(now.activations + 1);
                } else {
                    now.activations -= 1;
                }
            }
            Pass::WeightGradient | Pass::Update => {}
        }
        most.inputs = most.inputs.max(now.inputs);
        most.activations = most.activations.max(now.activations);
    }
    most
}
