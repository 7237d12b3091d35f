//! What an optimizer's state takes on the device and off it, counted by the allocator.
//!
//! Each case is a process of its own: this program again, so that the most that was ever allocated is that case's.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{env, process::Command, time::Instant};

use burn::{
    module::Module,
    tensor::{Device, Int, Tensor},
};
use cap::Cap;
use stovepipe_pipeline::{CrossEntropy, Pipeline};
use stovepipe_train::{TrainSettings, example::Dense, optimizer::StagedOptimizer};

#[global_allocator]
static ALLOCATOR: Cap<std::alloc::System> = Cap::new(std::alloc::System, usize::MAX);

const CASE: &str = "STOVEPIPE_OFFLOAD_CASE";
const LAYERS: usize = 24;
const WIDTH: usize = 256;
/// Bytes of a layer.
const LAYER: f64 = (4 * WIDTH * (WIDTH + 1)) as f64;

/// The most that training took, in layers.
fn measured(is_away: bool) -> f64 {
    let layers = (0..LAYERS).map(|_| Dense::new(WIDTH, WIDTH)).collect();
    let device = Device::flex();
    let builder = Pipeline::builder(layers)
        .devices([device.clone()])
        .micro_batches(1);
    let mut pipeline = builder.build().unwrap().materialize();
    let mut optimizer = StagedOptimizer::new(&TrainSettings::default(), 1);
    if is_away {
        let file = |_: &_| tempfile::tempfile().map(Some);
        optimizer = optimizer.offload(&pipeline.stages(), file).unwrap();
    }
    for _ in 0..3 {
        let labels = Tensor::<1, Int>::zeros([2], &device);
        let batch = (Tensor::ones([2, WIDTH], &device), labels);
        let step = pipeline.train_step(batch, &CrossEntropy::new()).unwrap();
        optimizer
            .step(1e-3, &mut pipeline, step.gradients, Instant::now())
            .unwrap();
    }
    ALLOCATOR.max_allocated() as f64 / LAYER
}

/// Weights and gradients stay; of the states, those of three layers at most are there. (At first, an update has its
/// result beside a weight, and more of them while it computes.)
#[test]
fn a_state_in_a_file_takes_no_memory() {
    const TEST: &str = "a_state_in_a_file_takes_no_memory";
    if let Ok(case) = env::var(CASE) {
        println!("[{}]", measured(case == "away"));
        return;
    }
    let [here, away] = ["here", "away"].map(|case| {
        let mut command = Command::new(env::current_exe().unwrap());
        let command = command
            .args([TEST, "--exact", "--nocapture"])
            .env(CASE, case);
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let (_, rest) = text.split_once('[').unwrap();
        rest.split_once(']').unwrap().0.parse::<f64>().unwrap()
    });
    println!("{here:.1} layers here, {away:.1} away");
    let layers = LAYERS as f64;
    assert!(here > 4.0 * layers, "{here}");
    assert!(away < 2.0 * layers + 12.0, "{away}");
}
