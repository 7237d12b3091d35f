//! The guide's model: a struct in chapter 1, a list of layers from chapter 2 on; and data to train it with.

use burn::{
    data::dataloader::batcher::Batcher,
    module::Module,
    nn::{
        Linear, LinearConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
    },
    tensor::{Device, Tensor, activation::relu},
};
use stovepipe::Layers;
use stovepipe_digits::{DigitBatch, DigitBatcher, Digits};

use crate::Failure;

/// Recognises handwritten digits.
#[derive(Module, Debug, Layers)]
pub struct Model {
    #[layers(|x: Tensor<4>| relu(conv1.forward(x)))]
    pub conv1: Conv2d,
    #[layers(|x| relu(conv2.forward(x)))]
    pub conv2: Conv2d,
    #[layers(|x| relu(conv3.forward(x)))]
    pub conv3: Conv2d,
    #[layers(|x| relu(conv4.forward(x)))]
    pub conv4: Conv2d,
    #[layers(|x| -> Tensor<2> { linear.forward(pool(x)) })]
    pub linear: Linear,
}

impl Model {
    pub fn new(device: &Device) -> Self {
        let conv = |from, to, stride| {
            Conv2dConfig::new([from, to], [3, 3])
                .with_stride([stride, stride])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(device)
        };
        Self {
            conv1: conv(3, 16, 2),
            conv2: conv(16, 32, 1),
            conv3: conv(32, 32, 2),
            conv4: conv(32, 64, 1),
            linear: LinearConfig::new(64, 10).init(device),
        }
    }

    /// Logits `[n, 10]` of images `[n, 3, 32, 32]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = relu(self.conv1.forward(images));
        let x = relu(self.conv2.forward(x));
        let x = relu(self.conv3.forward(x));
        let x = relu(self.conv4.forward(x));
        self.linear.forward(pool(x))
    }
}

/// The mean of each channel: `[n, channels, height, width]` to `[n, channels]`.
pub fn pool(x: Tensor<4>) -> Tensor<2> {
    x.flatten::<3>(2, 3).mean_dim(2).squeeze_dim(2)
}

/// The first training digits: images `[samples, 3, 32, 32]` and labels `[samples]`.
pub fn digits(samples: usize, device: &Device) -> Result<DigitBatch, Failure> {
    let digits = Digits::train()?.as_slice()[..samples].to_vec();
    Ok(DigitBatcher.batch(digits, device))
}
