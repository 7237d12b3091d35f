//! The engine with nothing to do: one stage and one micro-batch, next to a plain Burn loop on the
//! same model, with and without the optimizer.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench plain`

use clap::Args;
use serde_json::json;
use stovepipe_benches::{
    Failure,
    arguments::Arguments,
    contender::{Work, contend, serve},
    measure::take_turns,
    measured::Measured,
    models::models,
    piped::PipelineSettings,
    report::{Report, Table, column, number},
    threads::compute_alone,
};

/// A mini-batch is so many times `--samples`, and one micro-batch here.
const MICRO_BATCHES: usize = 4;

/// The engine with one stage and one micro-batch next to a plain Burn loop
#[derive(Args)]
pub struct Flags {
    #[command(flatten)]
    arguments: Arguments,
    /// Work as one of the configurations, for the program that started this one
    #[arg(long, hide = true)]
    contender: Option<String>,
}

const NOTE: &str = "\
Milliseconds of a mini-batch of so many samples on one thread. The ratio is the engine's time over
the loop's: the median over rounds in which both took their turn one after the other. processor: the same
ratio of seconds that threads had a processor, which leaves out waiting and other programs.";

pub fn main(flags: Flags) -> Result<(), Failure> {
    let Flags {
        arguments,
        contender,
    } = flags;
    if let Some(task) = &contender {
        return serve(&arguments, task);
    }
    let _pool = compute_alone()?;
    let mut report = Report::begin("plain", &arguments)?;
    report.note(NOTE);
    let columns = [
        column("model", "model", 0),
        column("samples", "samples", 0),
        column("work", "work", 0),
        column("loop_ms", "loop ms", 2),
        column("engine_ms", "engine ms", 2),
        column("ratio", "ratio", 3),
        column("spread_percent", "±%", 1),
        column("processor_ratio", "processor", 3),
    ];
    let table = Table::new("engine / plain loop", columns);
    let mut bench = Pairs {
        arguments: arguments.clone(),
        table,
    };
    for model in models(&arguments, 16) {
        let mini_batch = MICRO_BATCHES * model.samples();
        bench.measure(&*model.with_samples(mini_batch))?;
    }
    report.table(bench.table);
    report.save(&arguments.out)
}

struct Pairs {
    arguments: Arguments,
    table: Table,
}

impl Pairs {
    fn measure(&mut self, model: &dyn Measured) -> Result<(), Failure> {
        let plan = PipelineSettings::new(vec![model.layers()?], 1);
        let mut turns = Vec::new();
        for optimizer in [false, true] {
            let plain = Work::Plain {
                micro_batches: 1,
                optimizer,
            };
            let plan = plan.clone();
            for work in [plain, Work::Piped { plan, optimizer }] {
                turns.push(contend(model, work)?);
            }
        }
        let found = take_turns(&mut turns, self.arguments.rounds(11))?;
        let work = ["forward, backward", "forward, backward, AdamW"];
        for (work, pair) in work.into_iter().zip(found.chunks(2)) {
            let processor = pair[1].processor.over(&pair[0].processor);
            let pair = [&pair[0].seconds, &pair[1].seconds];
            let ratio = pair[1].over(pair[0]);
            let [plain, engine] = pair.map(|s| number(1e3 * s.median()));
            let spread = number(100.0 * ratio.spread());
            let [ratio, processor] = [ratio, processor].map(|r| number(r.median()));
            let (name, samples) = (model.name(), model.samples());
            (self.table).row(json!([
                name, samples, work, plain, engine, ratio, spread, processor
            ]));
        }
        Ok(())
    }
}
