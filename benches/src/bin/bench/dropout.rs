//! What dropout costs a step.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench dropout`

use std::time::Duration;

use burn::tensor::{Device, Distribution, Int, Tensor};
use stovepipe::prelude::*;
use stovepipe_benches::{
    Failure,
    arguments::Arguments,
    measure::{Turn, compute_alone, repeat, take_turns},
    report::{BenchReport, ReportTable, cell},
    transformer::TransformerLayer,
};
use stovepipe_transformer::BlockConfig;

const HEADS: usize = 8;
const PROBABILITY: f64 = 0.1;

const NOTE: &str = "\
A step of Transformer blocks under 1F1B without recomputation, two stages with a thread each, without an optimizer.
hidden: dropout of 0.1 on the hidden values and the outputs of both branches. attention: on the attention weights.
Ratios: a step with both over one without, one with the first over it, and one with the second, round by round.";

pub fn main(arguments: Arguments) -> Result<(), Failure> {
    compute_alone()?;
    let mut report = BenchReport::begin("dropout", &arguments)?;
    report.note(NOTE);
    let mut table = ReportTable::new("dropout");
    let shapes = match arguments.quick {
        true => vec![(2, 32, 16)],
        false => vec![(4, 512, 128), (4, 256, 512)],
    };
    for (layers, width, length) in shapes {
        let kinds = [
            [0.0, 0.0],
            [PROBABILITY; 2],
            [PROBABILITY, 0.0],
            [0.0, PROBABILITY],
        ];
        let turns: Result<Vec<_>, _> = kinds
            .into_iter()
            .map(|kind| turn(layers, width, length, kind))
            .collect();
        let found = take_turns(&mut turns?, arguments.rounds(7))?;
        let over = |index: usize| found[index].seconds.over(&found[0].seconds);
        let [both, hidden, attention] = [1, 2, 3].map(over);
        table.row([
            cell("layers", "layers", 0, layers),
            cell("width", "width", 0, width),
            cell("length", "length", 0, length),
            cell(
                "without_ms",
                "without ms",
                1,
                1e3 * found[0].seconds.median(),
            ),
            cell("both_ratio", "both", 3, both.median()),
            cell("both_spread_percent", "±%", 1, 100.0 * both.spread()),
            cell("hidden_ratio", "hidden", 3, hidden.median()),
            cell("hidden_spread_percent", "±%", 1, 100.0 * hidden.spread()),
            cell("attention_ratio", "attention", 3, attention.median()),
            cell(
                "attention_spread_percent",
                "±%",
                1,
                100.0 * attention.spread(),
            ),
        ]);
    }
    report.table(table);
    report.save(&arguments.out)
}

/// Steps of a model with these probabilities: of hidden values, and in attention.
fn turn(
    layers: usize,
    width: usize,
    length: usize,
    [dropout, attention_dropout]: [f64; 2],
) -> Result<Turn<'static>, Failure> {
    let (device, samples) = (Device::flex(), 8);
    let config = BlockConfig {
        dropout,
        attention_dropout,
        ..BlockConfig::new(width, HEADS)
    };
    let layer = || TransformerLayer::new(&config, &device);
    let layers: Vec<_> = (0..layers).map(|_| layer()).collect::<Result<_, _>>()?;
    let pipeline = Pipeline::builder(layers)
        .devices(vec![device.clone(); 2])
        .micro_batches(samples)
        .recompute(Recompute::Never)
        .build()?;
    let input = Tensor::<3>::random([samples, length, width], Distribution::Default, &device);
    let target = Tensor::<1, Int>::zeros([samples], &device);
    Ok(Box::new(move || {
        repeat(Duration::from_millis(500), || {
            let batch = (input.clone(), target.clone());
            drop(pipeline.train_step(batch, &CrossEntropy::new())?);
            Ok(())
        })
    }))
}
