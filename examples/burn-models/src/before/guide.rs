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

/// Two convolutions, a pooling and two linear layers.
#[derive(Module, Debug)]
pub struct Model {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: AdaptiveAvgPool2d,
    linear1: Linear,
    linear2: Linear,
    dropout: Dropout,
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
