//! Benchmarks that have a table for each model and number of micro-batches.

use crate::{
    Failure,
    arguments::SweepArguments,
    bench_model::BenchModel,
    contender::serve_or_compute_alone,
    models::models,
    report::{BenchReport, ReportTable},
};

/// Runs such a benchmark. `compare` makes the table of a model, for a number of micro-batches and of rounds.
pub fn sweep(
    bench: &'static str,
    note: &str,
    flags: &SweepArguments,
    compare: impl Fn(&dyn BenchModel, usize, usize) -> Result<ReportTable, Failure>,
) -> Result<(), Failure> {
    serve_or_compute_alone(&flags.arguments)?;
    let mut report = BenchReport::begin(bench, flags)?;
    report.note(note);
    for model in models(&flags.arguments, 16) {
        for &m in &flags.micro_batches {
            report.table(compare(&*model, m, flags.arguments.rounds(7))?);
        }
    }
    report.save(&flags.arguments.out)
}
