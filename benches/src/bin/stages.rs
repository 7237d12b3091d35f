//! How fast a pipeline is, next to a plain Burn loop and to the most that two threads could do.
//!
//! `cargo build --workspace --release && target/release/stages`
//!
//! AmoebaNet-D (3, 16) on 32×32 images, one thread a stage. Every figure is the median of several
//! steps of forward and backward, without the optimizer. "Two copies" is two plain loops at once,
//! each on a thread of its own: no two stages can be faster. Their rate times m·K / (m + K − 1) / K
//! is the limit that the bubble leaves to K balanced stages without recomputation.

use std::{
    error::Error,
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use burn::{
    module::Module,
    nn::loss::CrossEntropyLossConfig,
    tensor::{Device, Int, Tensor},
};
use mimalloc::MiMalloc;
use stovepipe::prelude::*;
use stovepipe_amoebanet::{AmoebaLayer, AmoebaNetDConfig, Stem};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const SAMPLES: usize = 32;
const STEPS: usize = 7;
const MICRO_BATCHES: usize = 8;

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let plain = rate(&mut plain_step()?)?;
    let copies = two_copies()?;
    println!("plain Burn loop, one thread      {plain:6.1} samples/s");
    println!(
        "two copies of it at once         {copies:6.1} samples/s   {:.2} × plain",
        copies / plain
    );
    let one = rate(&mut pipeline_step(1, 1, false, Recompute::Never)?)?;
    println!(
        "one stage, one micro-batch       {one:6.1} samples/s   {:.2} × plain",
        one / plain
    );
    let m = MICRO_BATCHES as f64;
    let limit = copies * m / (m + 1.0);
    println!("limit of two stages at m = {MICRO_BATCHES}     {limit:6.1} samples/s");
    for gpipe in [true, false] {
        for recompute in [Recompute::Never, Recompute::ExceptLast, Recompute::Always] {
            let rate = rate(&mut pipeline_step(2, MICRO_BATCHES, gpipe, recompute)?)?;
            let name = if gpipe { "gpipe" } else { "1f1b" };
            println!(
                "two stages, {name:<5} {:<12}  {rate:6.1} samples/s   {:.2} × plain   {:.2} of the limit",
                recompute.to_string(),
                rate / plain,
                rate / limit
            );
        }
    }
    Ok(())
}

type Work = Box<dyn FnMut() -> Result<(), Failure> + Send>;

fn batch() -> (Tensor<4>, Tensor<1, Int>) {
    let device = Device::flex();
    let values: Vec<f32> = (0..SAMPLES * 3 * 32 * 32)
        .map(|i| (i as f32 * 0.37).sin())
        .collect();
    let images = Tensor::<1>::from_floats(values.as_slice(), &device);
    let labels: Vec<i64> = (0..SAMPLES as i64).map(|i| i % 10).collect();
    (
        images.reshape([SAMPLES, 3, 32, 32]),
        Tensor::from_ints(labels.as_slice(), &device),
    )
}

fn layers() -> Result<Vec<AmoebaLayer>, Failure> {
    let config = AmoebaNetDConfig::new(3, 16, 10).with_stem(Stem::Small);
    Ok(config.init(&Device::flex())?)
}

fn plain_step() -> Result<Work, Failure> {
    let layers: Vec<_> = layers()?.into_iter().map(Module::train).collect();
    let loss = CrossEntropyLossConfig::new().init(&Device::flex());
    let (images, labels) = batch();
    Ok(Box::new(move || {
        let mut flow = AmoebaLayer::enter(images.clone().autodiff());
        for layer in &layers {
            flow = layer.forward(flow, &mut Context::new(&(), true))?;
        }
        let logits = AmoebaLayer::leave(flow)?;
        let _ = loss.forward(logits, labels.clone().autodiff()).backward();
        Ok(())
    }))
}

fn pipeline_step(
    stages: usize,
    micro_batches: usize,
    gpipe: bool,
    recompute: Recompute,
) -> Result<Work, Failure> {
    let builder = Pipeline::builder(layers()?)
        .devices(vec![Device::flex(); stages])
        .balance(match stages {
            2 => Balance::Layers(vec![3, 6]),
            _ => Balance::Even,
        })
        .micro_batches(micro_batches)
        .recompute(recompute);
    let pipeline = match gpipe {
        true => builder.schedule(GPipe).build()?,
        false => builder.schedule(OneForwardOneBackward).build()?,
    };
    let (images, labels) = batch();
    Ok(Box::new(move || {
        let _ = pipeline.train_step(images.clone(), labels.clone(), &CrossEntropy::new())?;
        Ok(())
    }))
}

/// Samples a second, by the median step, on a thread that is a pool of its own.
fn rate(work: &mut Work) -> Result<f64, Failure> {
    let measured = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(1)
                .use_current_thread()
                .build();
            let _pool = pool?;
            median_step(work)
        });
        thread
            .join()
            .unwrap_or_else(|_| Err("a measurement panicked".into()))
    })?;
    Ok(SAMPLES as f64 / measured.as_secs_f64())
}

fn median_step(work: &mut Work) -> Result<Duration, Failure> {
    work()?;
    let mut times = Vec::new();
    for _ in 0..STEPS {
        let began = Instant::now();
        work()?;
        times.push(began.elapsed());
    }
    times.sort();
    Ok(times[STEPS / 2])
}

/// Samples a second of two plain loops at once, both together.
fn two_copies() -> Result<f64, Failure> {
    let start = Arc::new(Barrier::new(2));
    let copies: Vec<_> = (0..2)
        .map(|_| {
            let start = start.clone();
            let mut work = plain_step()?;
            Ok(thread::spawn(move || {
                start.wait();
                rate(&mut work)
            }))
        })
        .collect::<Result<_, Failure>>()?;
    let mut sum = 0.0;
    for copy in copies {
        sum += copy
            .join()
            .unwrap_or_else(|_| Err("a copy panicked".into()))?;
    }
    Ok(sum)
}
