//! Throughput without a flush next to 1F1B with the same optimizer, and to what the simulator promises.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench windows`

use stovepipe_benches::{
    Failure,
    arguments::SweepArguments,
    bench_model::BenchModel,
    contender::{ContenderWork, race, serve_or_compute_alone},
    models::models,
    piped::PipedSettings,
    report::{BenchReport, ReportTable, cell},
};

const WORKERS: usize = 2;
/// Mini-batches of a window.
const WINDOW: usize = 32;

const NOTE: &str = "\
Two workers of a thread each, without recomputation, cut as the planner cuts for 1F1B; AdamW. The mini-batch
is in memory. A turn without a flush trains a window of 32 mini-batches (4 with --quick).
over 1f1b: samples/s relative to 1F1B, round by round.
promised:  the same by the simulator, from layers that were measured one by one, without updates.";

pub fn main(flags: SweepArguments) -> Result<(), Failure> {
    let flags = flags.or_micro_batches(&[2], &[2, 4, 8]);
    serve_or_compute_alone(&flags.arguments)?;
    let mut report = BenchReport::begin("windows", &flags)?;
    report.note(NOTE);
    let window = if flags.arguments.quick { 4 } else { WINDOW };
    for model in models(&flags.arguments, 16) {
        let mut table = ReportTable::new(format!("{}: windows", model.name()));
        for &m in &flags.micro_batches {
            compare(&*model, (m, window, flags.arguments.rounds(7)), &mut table)?;
        }
        report.table(table);
    }
    report.save(&flags.arguments.out)
}

fn compare(
    model: &dyn BenchModel,
    (m, window, rounds): (usize, usize, usize),
    table: &mut ReportTable,
) -> Result<(), Failure> {
    let profile = model.profile(WORKERS)?;
    let flushed = PipedSettings::new(vec![1; WORKERS], m);
    let cut = flushed.predict(&profile, None)?.balance;
    let flushed = PipedSettings::new(cut.clone(), m);
    let streamed = |vertical_sync| PipedSettings {
        vertical_sync,
        ..PipedSettings::windows(cut.clone(), m, window)
    };
    let kinds = [
        ("1f1b", flushed),
        ("stashing", streamed(false)),
        ("vertical sync", streamed(true)),
    ];
    let works = kinds.iter().map(|(_, plan)| ContenderWork::training(plan));
    let costs = race(model, works, rounds)?;
    let mut promised = Vec::new();
    for (_, plan) in &kinds {
        promised.push(plan.predict(&profile, Some(&cut))?.step_time);
    }
    for (index, (kind, plan)) in kinds.iter().enumerate() {
        let seconds = costs[index].seconds.median() / plan.window as f64;
        let ratio = costs[0].seconds.over(&costs[index].seconds);
        let ratio = (ratio.median() * plan.window as f64, ratio.spread());
        let promise = promised[0] / promised[index];
        table.row([
            cell("micro_batches", "m", 0, m),
            cell("kind", "kind", 0, *kind),
            cell("cut", "cut", 0, format!("{cut:?}")),
            cell("mini_batch_ms", "ms a mini-batch", 1, 1e3 * seconds),
            cell("over_1f1b", "over 1f1b", 3, ratio.0),
            cell("spread_percent", "±%", 1, 100.0 * ratio.1),
            cell("promised", "promised", 3, promise),
            cell("of_promised", "of promised", 3, ratio.0 / promise),
        ]);
    }
    Ok(())
}
