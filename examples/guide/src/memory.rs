//! Chapter 6: memory and recomputation.

use burn::tensor::Device;
use stovepipe::{pipeline::measure::OptimizerState, prelude::*};

use crate::{
    Failure,
    model::{Model, digits},
};

pub fn main() -> Result<(), Failure> {
    let device = Device::flex();
    let (images, labels) = digits(64, &device)?;
    for recompute in Recompute::MODES {
        let pipeline = Pipeline::builder(Model::new(&device).into_layers())
            .devices([device.clone(), device.clone()])
            .schedule(GPipe)
            .micro_batches(8)
            .recompute(recompute.clone())
            .build()?;
        let step = pipeline.train_step((images.clone(), labels.clone()), &CrossEntropy::new())?;
        println!("recompute {recompute}");
        for (stage, held) in step.held.iter().enumerate() {
            let (tapes, inputs) = (held.activations, held.inputs);
            println!(
                "  stage {stage}: activations of {tapes} and inputs of {inputs} micro-batches"
            );
        }
    }
    Ok(())
}

/// Layers to recompute by name, and chosen for devices of `bytes` of memory.
pub fn by_layer(bytes: u64) -> Result<(), Failure> {
    let device = Device::flex();
    let layers = Model::new(&device).into_layers();
    let builder = || {
        Pipeline::builder(layers.clone())
            .devices([device.clone(), device.clone()])
            .micro_batches(8)
    };

    let named = builder().recompute(Recompute::Segments(Segments::new([0..2, 3..5])?));
    println!("named: {} stages", named.build()?.stages().len());

    let (sample, _) = digits(8, &device)?; // the size of a micro-batch
    let profile = Profiler::new(&device).measure(&layers, sample)?;
    let measured = Measured::from(profile).with_memory(&[Some(bytes); 2]);
    let forecast = builder().choose_layers(&measured, OptimizerState::new(2))?; // Adam has two
    println!("chosen: {}", forecast.recompute);
    let pipeline = builder()
        .balance(Balance::Layers(forecast.balance))
        .recompute(forecast.recompute)
        .build()?;
    for stage in pipeline.stages() {
        println!("layers {:?} on {}", stage.layers, stage.device_name);
    }
    Ok(())
}
