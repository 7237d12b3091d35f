//! Chapter 1: a plain Burn loop.

use burn::{
    data::dataloader::DataLoaderBuilder,
    nn::loss::CrossEntropyLossConfig,
    optim::{AdamWConfig, GradientsParams},
    tensor::Device,
};
use stovepipe_digits::{DigitBatcher, Digits};

use crate::{Failure, model::Model};

pub fn main() -> Result<(), Failure> {
    let device = Device::flex().autodiff(); // the CPU
    let mut model = Model::new(&device);
    let mut optimizer = AdamWConfig::new().init();
    let loss = CrossEntropyLossConfig::new().init(&device);
    let loader = DataLoaderBuilder::new(DigitBatcher)
        .batch_size(64)
        .shuffle(7)
        .set_device(device)
        .build(Digits::train()?);

    for epoch in 1..=4 {
        let mut last = f32::NAN;
        for batch in loader.iter() {
            let (images, labels) = batch?;
            let loss = loss.forward(model.forward(images), labels);
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(4e-3, model, gradients);
            last = loss.into_scalar::<f32>();
        }
        println!("epoch {epoch}: last loss {last:.3}");
    }
    Ok(())
}
