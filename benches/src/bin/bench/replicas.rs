//! Replicas of a whole model as threads, next to as many independent plain loops; and replicas of one
//! and of two stages next to PyTorch's `DistributedDataParallel`.
//!
//! ```sh
//! cargo build --release -p stovepipe-benches --features mpi
//! target/release/bench replicas --processes --python target/pytorch/bin/python
//! ```

mod steps;

use clap::{Args, ValueEnum};
use serde::Serialize;
use stovepipe_benches::{
    Failure,
    arguments::{ModelChoice, SweepArguments},
    bench_model::BenchModel,
    contender::{ContenderWork, race, serve_or_compute_alone},
    models::models,
    piped::PipedSettings,
    recipe::ModelShape,
    report::{BenchReport, ReportTable, cell},
};

use crate::peers::shapes;

const REPLICAS: usize = 2;

/// Replicas of a model next to independent plain Burn loops, and next to PyTorch's
#[derive(Args, Serialize)]
pub struct Flags {
    #[command(flatten)]
    sweep: SweepArguments,
    /// A Python that has PyTorch, to compare with it
    #[arg(long, value_name = "PATH")]
    python: Option<String>,
    /// Also run our replicas in processes, as PyTorch's are; needs a build with `--features mpi`
    #[arg(long)]
    processes: bool,
    /// The part to measure
    #[arg(long, value_enum, default_value = "all")]
    only: ReplicasBenchPart,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum ReplicasBenchPart {
    /// Threads next to plain loops
    Copies,
    /// Training steps, next to PyTorch's
    Steps,
    /// Both
    All,
}

const NOTE: &str = "\
Two replicas of the whole model, a thread each, which share the parameters and add up their gradients
after the last micro-batch. All parts of a step but the update.
copies: samples/s of two independent plain Burn loops at once, one thread each, each with as many
        micro-batches as a replica has. They add up nothing, so they are a limit.
one:    the pipeline without replicas, on one thread.";

pub fn main(mut flags: Flags) -> Result<(), Failure> {
    flags.sweep = flags.sweep.or_micro_batches(&[2], &[2, 8]);
    let arguments = &flags.sweep.arguments;
    serve_or_compute_alone(arguments)?;
    let mut report = BenchReport::begin("replicas", &flags)?;
    if flags.only != ReplicasBenchPart::Steps {
        report.note(NOTE);
        for model in models(arguments, 16) {
            measure(&*model, &flags.sweep, &mut report)?;
        }
    }
    if flags.only != ReplicasBenchPart::Copies {
        report.note(steps::NOTE);
        // Large images take long; who wants them names them.
        let is_large = |shape: &ModelShape| shape.is_chosen(ModelChoice::Amoebanet224);
        let all = arguments.model == ModelChoice::All;
        for shape in shapes(arguments) {
            if !(all && is_large(&shape)) {
                report.table(steps::race(shape, &flags)?);
            }
        }
    }
    report.save(&arguments.out)
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
        let two = PipedSettings {
            replicas: REPLICAS,
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
