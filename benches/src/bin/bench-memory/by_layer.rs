//! Recomputation by layer next to recomputation of everything.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench-memory by-layer`

use crate::profiler;
use burn::tensor::Device;
use stovepipe::{
    plan::{Forecast, Profile},
    schedule::{Recompute, Rule, format_bytes},
};
use stovepipe_benches::{
    Failure,
    arguments::SweepArguments,
    bench_model::BenchModel,
    contender::{ContenderWork, race},
    piped::{PipedSettings, cpus},
    report::{ReportTable, cell},
    sweep::sweep,
};

const WORKERS: usize = 2;

const NOTE: &str = "\
GPipe with two stages of a thread each, each row with the cut that the planner finds for it. Workers have a
budget of bytes halfway between the predictions for `always` and for `never`, of the worker that needs
most; the planner chooses the cut and the layers to recompute that fit. A step is forward and backward;
contenders take turns.
of always: samples/s over those of `always`.";

pub fn main(flags: SweepArguments) -> Result<(), Failure> {
    let flags = flags.or_micro_batches(&[2], &[8]);
    sweep("by-layer", NOTE, &flags, compare)
}

fn compare(model: &dyn BenchModel, m: usize, rounds: usize) -> Result<ReportTable, Failure> {
    let profile = model.profile_by(&profiler(&Device::flex()).side_by_side(WORKERS))?;
    let plan = PipedSettings {
        schedule: Rule::GPipe,
        ..PipedSettings::new(vec![1; WORKERS], m)
    };
    let forecast = |recompute| {
        let plan = PipedSettings {
            recompute,
            ..plan.clone()
        };
        plan.predict(&profile, None)
    };
    let (always, never) = (forecast(Recompute::Always)?, forecast(Recompute::Never)?);
    let budget = most(&always).midpoint(most(&never));
    let chosen = choose(&plan, &profile, budget)?;
    let contenders = [always, chosen, never].map(|forecast| {
        let plan = PipedSettings {
            cut: forecast.balance.clone(),
            recompute: forecast.recompute.clone(),
            ..plan.clone()
        };
        (plan, forecast)
    });
    let works = contenders
        .iter()
        .map(|(plan, _)| ContenderWork::passes(plan));
    let costs = race(model, works, rounds)?;
    let mut table = ReportTable::new(format!("{}: m = {m}", model.name()));
    let slowest = costs[0].seconds.median();
    for ((plan, forecast), costs) in contenders.iter().zip(&costs) {
        let step = costs.seconds.median();
        table.row([
            cell("recompute", "recompute", 0, plan.recompute.to_string()),
            cell("cut", "cut", 0, format!("{:?}", plan.cut)),
            cell("bytes", "predicted", 0, format_bytes(most(forecast))),
            cell("step_ms", "step ms", 1, 1e3 * step),
            cell("spread_percent", "±%", 1, 100.0 * costs.seconds.spread()),
            cell("of_always", "of always", 3, slowest / step),
            cell(
                "predicted",
                "predicted of always",
                3,
                contenders[0].1.step_time / forecast.step_time,
            ),
        ]);
    }
    Ok(table)
}

/// The bytes of the worker that needs most.
fn most(forecast: &Forecast) -> u64 {
    let totals = forecast.memory.iter().map(|memory| memory.total());
    totals.max().unwrap_or_default()
}

/// The cut and the layers to recompute that fit workers with so many bytes.
fn choose(plan: &PipedSettings, profile: &Profile, budget: u64) -> Result<Forecast, Failure> {
    let mut machine = cpus(WORKERS);
    for device in &mut machine.devices {
        device.memory = Some(budget);
    }
    plan.plan_with(profile, &machine, |setup| setup.choose_layers(None))
}
