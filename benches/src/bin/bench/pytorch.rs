//! A training step next to PyTorch's, eager, on the same number of threads, in the same minutes.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench pytorch --python PATH`

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use stovepipe_benches::{
    Failure,
    arguments::Arguments,
    bench_model::BenchModel,
    layers::{cut_in_two, totals},
    measure::{Turn, compute_alone, repeat, take_turns},
    models::models,
    peer::{Peer, PeerSetup, PeerTask},
    piped::PipedSettings,
    report::{BenchReport, ReportTable, cell},
};

/// A training step, forward and backward, next to PyTorch's
#[derive(Args, Serialize)]
pub struct Flags {
    #[command(flatten)]
    arguments: Arguments,
    /// A Python that has PyTorch
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: String,
    /// D of AmoebaNet for images of 224×224
    #[arg(long, value_name = "N", default_value_t = 64)]
    filters: usize,
    /// Let PyTorch keep images with their channels last
    #[arg(long)]
    channels_last: bool,
}

/// Micro-batches of two stages. It multiplies `--samples`.
const MICRO_BATCHES: usize = 4;

const NOTE: &str = "\
Forward and backward of a mini-batch. Time is ours over PyTorch's on as many threads, the median over
rounds in which both took their turn: below 1 we are faster. PyTorch runs eager, with gradients set to
None before a step. This program fails if the models have different numbers of parameters.";

pub fn main(flags: Flags) -> Result<(), Failure> {
    compute_alone()?;
    let mut report = BenchReport::begin("pytorch", &flags)?;
    report.note(NOTE);
    let mut table = ReportTable::new("training step next to PyTorch");
    let mut version = String::new();
    for model in models(&flags.arguments, flags.filters) {
        version = measure(&*model, &flags, &mut table)?;
    }
    report.note(format!("PyTorch {version}"));
    report.table(table);
    report.save(&flags.arguments.out)
}

/// Adds the rows of a model. Returns PyTorch's version.
fn measure(
    model: &dyn BenchModel,
    flags: &Flags,
    table: &mut ReportTable,
) -> Result<String, Failure> {
    let batch = MICRO_BATCHES * model.samples();
    let minimum = flags.arguments.turn();
    let peers = [1, 2].map(|threads| {
        let setup = PeerSetup::OneDevice { threads };
        Peer::start(&PeerTask {
            channels_last: flags.channels_last,
            ..PeerTask::new(&flags.python, model.shape(), batch, setup)
        })
    });
    let [one, two] = peers;
    let (mut one, mut two) = (one?.check(model)?, two?);
    let version = one.version.clone();
    let mut turns = our_turns(model, minimum)?;
    let names = [
        ("plain Burn loop", 1),
        ("one stage", 1),
        ("one stage of two threads", 2),
        ("two stages, 1f1b, 4 micro-batches", 2),
    ];
    turns.push(Box::new(move || one.turn(minimum)));
    turns.push(Box::new(move || two.turn(minimum)));
    let mut found = take_turns(&mut turns, flags.arguments.rounds(11))?;
    let peers = found.split_off(names.len());
    for ((name, threads), ours) in names.into_iter().zip(&found) {
        let (ours, theirs) = (&ours.seconds, &peers[threads - 1].seconds);
        let [rate, their_rate] = [ours, theirs].map(|s| batch as f64 / s.median());
        let ratio = ours.over(theirs);
        table.row([
            cell("model", "model", 0, model.name()),
            cell("batch", "batch", 0, batch),
            cell("threads", "threads", 0, threads),
            cell("ours", "ours", 0, name),
            cell("samples_per_second", "samples/s", 1, rate),
            cell("pytorch_samples_per_second", "PyTorch", 1, their_rate),
            cell("time_over_pytorch", "time / PyTorch's", 3, ratio.median()),
            cell("spread_percent", "±%", 1, 100.0 * ratio.spread()),
        ]);
    }
    Ok(version)
}

/// The plain loop, one stage of one and two threads, and two stages.
fn our_turns<'a>(model: &dyn BenchModel, minimum: Duration) -> Result<Vec<Turn<'a>>, Failure> {
    let costs = model.layer_costs(5)?;
    let whole = model.with_samples(MICRO_BATCHES * model.samples());
    let one_stage = PipedSettings::new(vec![costs.len()], 1);
    let wide = PipedSettings {
        threads: 2,
        ..one_stage.clone()
    };
    let two_stages = PipedSettings::new(cut_in_two(&totals(&costs))?, MICRO_BATCHES);
    let mut plain = whole.plain(1)?;
    let mut turns: Vec<Turn<'a>> = vec![Box::new(move || repeat(minimum, || plain.step()))];
    for (model, plan) in [(&*whole, one_stage), (&*whole, wide), (model, two_stages)] {
        let mut piped = model.piped(&plan)?;
        turns.push(Box::new(move || repeat(minimum, || piped.step().map(drop))));
    }
    Ok(turns)
}
