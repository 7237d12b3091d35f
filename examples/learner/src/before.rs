//! A small convolutional network in Burn's Learner, on one device.

use burn::{
    module::Module,
    nn::{
        PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
        loss::CrossEntropyLossConfig,
    },
    tensor::{Device, Tensor, activation::gelu},
};
use burn_train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};
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
#[derive(Module, Debug)]
pub struct Net {
    layers: Vec<Block>,
}

impl Net {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let map = (self.layers.iter()).fold(images, |map, layer| layer.run(map));
        map.flatten::<3>(2, 3).mean_dim(2).flatten(1, 2)
    }

    fn classify(&self, (images, labels): DigitBatch) -> ClassificationOutput {
        let logits = self.forward(images);
        let loss = CrossEntropyLossConfig::new().init(&logits.device());
        let loss = loss.forward(logits.clone(), labels.clone());
        ClassificationOutput::new(loss, logits, labels)
    }
}

impl TrainStep for Net {
    type Input = DigitBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: DigitBatch) -> TrainOutput<ClassificationOutput> {
        let item = self.classify(batch);
        TrainOutput::new(self, item.loss.backward(), item)
    }
}

impl InferenceStep for Net {
    type Input = DigitBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: DigitBatch) -> ClassificationOutput {
        self.classify(batch)
    }
}

/// Makes a new model.
pub fn model(device: &Device) -> Net {
    device.seed(0);
    let channels = [[3, 16], [16, 32], [32, 64], [64, 10]];
    let layers = channels.map(|channels| Block::new(channels, device));
    Net {
        layers: layers.to_vec(),
    }
    .train()
}
