//! What the engine costs a layer and micro-batch, by the number of stages.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench engine-cost`

use stovepipe_benches::{
    Failure,
    arguments::Arguments,
    contender::{ContenderWork, race, serve_or_compute_alone},
    models::model,
    piped::PipedSettings,
    recipe::ModelShape,
    report::{BenchReport, ReportTable, cell},
};

const LAYERS: usize = 16;
const MICRO_BATCHES: usize = 16;
const STAGES: [usize; 5] = [1, 2, 4, 8, 16];
const COMPARED: usize = 1;

const NOTE: &str = "\
16 Transformer blocks under 1F1B without recomputation, 16 micro-batches of one sample; a thread a stage.
narrow: width 32, sequences of 64. tiny: width 16, sequences of 1, where there is almost nothing to compute.
over 2:  samples/s relative to two stages, round by round.
µs:      processor time of a step, a layer and micro-batch.
loop µs: the same of a plain Burn loop on one thread.";

pub fn main(arguments: Arguments) -> Result<(), Failure> {
    serve_or_compute_alone(&arguments)?;
    let mut report = BenchReport::begin("engine-cost", &arguments)?;
    report.note(NOTE);
    let narrow = ModelShape::transformer(LAYERS, 32, 2, 64);
    let tiny = ModelShape::transformer(LAYERS, 16, 2, 1);
    for (name, shape) in [("narrow", narrow), ("tiny", tiny)] {
        let mut table = ReportTable::new(format!("engine cost: {name}"));
        measure(shape, arguments.rounds(5), &mut table)?;
        report.table(table);
    }
    report.save(&arguments.out)
}

fn measure(shape: ModelShape, rounds: usize, table: &mut ReportTable) -> Result<(), Failure> {
    let plans = STAGES.map(|stages| {
        let cut = vec![LAYERS / stages; stages];
        PipedSettings::new(cut, MICRO_BATCHES)
    });
    let plain = ContenderWork::Plain {
        micro_batches: MICRO_BATCHES,
        optimizer: false,
    };
    let works = plans.iter().map(ContenderWork::passes).chain([plain]);
    let found = race(&*model(shape, 1), works, rounds)?;
    let microseconds = |index: usize| {
        let passes = (LAYERS * MICRO_BATCHES) as f64;
        1e6 * found[index].processor.median() / passes
    };
    for (index, stages) in STAGES.into_iter().enumerate() {
        let seconds = &found[index].seconds;
        let over = found[COMPARED].seconds.over(seconds);
        table.row([
            cell("stages", "stages", 0, stages),
            cell(
                "samples_per_second",
                "samples/s",
                0,
                MICRO_BATCHES as f64 / seconds.median(),
            ),
            cell("over_two", "over 2", 3, over.median()),
            cell("spread_percent", "±%", 1, 100.0 * over.spread()),
            cell("microseconds", "µs", 0, microseconds(index)),
            cell(
                "loop_microseconds",
                "loop µs",
                0,
                microseconds(STAGES.len()),
            ),
        ]);
    }
    Ok(())
}
