//! The engine's own cost: one stage and one micro-batch, next to a plain Burn loop on the same model,
//! with and without the optimizer.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench plain`

use stovepipe_benches::{
    Failure,
    arguments::Arguments,
    bench_model::BenchModel,
    contender::{ContenderWork, race, serve_or_compute_alone},
    models::models,
    piped::PipedSettings,
    report::{BenchReport, ReportTable, cell},
};

/// Multiplies `--samples`; the mini-batch is one micro-batch here.
const MICRO_BATCHES: usize = 4;

const NOTE: &str = "\
Milliseconds of a mini-batch on one thread. The ratio is the engine's time over the loop's: the
median over rounds in which both took their turn one after the other. processor: the same ratio of
processor seconds, which exclude waiting and other programs.";

pub fn main(arguments: Arguments) -> Result<(), Failure> {
    serve_or_compute_alone(&arguments)?;
    let mut report = BenchReport::begin("plain", &arguments)?;
    report.note(NOTE);
    let mut table = ReportTable::new("engine / plain loop");
    for model in models(&arguments, 16) {
        let mini_batch = MICRO_BATCHES * model.samples();
        let model = model.with_samples(mini_batch);
        measure(&*model, arguments.rounds(11), &mut table)?;
    }
    report.table(table);
    report.save(&arguments.out)
}

fn measure(model: &dyn BenchModel, rounds: usize, table: &mut ReportTable) -> Result<(), Failure> {
    let plan = PipedSettings::new(vec![model.layers()?], 1);
    let plain = |optimizer| ContenderWork::Plain {
        micro_batches: 1,
        optimizer,
    };
    let passes = [plain(false), ContenderWork::passes(&plan)];
    let training = [plain(true), ContenderWork::training(&plan)];
    let found = race(model, passes.into_iter().chain(training), rounds)?;
    let work = ["forward, backward", "forward, backward, AdamW"];
    for (work, pair) in work.into_iter().zip(found.chunks(2)) {
        let ratio = pair[1].seconds.over(&pair[0].seconds);
        let processor = pair[1].processor.over(&pair[0].processor);
        table.row([
            cell("model", "model", 0, model.name()),
            cell("samples", "samples", 0, model.samples()),
            cell("work", "work", 0, work),
            cell("loop_ms", "loop ms", 2, 1e3 * pair[0].seconds.median()),
            cell("engine_ms", "engine ms", 2, 1e3 * pair[1].seconds.median()),
            cell("ratio", "ratio", 3, ratio.median()),
            cell("spread_percent", "±%", 1, 100.0 * ratio.spread()),
            cell("processor_ratio", "processor", 3, processor.median()),
        ]);
    }
    Ok(())
}
