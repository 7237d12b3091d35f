//! What training takes if states and gradients are on the device and off it, counted by the allocator.
//!
//! Each case is a process of its own: this program again, so that the most that was ever allocated is that case's.

use std::{env, process::Command};

use cap::Cap;

use super::*;

#[global_allocator]
static ALLOCATOR: Cap<std::alloc::System> = Cap::new(std::alloc::System, usize::MAX);

const CASE: &str = "STOVEPIPE_OFFLOAD_CASE";
const LAYERS: usize = 24;
/// Layers that are large beside what products keep for each thread: as much as the second cache holds.
const WIDTH: usize = 512;
/// Half of the weights and two states of each, in layers.
const BUDGET: f64 = 1.5 * LAYERS as f64;
/// Bytes of a layer.
const LAYER: f64 = (4 * WIDTH * (WIDTH + 1)) as f64;

/// The most that training took, in layers.
fn measured(is_away: bool) -> f64 {
    let device = Device::flex();
    let linear = LinearConfig::new(WIDTH, WIDTH);
    let layer = |_| Dense {
        linear: linear.init(&device),
        norm: None,
    };
    let layers = (0..LAYERS).map(layer).collect();
    let builder = Pipeline::builder(layers)
        .devices([device.clone()])
        .micro_batches(2);
    let mut pipeline = builder.build().unwrap().materialize();
    let mut optimizer = StagedOptimizer::new(&TrainSettings::default(), 1);
    if is_away {
        let file = |_: &_| tempfile::tempfile().map(Some);
        optimizer = optimizer.offload(&pipeline.stages(), file).unwrap();
        ALLOCATOR.set_limit((BUDGET * LAYER) as usize).unwrap();
    }
    let stores = optimizer.gradient_stores();
    for _ in 0..3 {
        let labels = Tensor::<1, Int>::zeros([4], &device);
        let batch = (Tensor::ones([4, WIDTH], &device), labels);
        let step = pipeline
            .train_step_into(batch, &CrossEntropy::new(), &stores)
            .unwrap();
        optimizer
            .step(1e-3, &mut pipeline, step.gradients, Instant::now())
            .unwrap();
    }
    ALLOCATOR.max_allocated() as f64 / LAYER
}

/// A model trains whose weights and states of AdamW are twice what the allocator grants: weights stay; of the rest,
/// what belongs to three layers at most is there. On the device, its gradients are there besides.
#[test]
fn a_model_trains_in_half_the_memory_of_its_weights_and_states() {
    const TEST: &str =
        "offload_memory::a_model_trains_in_half_the_memory_of_its_weights_and_states";
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
    assert!(away <= BUDGET, "{away}");
}
