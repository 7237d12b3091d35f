//! Trains the network of Burn's `mnist` example on random images, in two stages.

#[cfg(test)]
mod tests;

use burn::{
    optim::AdamConfig,
    tensor::{Device, Distribution, Int, Tensor},
};
use burn_models::after::mnist::Model;
use stovepipe::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex();
    let images = Tensor::random([16, 28, 28], Distribution::Default, &device);
    let targets = Tensor::<1, Int>::arange(0..16, &device).remainder_scalar(10);

    let layers = Model::new(0.25, &device).into_layers();
    let mut pipeline = Pipeline::builder(layers)
        .devices([device.clone(), device.clone()])
        .micro_batches(4)
        .recompute(Recompute::Never)
        .allow_unkeyed(true) // Burn's own dropout
        .build()?;
    for warning in pipeline.unkeyed() {
        eprintln!("warning: {warning}");
    }
    let mut optimizer = AdamConfig::new().init();
    for step in 0..5 {
        let trained =
            pipeline.train_step((images.clone(), targets.clone()), &CrossEntropy::new())?;
        println!("step {step}: loss {:.3}", trained.loss);
        pipeline = optimizer.step(1e-3, pipeline, trained.gradients);
    }
    let model = Model::from_layers(pipeline.into_layers())?; // Burn's model, trained
    println!("{model}");
    Ok(())
}
