//! Chapter 5: where to cut.

use burn::tensor::Device;
use stovepipe::prelude::*;

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
    let (sample, _) = digits(16, &device)?;
    let profile = Profiler::new(&device).measure(&layers, sample)?;

    println!("layer     forward   backward    output");
    for (index, layer) in profile.layers.iter().enumerate() {
        let (forward, backward) = (1e3 * layer.forward, 1e3 * layer.backward);
        let (name, output) = (&layer.name, layer.output / 1024);
        println!("{index} {name:6} {forward:5.2} ms {backward:7.2} ms {output:5} KiB");
    }
    let (size, time) = (Balance::by_size(&profile), Balance::by_time(&profile));
    println!("even    {:?}", Balance::Even.cut(5, 2)?);
    println!("by size {:?}", size.cut(5, 2)?);
    println!("by time {:?}", time.cut(5, 2)?);
    std::fs::write("profile.toml", profile.to_toml())?;
    Ok(())
}

fn auto() -> Result<(), Failure> {
    let device = Device::flex();
    let layers = Model::new(&device).into_layers();
    let (sample, _) = digits(16, &device)?; // the size of a micro-batch
    let pipeline = Pipeline::auto(layers, [device.clone(), device.clone()], sample)?.build()?;
    for stage in pipeline.stages() {
        println!("layers {:?} on {}", stage.layers, stage.device_name);
    }
    Ok(())
}
