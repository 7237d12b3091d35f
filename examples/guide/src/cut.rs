//! Chapter 5: where to cut.

use burn::tensor::Device;
use stovepipe::{pipeline::Profiler, prelude::*};

use crate::{
    Failure,
    model::{Model, digits},
};

pub fn main() -> Result<(), Failure> {
    measure()?;
    auto()
}

fn measure() -> Result<(), Failure> {
    let device = Device::flex();
    let layers = Model::new(&device).into_layers();
    let (images, _) = digits(16, &device)?; // a micro-batch
    let profile = Profiler::new(&device).measure(&layers, images)?;

    println!("layer      forward   backward  handed on  parameters");
    for (index, layer) in profile.layers.iter().enumerate() {
        let (name, forward, backward) = (&layer.name, 1e3 * layer.forward, 1e3 * layer.backward);
        let (output, parameters) = (layer.output / 1024, layer.parameters / 1024);
        println!(
            "{index} {name:<5} {forward:7.2} ms {backward:7.2} ms {output:6} KiB {parameters:7} KiB"
        );
    }
    std::fs::write("profile.toml", profile.to_toml())?; // for `stovepipe plan`

    for balance in [
        Balance::Even,
        Balance::by_size(&profile),
        Balance::by_time(&profile),
    ] {
        println!("{:?} layers in each stage", balance.cut(layers.len(), 2)?);
    }
    Ok(())
}

fn auto() -> Result<(), Failure> {
    let device = Device::flex();
    let layers = Model::new(&device).into_layers();
    let (images, labels) = digits(64, &device)?;
    let (sample, _) = digits(16, &device)?;
    let pipeline = Pipeline::auto(layers, [device.clone(), device], sample)?.build()?;
    for stage in pipeline.stages() {
        println!(
            "layers {:?} on {}: {} parameters",
            stage.layers, stage.device_name, stage.parameters
        );
    }
    let step = pipeline.train_step(images, labels, &CrossEntropy::new())?;
    println!("bubble {:.0} %", 100.0 * step.bubble());
    Ok(())
}
