//! Steps whose states and gradients lie in stores of limited speed, next to their predicted times.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench offload`

use std::{
    io,
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use burn::tensor::{Device, Int, Tensor};
use clap::Args;
use serde_json::json;
use stovepipe::{
    pipeline::{
        CrossEntropy, GradientStore, Measured, Pipeline, PipelineBuilder, Profiler, Recompute,
        parameter_bytes,
    },
    plan::OptimizerState,
    schedule::Rule,
    train::{
        TrainSettings,
        optimizer::{HostMemory, StagedOptimizer, Storage, store_rate},
    },
};
use stovepipe_benches::{
    Failure,
    measure::{Seconds, Turn, TurnCost, compute_alone, take_turns},
    report::{BenchReport, ReportTable, cell},
};
use stovepipe_transformer::{LmConfig, LmLayer};

/// Offloaded states and gradients: steps next to their predicted times
#[derive(Args)]
pub struct Flags {
    /// Folder for the results, as JSON
    #[arg(long, value_name = "FOLDER", default_value = "benches/results")]
    out: PathBuf,
    /// Turns of each configuration
    #[arg(long, value_name = "N", default_value_t = 7)]
    rounds: usize,
    /// Small sizes and one round, to show that the program works
    #[arg(long)]
    quick: bool,
}

const NOTE: &str = "\
A language model in workers of a thread each, 1F1B without recomputation, AdamW. store: the seconds in which a
stage's states and gradients move, over a step without a store; it sleeps as long as its speed says. Its speed is
measured as before a training. predicted: what the layers' measured times and that speed say, over the measured step.
An update without a store is as measured.";

const MICRO_BATCHES: usize = 4;
const STORES: [f64; 3] = [0.5, 1.0, 2.0];
/// AdamW's.
const STATES: u8 = 2;

/// Memory that takes its time.
struct Throttled {
    memory: HostMemory,
    /// Bytes a second.
    rate: f64,
}

impl Throttled {
    fn new(rate: f64) -> Self {
        let memory = HostMemory::default();
        Self { memory, rate }
    }

    fn take_time<R>(&mut self, bytes: usize, work: impl FnOnce(&mut HostMemory) -> R) -> R {
        let end = Instant::now() + Duration::from_secs_f64(bytes as f64 / self.rate);
        let done = work(&mut self.memory);
        thread::sleep(end.saturating_duration_since(Instant::now()));
        done
    }
}

impl Storage for Throttled {
    fn read(&mut self, place: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.take_time(bytes.len(), |memory| memory.read(place, bytes))
    }

    fn write(&mut self, place: u64, bytes: &[u8]) -> io::Result<()> {
        self.take_time(bytes.len(), |memory| memory.write(place, bytes))
    }
}

struct Model {
    config: LmConfig,
    samples: usize,
    length: usize,
}

impl Model {
    fn tokens(&self, samples: usize) -> Tensor<2, Int> {
        Tensor::zeros([samples, self.length], &Device::flex())
    }

    fn builder(&self, stages: usize) -> Result<PipelineBuilder<LmLayer>, Failure> {
        let builder = Pipeline::builder(self.config.init(&Device::flex())?);
        Ok(builder
            .devices(vec![Device::flex(); stages])
            .schedule(Rule::OneForwardOneBackward)
            .micro_batches(MICRO_BATCHES)
            .recompute(Recompute::Never))
    }

    /// Steps with states and gradients in stores of this speed, or where they are used. Returns the seconds of passes and
    /// of an update.
    fn steps(
        &self,
        stages: usize,
        rate: Option<f64>,
    ) -> Result<impl FnMut() -> Result<[f64; 2], Failure>, Failure> {
        let mut pipeline = self.builder(stages)?.build()?;
        let optimizer = StagedOptimizer::new(&TrainSettings::default(), stages);
        let mut optimizer =
            optimizer.offload(&pipeline.stages(), |_| Ok(rate.map(Throttled::new)))?;
        let batch = (self.tokens(self.samples), self.tokens(self.samples));
        Ok(move || {
            let stores: Vec<Option<Arc<dyn GradientStore<LmLayer>>>> = optimizer.gradient_stores();
            let began = Instant::now();
            let step = pipeline.train_step_into(batch.clone(), &CrossEntropy::new(), &stores)?;
            let passes = began.elapsed().as_secs_f64();
            optimizer.step(1e-4, &mut pipeline, step.gradients, began)?;
            Ok([passes, began.elapsed().as_secs_f64() - passes])
        })
    }
}

pub fn main(flags: Flags) -> Result<(), Failure> {
    compute_alone()?;
    let settings = json!({ "rounds": flags.rounds, "quick": flags.quick });
    let mut report = BenchReport::begin("offload", &settings)?;
    report.note(NOTE);
    let (blocks, width, length) = if flags.quick {
        (2, 16, 8)
    } else {
        (6, 512, 128)
    };
    let model = Model {
        config: LmConfig::new(256, length, blocks, width, 4),
        samples: 16,
        length,
    };
    let rounds = if flags.quick { 1 } else { flags.rounds };
    for stages in [1, 2] {
        report.table(compare(&model, stages, rounds)?);
    }
    report.save(&flags.out)
}

fn compare(model: &Model, stages: usize, rounds: usize) -> Result<ReportTable, Failure> {
    let builder = model.builder(stages)?;
    let layers = model.config.init(&Device::flex())?;
    let profiler = Profiler::new(&Device::flex()).side_by_side(stages);
    let sample = model.tokens(model.samples / MICRO_BATCHES);
    let measured = Measured::from(profiler.measure(&layers, sample)?);
    let cut = builder.cut()?;
    let mut begin = 0;
    let of_stage = |&count: &usize| {
        let own = &layers[begin..begin + count];
        begin += count;
        own.iter()
            .map(|layer| parameter_bytes(layer)[1])
            .sum::<u64>()
    };
    let largest = cut.iter().map(of_stage).max().unwrap_or(0) as f64;

    // Without a store, and how fast stores are.
    let mut here = model.steps(stages, None)?;
    here()?;
    let step: f64 = here()?.iter().sum();
    let ways = 2.0 * MICRO_BATCHES as f64 - 1.0 + 2.0 + 2.0 * f64::from(STATES);
    let rates = STORES.map(|store| largest * ways / (store * step));
    let works = rates.map(|rate| model.steps(stages, Some(rate)));
    let mut works = works.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut updates = Seconds::default();
    let mut turns: Vec<Turn> = vec![Box::new(|| {
        let [passes, update] = here()?;
        updates.0.push(update);
        Ok(cost(passes + update))
    })];
    turns.extend(
        works
            .iter_mut()
            .map(|work| Box::new(|| Ok(cost(work()?.iter().sum()))) as Turn),
    );
    let costs = take_turns(&mut turns, rounds)?;
    drop(turns);

    let forecast = |rate: Option<f64>| -> Result<f64, Failure> {
        let state = OptimizerState {
            on_device: STATES * u8::from(rate.is_none()),
            offloaded: STATES * u8::from(rate.is_some()),
            offloads_gradients: rate.is_some(),
            accumulates: false,
        };
        let measured = measured.clone().with_stores(&vec![rate; stages]);
        let step_time = builder.forecast(&measured, state)?.step_time;
        Ok(step_time + rate.map_or(updates.median(), |_| 0.0))
    };
    let mut table = ReportTable::new(format!("stages: {stages}"));
    let stores = [None].into_iter().chain(rates.map(Some));
    for ((rate, store), costs) in stores.zip([0.0].into_iter().chain(STORES)).zip(&costs) {
        let rate = rate.map(|rate| store_rate(Throttled::new(rate), &Device::flex()));
        let rate = rate.transpose()?;
        let seconds = costs.seconds.median();
        let predicted = forecast(rate)?;
        let mebibytes = rate.map_or(f64::NAN, |rate| rate / f64::from(1 << 20));
        table.row([
            cell("store", "store", 1, store),
            cell("mebibytes_second", "MiB/s", 0, mebibytes),
            cell("step_ms", "step ms", 1, 1e3 * seconds),
            cell("spread_percent", "±%", 1, 100.0 * costs.seconds.spread()),
            cell("predicted_ms", "predicted ms", 1, 1e3 * predicted),
            cell("predicted", "predicted", 3, predicted / seconds),
        ]);
    }
    Ok(table)
}

fn cost(seconds: f64) -> TurnCost {
    let processor = f64::NAN;
    TurnCost { seconds, processor }
}
