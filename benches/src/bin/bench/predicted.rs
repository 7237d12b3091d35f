//! Whether steps take as long as they were predicted to.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench predicted`

use clap::Args;
use serde_json::json;
use stovepipe::{
    plan::{Machine, OptimizerState, Profile, Setup},
    schedule::{Costs, Recompute, Rule, Scheduler, SpanKind},
};
use stovepipe_benches::{
    Failure,
    arguments::Arguments,
    contender::{Work, contend, serve},
    measure::take_turns,
    measured::Measured,
    models::models,
    piped::PipelineSettings,
    report::{Report, Table, column, number},
    threads::compute_alone,
};

const WORKERS: usize = 2;

/// Steps next to their forecast
#[derive(Args)]
pub struct Flags {
    #[command(flatten)]
    arguments: Arguments,
    /// Numbers of micro-batches
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    micro_batches: Vec<usize>,
    /// Work as one of the configurations, for the program that started this one
    #[arg(long, hide = true)]
    contender: Option<String>,
}

const NOTE: &str = "\
Two workers of a thread each. Layers are measured one by one on a micro-batch, as training does before it
starts; the cut and the forecast are the planner's; the step is the engine's, forward and backward.
predicted: the forecast over the measured step: 1 is right, less is too hopeful.
beside:   the same with a profile that was made while the other core made one, too.
replayed: steps in this process, played by the simulator with the means of their own passes, over what
        they took: what is left is the engine's time around passes, and passes that vary.";

pub fn main(flags: Flags) -> Result<(), Failure> {
    if let Some(task) = &flags.contender {
        return serve(&flags.arguments, task);
    }
    let _pool = compute_alone()?;
    let arguments = &flags.arguments;
    let micro_batches = match (flags.micro_batches.is_empty(), arguments.quick) {
        (false, _) => flags.micro_batches.clone(),
        (true, true) => vec![2],
        (true, false) => vec![4, 8],
    };
    let settings = json!({ "arguments": arguments, "micro_batches": micro_batches });
    let mut report = Report::begin("predicted", &settings)?;
    report.note(NOTE);
    for model in models(arguments, 16) {
        for &m in &micro_batches {
            report.table(compare(&*model, m, arguments.rounds(7))?);
        }
    }
    report.save(&arguments.out)
}

/// Every schedule next to its forecast.
fn compare(model: &dyn Measured, m: usize, rounds: usize) -> Result<Table, Failure> {
    let profile = model.profile()?;
    let busy = beside_itself(model)?;
    let mut forecasts = Vec::new();
    for rule in [Rule::GPipe, Rule::OneForwardOneBackward] {
        for recompute in Recompute::ALL {
            let (cut, time) = forecast(&profile, rule, m, recompute, None)?;
            let (_, beside) = forecast(&busy, rule, m, recompute, Some(&cut))?;
            let plan = PipelineSettings {
                schedule: rule,
                recompute,
                ..PipelineSettings::new(cut, m)
            };
            forecasts.push((plan, time, beside));
        }
    }
    let works = forecasts.iter().map(|(plan, ..)| Work::Piped {
        plan: plan.clone(),
        optimizer: false,
    });
    let turns = works.map(|work| contend(model, work));
    let costs = take_turns(&mut turns.collect::<Result<Vec<_>, _>>()?, rounds)?;
    let columns = [
        column("schedule", "schedule", 0),
        column("recompute", "recompute", 0),
        column("cut", "cut", 0),
        column("step_ms", "step ms", 1),
        column("spread_percent", "±%", 1),
        column("predicted_ms", "predicted ms", 1),
        column("predicted", "predicted", 3),
        column("beside", "beside", 3),
        column("replayed", "replayed", 3),
    ];
    let mut table = Table::new(format!("{}: m = {m}", model.name()), columns);
    for ((plan, time, beside), costs) in forecasts.iter().zip(&costs) {
        let step = costs.seconds.median();
        table.row(json!([
            plan.schedule_name(),
            plan.recompute.to_string(),
            format!("{:?}", plan.cut),
            number(1e3 * step),
            number(100.0 * costs.seconds.spread()),
            number(1e3 * time),
            number(time / step),
            number(beside / step),
            number(replayed(model, plan, rounds)?),
        ]));
    }
    Ok(table)
}

/// The profile as it is when two of it are made at once.
fn beside_itself(model: &dyn Measured) -> Result<Profile, Failure> {
    let (mut mine, other) = std::thread::scope(|scope| {
        let other = model.with_samples(model.samples());
        let other = scope.spawn(move || other.profile().map_err(|error| error.to_string()));
        let mine = model.profile();
        let other = other.join().map_err(|_| "a profile panicked")?;
        Ok::<_, Failure>((mine?, other?))
    })?;
    for (layer, other) in mine.layers.iter_mut().zip(&other.layers) {
        let mean = |a: f64, b: f64| (a + b) / 2.0;
        layer.forward = mean(layer.forward, other.forward);
        layer.backward = mean(layer.backward, other.backward);
        layer.quiet = layer.quiet.zip(other.quiet).map(|(a, b)| mean(a, b));
    }
    Ok(mine)
}

/// The cut, and the seconds of a step.
fn forecast(
    profile: &Profile,
    rule: Rule,
    m: usize,
    recompute: Recompute,
    cut: Option<&[usize]>,
) -> Result<(Vec<usize>, f64), Failure> {
    let setup = Setup {
        profiles: std::slice::from_ref(profile),
        machine: &Machine::uniform(WORKERS),
        devices: &[0, 1],
        schedule: &rule.schedule(WORKERS, m)?,
        recompute,
        state: OptimizerState(2),
    };
    let forecast = match cut {
        Some(cut) => setup.forecast(cut)?,
        None => setup.best_cut()?,
    };
    Ok((forecast.balance, forecast.step_time))
}

/// Seconds of passes, by stage: of forward passes that are kept, that are not, and of backward passes.
#[derive(Clone, Default)]
struct Passes {
    forward: Vec<f64>,
    quiet: Vec<f64>,
    backward: Vec<f64>,
}

/// A simulated step with the times of a measured one, over the measured one.
fn replayed(model: &dyn Measured, plan: &PipelineSettings, rounds: usize) -> Result<f64, Failure> {
    let schedule = plan.actions()?;
    let mut piped = model.piped(plan)?;
    piped.step()?; // kernels are compiled, and pages touched
    let mut stages = vec![Passes::default(); WORKERS];
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
    costs.recompute = plan.recompute;
    for (costs, passes) in costs.stages.iter_mut().zip(&stages) {
        costs.forward = mean(&passes.forward);
        costs.quiet = mean(&passes.quiet);
        costs.input = mean(&passes.backward);
    }
    Ok(schedule.simulate(&costs)?.makespan() / mean(&steps))
}

fn mean(seconds: &[f64]) -> f64 {
    match seconds.len() {
        0 => 0.0,
        count => seconds.iter().sum::<f64>() / count as f64,
    }
}
