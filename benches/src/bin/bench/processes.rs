//! Two stages in two processes next to two threads of one.
//!
//! ```sh
//! cargo build --release -p stovepipe-benches --features mpi && target/release/bench processes
//! ```

use stovepipe::schedule::Rule;
use stovepipe_benches::{
    Failure,
    arguments::Arguments,
    bench_model::BenchModel,
    contender::{ContenderWork, race, serve_or_compute_alone},
    layers::{cut_in_two, totals},
    models::models,
    piped::PipedSettings,
    report::{BenchReport, ReportTable, cell},
};

/// Micro-batches of a mini-batch.
const MICRO_BATCHES: usize = 8;

const NOTE: &str = "\
Whole training steps of two stages with a thread each: as threads of a process, and as processes that
mpirun starts on this machine. threads / processes: the time of a step in one process over that in
two, the median over rounds in which both took their turn: the share of the speed that is left.
difference: microseconds that a step takes longer in two processes. The smallest model is there for
this: it has hardly any work, so the difference is what agreeing costs.";

pub fn main(arguments: Arguments) -> Result<(), Failure> {
    serve_or_compute_alone(&arguments)?;
    let mut report = BenchReport::begin("processes", &arguments)?;
    report.note(NOTE);
    let mut table = ReportTable::new("two processes / two threads");
    for model in models(&arguments, 4) {
        measure(&*model, arguments.rounds(11), &mut table)?;
    }
    report.table(table);
    report.save(&arguments.out)
}

fn measure(model: &dyn BenchModel, rounds: usize, table: &mut ReportTable) -> Result<(), Failure> {
    let costs = model.layer_costs(1)?;
    let cut = cut_in_two(&totals(&costs))?;
    for schedule in [Rule::OneForwardOneBackward, Rule::GPipe] {
        let piped = |processes| {
            ContenderWork::training(&PipedSettings {
                schedule,
                processes,
                ..PipedSettings::new(cut.clone(), MICRO_BATCHES)
            })
        };
        let found = race(model, [piped(1), piped(2)], rounds)?;
        let [threads, processes] = &found[..] else {
            return Err("two contenders have two results".into());
        };
        let ratio = threads.seconds.over(&processes.seconds);
        let (one, two) = (threads.seconds.median(), processes.seconds.median());
        table.row([
            cell("model", "model", 0, model.name()),
            cell("samples", "samples", 0, model.samples()),
            cell("schedule", "schedule", 0, schedule.to_string()),
            cell("threads_ms", "threads ms", 2, 1e3 * one),
            cell("processes_ms", "processes ms", 2, 1e3 * two),
            cell("ratio", "threads / processes", 3, ratio.median()),
            cell("spread_percent", "±%", 1, 100.0 * ratio.spread()),
            cell("difference_us", "difference µs", 0, 1e6 * (two - one)),
        ]);
    }
    Ok(())
}
