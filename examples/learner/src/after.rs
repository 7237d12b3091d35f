//! A small convolutional network in Burn's Learner, in two stages.

use burn::{
    module::Module,
    nn::{
        PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
    },
    tensor::{Device, Int, Tensor, activation::gelu},
};
use burn_train::ClassificationOutput;
use stovepipe::learner::Staged;
use stovepipe::prelude::*;
use stovepipe_digits::DigitBatch;

/// Halves a map's height and width.
#[derive(Module, Debug)]
pub struct Block {
    convolution: Conv2d,
}

impl Block {
    fn new(channels: [usize; 2], device: &Device) -> Self {
        let config = Conv2dConfig::new(channels, [3, 3])
            .with_stride([2, 2])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1));
        let convolution = config.init(device);
        Self { convolution }
    }

    fn run(&self, map: Tensor<4>) -> Tensor<4> {
        gelu(self.convolution.forward(map))
    }
}

/// The model.
pub type Net = Staged<Block, CrossEntropy, DigitBatch, Tensor<1, Int>, ClassificationOutput>;

impl Layer for Block {
    type Input = Tensor<4>;
    type Flow = Tensor<4>;
    type Output = Tensor<2>;
    type Side = ();

    fn enter(images: Tensor<4>) -> Tensor<4> {
        images
    }

    fn forward(&self, map: Tensor<4>, _: &mut Context<'_, Self>) -> Result<Tensor<4>, LayerError> {
        Ok(self.run(map))
    }

    fn leave(map: Tensor<4>) -> Result<Tensor<2>, LayerError> {
        Ok(map.flatten::<3>(2, 3).mean_dim(2).flatten(1, 2))
    }
}

/// Makes a new model.
pub fn model(devices: [Device; 2]) -> Result<Net, BuildError> {
    let channels = [[3, 16], [16, 32], [32, 64], [64, 10]];
    let layers = channels.map(|channels| Block::new(channels, &devices[0]));
    let pipeline = Pipeline::builder(layers.into())
        .devices(devices)
        .micro_batches(4)
        .build()?;
    let objective = CrossEntropy::new();
    Ok(Staged::new(
        pipeline,
        objective,
        Batch::from,
        ClassificationOutput::new,
    ))
}
