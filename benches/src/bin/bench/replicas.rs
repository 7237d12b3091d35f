//! Replicas of a whole model as threads, next to as many independent plain loops.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench replicas`

use stovepipe::schedule::{RoundRobin, Scheduler};
use stovepipe_benches::{
    Failure,
    arguments::SweepArguments,
    bench_model::BenchModel,
    contender::{ContenderWork, race, serve_or_compute_alone},
    models::models,
    piped::PipedSettings,
    report::{BenchReport, ReportTable, cell},
};

const REPLICAS: usize = 2;

const NOTE: &str = "\
Two replicas of the whole model, a thread each, which share the parameters and add up their gradients
after the last micro-batch. All parts of a step but the update.
copies: samples/s of two independent plain Burn loops at once, one thread each, each with as many
        micro-batches as a replica has. They add up nothing, so they are a limit.
one:    the pipeline without replicas, on one thread.";

pub fn main(flags: SweepArguments) -> Result<(), Failure> {
    let flags = flags.or_micro_batches(&[2], &[2, 8]);
    serve_or_compute_alone(&flags.arguments)?;
    let mut report = BenchReport::begin("replicas", &flags)?;
    report.note(NOTE);
    for model in models(&flags.arguments, 16) {
        measure(&*model, &flags, &mut report)?;
    }
    report.save(&flags.arguments.out)
}

fn measure(
    model: &dyn BenchModel,
    flags: &SweepArguments,
    report: &mut BenchReport,
) -> Result<(), Failure> {
    let rounds = flags.arguments.rounds(9);
    let layers = model.layer_costs(1)?.len();
    let mut table = ReportTable::new(format!("{}: {REPLICAS} replicas", model.name()));
    for &micro_batches in &flags.micro_batches {
        let one = PipedSettings::new(vec![layers], micro_batches);
        let schedule = RoundRobin::new(vec![REPLICAS]).schedule(1, micro_batches)?;
        let two = PipedSettings {
            given: Some(schedule),
            ..one.clone()
        };
        let copies = ContenderWork::Copies {
            count: REPLICAS,
            micro_batches: micro_batches.div_ceil(REPLICAS),
        };
        let works = [
            ContenderWork::passes(&two),
            ContenderWork::passes(&one),
            copies,
        ];
        let [two, one, copies] = &race(model, works, rounds)?[..] else {
            return Err("a contender is missing".into());
        };
        // A turn of the copies is a mini-batch of one of them.
        let samples = (micro_batches * model.samples()) as f64;
        let of_copy = (micro_batches.div_ceil(REPLICAS) * model.samples()) as f64;
        let of_copies = copies.seconds.over(&two.seconds).median() * samples / of_copy;
        let over_one = one.seconds.over(&two.seconds);
        table.row([
            cell("micro_batches", "m", 0, micro_batches),
            cell(
                "samples_per_second",
                "samples/s",
                1,
                samples / two.seconds.median(),
            ),
            cell("spread_percent", "±%", 1, 100.0 * two.seconds.spread()),
            cell(
                "copies_samples_per_second",
                "copies",
                1,
                of_copy / copies.seconds.median(),
            ),
            cell("of_copies", "of copies", 3, of_copies),
            cell(
                "of_copies_spread_percent",
                "±%",
                1,
                100.0 * copies.seconds.over(&two.seconds).spread(),
            ),
            cell("over_one", "× one", 3, over_one.median()),
        ]);
    }
    report.table(table);
    Ok(())
}
