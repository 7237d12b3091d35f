//! A training step next to PyTorch's, eager, on the same number of threads, in the same minutes.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench pytorch --python PATH`

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::json;
use stovepipe_benches::{
    Failure,
    arguments::Arguments,
    layers::{LayerCost, cut_in_two},
    measure::{Turn, repeat, take_turns},
    measured::Measured,
    models::models,
    peer::{Peer, Task, Way},
    piped::PipelineSettings,
    recipe::CLASSES,
    report::{Report, Table, column, number},
    threads::compute_alone,
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
    /// Has PyTorch keep maps with channels last
    #[arg(long)]
    channels_last: bool,
}

/// Micro-batches of two stages. A mini-batch is so many times `--samples`.
const MICRO_BATCHES: usize = 4;

const NOTE: &str = "\
Forward and backward of a mini-batch. Time is ours over PyTorch's on as many threads, the median over
rounds in which both took their turn: below 1 we are faster. PyTorch runs eager, with gradients set to
none before a step. Both models have the same number of parameters, or this program ends.";

pub fn main(flags: Flags) -> Result<(), Failure> {
    let _pool = compute_alone()?;
    let mut report = Report::begin("pytorch", &flags)?;
    report.note(NOTE);
    let columns = [
        column("model", "model", 0),
        column("batch", "batch", 0),
        column("threads", "threads", 0),
        column("ours", "ours", 0),
        column("samples_per_second", "samples/s", 1),
        column("pytorch_samples_per_second", "PyTorch", 1),
        column("time_over_pytorch", "time / PyTorch's", 3),
        column("spread_percent", "±%", 1),
    ];
    let mut bench = BesidePyTorch {
        flags: &flags,
        table: Table::new("training step next to PyTorch", columns),
        version: String::new(),
    };
    for model in models(&flags.arguments, flags.filters) {
        bench.measure(&*model)?;
    }
    let BesidePyTorch { table, version, .. } = bench;
    report.note(format!("PyTorch {version}"));
    report.table(table);
    report.save(&flags.arguments.out)
}

struct BesidePyTorch<'a> {
    flags: &'a Flags,
    table: Table,
    version: String,
}

impl BesidePyTorch<'_> {
    fn measure(&mut self, model: &dyn Measured) -> Result<(), Failure> {
        let batch = MICRO_BATCHES * model.samples();
        let peers = [1, 2].map(|threads| self.peer(model, batch, threads));
        let [one, two] = peers;
        let (mut one, mut two) = (one?, two?);
        self.version = one.version.clone();
        let least = self.flags.arguments.turn();
        let (names, mut turns) = contestants(model, one.parameters, least)?;
        turns.push(Box::new(move || one.turn(least)));
        turns.push(Box::new(move || two.turn(least)));
        let mut found = take_turns(&mut turns, self.flags.arguments.rounds(11))?;
        let peers = found.split_off(names.len());
        for ((name, threads), ours) in names.into_iter().zip(&found) {
            let (ours, theirs) = (&ours.seconds, &peers[threads - 1].seconds);
            let ratio = ours.over(theirs);
            let [rate, their_rate] = [ours, theirs].map(|s| number(batch as f64 / s.median()));
            let spread = number(100.0 * ratio.spread());
            let ratio = number(ratio.median());
            let (model, table) = (model.name(), &mut self.table);
            table.row(json!([
                model, batch, threads, name, rate, their_rate, ratio, spread
            ]));
        }
        Ok(())
    }
}

impl BesidePyTorch<'_> {
    fn peer(&self, model: &dyn Measured, batch: usize, threads: usize) -> Result<Peer, Failure> {
        Peer::start(&Task {
            python: &self.flags.python,
            shape: model.shape(),
            classes: CLASSES,
            batch,
            way: Way::OneDevice { threads },
            micro_batches: 1,
            rate: None,
            vary: false,
            save: None,
            channels_last: self.flags.channels_last,
            double: false,
        })
    }
}

/// What runs on our side: names with numbers of threads, and turns.
type Contestants<'a> = (Vec<(&'static str, usize)>, Vec<Turn<'a>>);

fn contestants<'a>(
    model: &dyn Measured,
    parameters: usize,
    least: Duration,
) -> Result<Contestants<'a>, Failure> {
    let ours = model.parameters()?;
    if ours != parameters {
        let message = format!("{ours} parameters here, {parameters} in PyTorch");
        return Err(format!("{}: {message}", model.name()).into());
    }
    let costs = model.layer_costs(5)?;
    let totals: Vec<_> = costs.iter().map(LayerCost::total).collect();
    let whole = model.with_samples(MICRO_BATCHES * model.samples());
    let one_stage = PipelineSettings::new(vec![costs.len()], 1);
    let wide = PipelineSettings {
        threads: 2,
        ..one_stage.clone()
    };
    let two_stages = PipelineSettings::new(cut_in_two(&totals)?, MICRO_BATCHES);
    let mut plain = whole.plain(1)?;
    let mut turns: Vec<Turn<'a>> = vec![Box::new(move || repeat(least, || plain.step()))];
    for (model, plan) in [(&*whole, one_stage), (&*whole, wide), (model, two_stages)] {
        let mut piped = model.piped(&plan)?;
        turns.push(Box::new(move || repeat(least, || piped.step().map(|_| ()))));
    }
    let names = vec![
        ("plain Burn loop", 1),
        ("one stage", 1),
        ("one stage of two threads", 2),
        ("two stages, 1f1b, 4 micro-batches", 2),
    ];
    Ok((names, turns))
}
