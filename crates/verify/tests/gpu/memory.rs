//! The bytes that steps take from a GPU's pool. In a process of its own, since all tests of this one share the pool.
#![allow(clippy::disallowed_methods)] // waits for the device

use std::convert::Infallible;

use burn::tensor::{Device, Tensor};
use stovepipe_pipeline::{Balance, Measured, NamedDevice, Pipeline, Profiler};
use stovepipe_plan::{MemoryUse, OptimizerState};
use stovepipe_schedule::{Rule, Scheduler};

use crate::{
    beside_cpu::{cpu, two_devices},
    models::{SQUARED, dense, in_own_process},
};

const FEATURES: usize = 64;
/// Of a micro-batch: a value is 512 KiB.
const SAMPLES: usize = 2048;
const LAYERS: usize = 16;
const MICRO_BATCHES: usize = 6;

/// Has the pool give back what nobody uses. Returns what it holds but for pages of small tensors.
fn least(device: &Device) -> u64 {
    device.sync().unwrap();
    device.memory_cleanup();
    held(device)
}

fn held(device: &Device) -> u64 {
    let pools = device.memory_pool_report().unwrap();
    let of_small = pools.iter().filter(|pool| pool.largest_alloc <= 64 << 10);
    let small: u64 = of_small.map(|pool| pool.pages * pool.page_size).sum();
    device.memory_pool_usage().unwrap().bytes_reserved - small
}

/// The first worker has nearly all layers. With their pages, steps take within 7 % of what was forecast.
#[test]
#[ignore = "many kernels to compile: takes minutes on a driver in software; run with --ignored"]
fn steps_take_what_was_forecast() {
    const TEST: &str = "memory::steps_take_what_was_forecast";
    let Some([gpu, _]) = two_devices() else {
        return;
    };
    in_own_process(TEST, || -> Result<(), Infallible> {
        compare(&gpu);
        Ok(())
    })
    .unwrap_or_else(|never| match never {});
}

fn compare(gpu: &NamedDevice) {
    let device = &gpu.device;
    let widths = [FEATURES; LAYERS + 1];
    let sample = Tensor::<2>::ones([SAMPLES, FEATURES], device);
    // What counts bytes of the host is not asked.
    let profiler = Profiler::new(device).counting(|| unreachable!());
    let measured = Measured::from(profiler.measure(&dense(&widths), sample).unwrap());
    for (rule, recompute) in [
        ("gpipe", "never"),
        ("1f1b", "2-5,9-12"),
        ("v-half", "never"),
    ] {
        let rule: Rule = rule.parse().unwrap();
        let balance = match rule.stages(1) {
            1 => vec![LAYERS - 1, 1],
            _ => vec![LAYERS / 2 - 1, 1, 1, LAYERS / 2 - 1],
        };
        let builder = Pipeline::builder(dense(&widths))
            .devices([gpu.clone(), gpu.clone()])
            .balance(Balance::Layers(balance))
            .schedule(rule)
            .micro_batches(MICRO_BATCHES)
            .recompute(recompute.parse().unwrap());
        let forecast = builder.forecast(&measured, OptimizerState::new(0)).unwrap();
        let forecast: u64 = forecast.memory.into_iter().map(MemoryUse::total).sum();
        let before = least(device);
        let mut pipeline = builder.build().unwrap();
        pipeline.move_to_workers().unwrap();
        least(device); // what asked whether it works had pages, too
        for _ in 0..2 {
            let input = Tensor::<2>::ones([MICRO_BATCHES * SAMPLES, FEATURES], &cpu().device);
            let step = pipeline.train_step((input.clone(), input), &SQUARED);
            drop(step.unwrap());
        }
        device.sync().unwrap();
        let taken = held(device) - before;
        let ratio = forecast as f64 / taken as f64;
        println!("{rule} {recompute}: forecast {forecast} of {taken}: {ratio:.3}");
        assert!((0.93..1.07).contains(&ratio), "{rule} {recompute}: {ratio}");
    }
}
