//! The bytes of trainings next to their forecasts.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench-memory forecast`

use burn::tensor::Device;
use stovepipe::{
    plan::{Forecast, MemoryUse, Profile},
    schedule::{Recompute, Rule, Scheduler as _},
};
use stovepipe_benches::{
    Failure,
    arguments::{Arguments, MemoryArguments},
    bench_model::BenchModel,
    learning::LoopKind,
    models::{model, models},
    piped::{PipedSettings, cpus},
    recipe::ModelShape,
    report::{BenchReport, ReportTable, cell},
};

use crate::profiler;

const WORKERS: usize = 2;

const NOTE: &str = "\
Trainings with AdamW on two workers, each in its own process, whose allocator counts every byte. All
layers are the first worker's, but for one in each stage of the second: workers share the memory of the
process, and need most at different times. The forecast is the planner's, for layers that were measured
alone: what each worker always keeps, and the most that both hold at one simulated time. Budget of
by-layer: halfway between the forecasts for `always` and `never`.
forecast: the forecast over the peak of four steps, the last two with AdamW's states. Columns in MiB.
held: gradients, inputs, activations and workspace, of both workers at once.";

pub fn main(flags: MemoryArguments) -> Result<(), Failure> {
    let mut report = BenchReport::begin("forecast", &flags)?;
    report.note(NOTE);
    for model in models(&flags.arguments, 16) {
        let model = larger(&*model, &flags.arguments);
        report.table(compare(&*model, &flags)?);
    }
    report.save(&flags.arguments.out)
}

/// More layers, so that one is few.
fn larger(usual: &dyn BenchModel, arguments: &Arguments) -> Box<dyn BenchModel> {
    let mut shape = usual.shape();
    if !arguments.quick {
        match &mut shape {
            ModelShape::Amoebanet { layers, .. } => *layers = 9,
            ModelShape::Transformer { layers, .. } => *layers = 24,
        }
    }
    model(shape, usual.samples())
}

fn compare(model: &dyn BenchModel, flags: &MemoryArguments) -> Result<ReportTable, Failure> {
    let profile = model.profile_by(&profiler(&Device::flex()))?;
    let m = flags.micro_batches;
    let mut table = ReportTable::new(format!("{}: m = {m}", model.name()));
    for rule in [
        Rule::GPipe,
        Rule::OneForwardOneBackward,
        Rule::ZeroBubbleH1,
        Rule::VHalf,
    ] {
        let plan = PipedSettings {
            schedule: rule,
            ..PipedSettings::new(heavy_first(rule, model.layers()?), m)
        };
        for (mode, forecast) in forecasts(&plan, &profile)? {
            let plan = PipedSettings {
                recompute: forecast.recompute.clone(),
                ..plan.clone()
            };
            let held = held_at_once(&plan, &profile)?;
            let subject = LoopKind::Piped(plan.clone());
            let counted = subject.measure_in_child(model)?;
            let counted = counted.training as u64;
            let memory = forecast.memory.iter().copied();
            let all = memory.fold(MemoryUse::default(), |sum, own| sum + own);
            let rest = all.parameters + all.optimizer + all.batch;
            let forecast = (rest + held) as f64;
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            table.row([
                cell("schedule", "schedule", 0, rule.name()),
                cell("recompute", "recompute", 0, mode),
                cell("layers", "layers", 0, plan.recompute.to_string()),
                cell("parameters_mib", "parameters", 1, mib(all.parameters)),
                cell("optimizer_mib", "optimizer", 1, mib(all.optimizer)),
                cell("batch_mib", "batch", 1, mib(all.batch)),
                cell("held_mib", "held", 1, mib(held)),
                cell("counted_mib", "counted", 1, mib(counted)),
                cell("forecast", "forecast", 3, forecast / counted as f64),
            ]);
        }
    }
    Ok(table)
}

/// All layers in the stages of the first worker, but for one in each of the second.
fn heavy_first(rule: Rule, layers: usize) -> Vec<usize> {
    match rule.stages(WORKERS) {
        2 => vec![layers - 1, 1],
        _ => vec![(layers - 2) / 2, 1, 1, (layers - 1) / 2],
    }
}

/// The forecasts with nothing, everything, and some layers recomputed.
fn forecasts(
    plan: &PipedSettings,
    profile: &Profile,
) -> Result<[(&'static str, Forecast); 3], Failure> {
    let forecast = |recompute| {
        let plan = PipedSettings {
            recompute,
            ..plan.clone()
        };
        plan.predict(profile, Some(&plan.cut))
    };
    let (never, always) = (forecast(Recompute::Never)?, forecast(Recompute::Always)?);
    let of_first = |forecast: &Forecast| forecast.memory[0].total();
    let mut machine = cpus(WORKERS);
    machine.devices[0].memory = Some(of_first(&never).midpoint(of_first(&always)));
    let by_layer = plan.plan_with(profile, &machine, |setup| {
        setup.choose_layers(Some(&plan.cut))
    })?;
    Ok([("never", never), ("always", always), ("by-layer", by_layer)])
}

/// The most bytes that all workers hold for micro-batches at one time of a simulated step.
fn held_at_once(plan: &PipedSettings, profile: &Profile) -> Result<u64, Failure> {
    let schedule = plan.actions()?;
    let costs = plan.costs(profile)?;
    let memory = schedule.simulate(&costs)?.memory_of_all();
    let totals = memory.iter().map(|at| at.held.total());
    Ok(totals.fold(0.0, f64::max) as u64)
}
