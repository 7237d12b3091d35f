//! Chapter 7: three unlike devices.

use burn::tensor::Device;
use stovepipe::{
    plan::{Machine, PlanRequest},
    prelude::*,
    schedule::Rule,
};

use crate::{
    Failure,
    model::{Model, ModelLayer, digits},
};

/// Trains one step on the named devices, or on the CPU three times.
pub fn main(names: &[&str]) -> Result<(), Failure> {
    let names = match names {
        [] => &["cpu", "cpu", "cpu"],
        names => names,
    };
    let pipeline = on_devices(names)?;
    for stage in pipeline.stages() {
        println!("layers {:?} on {}", stage.layers, stage.device_name);
    }
    let (images, labels) = digits(64, &Device::flex())?;
    let step = pipeline.train_step((images, labels), &CrossEntropy::new())?;
    println!("loss {:.3}, bubble {:.2}", step.loss, step.bubble());
    Ok(())
}

fn on_devices(names: &[&str]) -> Result<Pipeline<ModelLayer>, Failure> {
    let devices = names.iter().map(|name| name.parse());
    let devices = devices.collect::<Result<Vec<NamedDevice>, _>>()?;
    let layers = Model::new(&devices[0].device).into_layers();

    // What each layer costs on the first device, and how fast the other devices are relative to it.
    let first = profile(&layers, &devices[0].device)?;
    let mut machine = Machine::uniform(devices.len());
    for (device, spec) in devices.iter().zip(&mut machine.devices) {
        if device != &devices[0] {
            spec.speed = seconds(&first) / seconds(&profile(&layers, &device.device)?);
        }
    }

    // Of all cuts into that many stages, the one with the fastest predicted step.
    let plan = PlanRequest {
        workers: vec![devices.len()],
        rules: vec![Rule::OneForwardOneBackward],
        micro_batches: vec![8],
        recompute: vec![Recompute::ExceptLast],
        ..PlanRequest::new(&first, &machine, 64)
    };
    let best = plan.plan()?.best;
    let in_order = best.devices.iter().map(|&device| devices[device].clone());
    Ok(Pipeline::builder(layers)
        .devices(in_order)
        .balance(Balance::Layers(best.forecast.balance))
        .micro_batches(8)
        .build()?)
}

/// What each layer costs on a device, for a micro-batch of 8.
fn profile(layers: &[ModelLayer], device: &Device) -> Result<Profile, Failure> {
    let (sample, _) = digits(8, device)?;
    Ok(Profiler::new(device).measure(layers, sample)?)
}

fn seconds(profile: &Profile) -> f64 {
    profile.times().iter().sum()
}
