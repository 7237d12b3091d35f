//! The model of the Burn Book's guide.

use burn::{
    module::Module,
    nn::{
        Dropout, DropoutConfig, Linear, LinearConfig, Relu,
        conv::{Conv2d, Conv2dConfig},
        pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig},
    },
    tensor::{Device, Tensor},
};
use stovepipe::Layers;

/// Two convolutions, a pooling and two linear layers.
#[derive(Module, Debug, Layers)]
pub struct Model {
    #[layers(|x: Tensor<3>| -> Tensor<4> { dropout.forward(conv1.forward(x.unsqueeze_dim(1))) })]
    conv1: Conv2d,
    #[layers(|x| activation.forward(dropout.forward(conv2.forward(x))))]
    conv2: Conv2d,
    pool: AdaptiveAvgPool2d,
    #[layers(|x| -> Tensor<2> { activation.forward(dropout.forward(linear1.forward(x.flatten(1, 3)))) })]
    linear1: Linear,
    linear2: Linear,
    #[layers(shared)]
    dropout: Dropout,
    #[layers(shared)]
    activation: Relu,
}

impl Model {
    /// A new model for images of any size.
    pub fn new(dropout: f64, device: &Device) -> Self {
        Self {
            conv1: Conv2dConfig::new([1, 8], [3, 3]).init(device),
            conv2: Conv2dConfig::new([8, 16], [3, 3]).init(device),
            pool: AdaptiveAvgPool2dConfig::new([8, 8]).init(),
            linear1: LinearConfig::new(16 * 8 * 8, 512).init(device),
            linear2: LinearConfig::new(512, 10).init(device),
            dropout: DropoutConfig::new(dropout).init(),
            activation: Relu::new(),
        }
    }

    /// Images `[batch, height, width]` to logits `[batch, 10]`.
    pub fn forward(&self, images: Tensor<3>) -> Tensor<2> {
        let x = self.conv1.forward(images.unsqueeze_dim(1));
        let x = self.dropout.forward(x);
        let x = self.dropout.forward(self.conv2.forward(x));
        let x = self.pool.forward(self.activation.forward(x));
        let x = self.linear1.forward(x.flatten(1, 3));
        let x = self.activation.forward(self.dropout.forward(x));
        self.linear2.forward(x)
    }
}
