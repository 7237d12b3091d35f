//! Steps next to their predicted times.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench predicted`

use stovepipe::schedule::{Costs, Recompute, Rule, SpanKind};
use stovepipe_benches::{
    Failure,
    arguments::SweepArguments,
    bench_model::BenchModel,
    contender::{ContenderWork, race},
    measure::mean,
    piped::PipedSettings,
    report::{ReportTable, cell},
    sweep::sweep,
};

const WORKERS: usize = 2;

const NOTE: &str = "\
Two workers of a thread each. Layers are measured side by side, as before a training; the cut and the
prediction are the planner's; the step is the engine's, forward and backward.
predicted: the predicted over the measured step: 1 is exact, below 1 is too optimistic.
alone:    the same with layers that were measured one by one.
replayed: steps in this process, simulated with the means of their own passes, over their measured
        time: the rest is the engine's time around passes, and passes that vary.";

pub fn main(flags: SweepArguments) -> Result<(), Failure> {
    let flags = flags.or_micro_batches(&[2], &[4, 8]);
    sweep("predicted", NOTE, &flags, compare)
}

fn compare(model: &dyn BenchModel, m: usize, rounds: usize) -> Result<ReportTable, Failure> {
    let (profile, alone) = (model.profile(WORKERS)?, model.profile(0)?);
    let mut predictions = Vec::new();
    for schedule in [Rule::GPipe, Rule::OneForwardOneBackward] {
        for recompute in Recompute::MODES {
            let mut plan = PipedSettings {
                schedule,
                recompute,
                ..PipedSettings::new(vec![1; WORKERS], m)
            };
            let found = plan.predict(&profile, None)?;
            let alone = plan.predict(&alone, Some(&found.balance))?.step_time;
            plan.cut = found.balance;
            predictions.push((plan, found.step_time, alone));
        }
    }
    let works = (predictions.iter()).map(|(plan, ..)| ContenderWork::passes(plan));
    let costs = race(model, works, rounds)?;
    let mut table = ReportTable::new(format!("{}: m = {m}", model.name()));
    for ((plan, time, alone), costs) in predictions.iter().zip(&costs) {
        let step = costs.seconds.median();
        table.row([
            cell("schedule", "schedule", 0, plan.schedule.name()),
            cell("recompute", "recompute", 0, plan.recompute.to_string()),
            cell("cut", "cut", 0, format!("{:?}", plan.cut)),
            cell("step_ms", "step ms", 1, 1e3 * step),
            cell("spread_percent", "±%", 1, 100.0 * costs.seconds.spread()),
            cell("predicted_ms", "predicted ms", 1, 1e3 * time),
            cell("predicted", "predicted", 3, time / step),
            cell("alone", "alone", 3, alone / step),
            cell("replayed", "replayed", 3, replayed(model, plan, rounds)?),
        ]);
    }
    Ok(table)
}

/// Seconds of a stage's passes: of forward passes with and without a tape, and of backward passes.
#[derive(Clone, Default)]
struct ReplayedPasses {
    forward: Vec<f64>,
    quiet: Vec<f64>,
    backward: Vec<f64>,
}

/// A simulated step with the times of a measured one, over the measured one.
fn replayed(model: &dyn BenchModel, plan: &PipedSettings, rounds: usize) -> Result<f64, Failure> {
    let schedule = plan.actions()?;
    let mut piped = model.piped(plan)?;
    piped.step()?; // compiles kernels and touches memory
    let mut stages = vec![ReplayedPasses::default(); WORKERS];
    let mut steps = Vec::new();
    for _ in 0..2 * rounds {
        let done = piped.step()?;
        steps.push(done.passes);
        for span in done.timeline.workers.iter().flatten() {
            let Some(action) = span.action else { continue };
            let stage = &mut stages[action.stage];
            let again = plan.recomputes(&schedule, action.stage, action.micro_batch);
            let seconds = match span.kind {
                SpanKind::Forward if again => &mut stage.quiet,
                SpanKind::Forward | SpanKind::Recompute => &mut stage.forward,
                _ => &mut stage.backward,
            };
            seconds.push(span.length().as_secs_f64());
        }
    }
    let mut costs = Costs::uniform(WORKERS, 0.0, 0.0, 0.0);
    costs.recompute = plan.recompute.clone();
    for (costs, passes) in costs.stages.iter_mut().zip(&stages) {
        costs.forward = mean(&passes.forward);
        costs.again = costs.forward;
        costs.quiet = mean(&passes.quiet);
        costs.input = mean(&passes.backward);
    }
    Ok(schedule.simulate(&costs)?.makespan() / mean(&steps))
}
