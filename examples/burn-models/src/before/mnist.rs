//! The convolutional network of Burn's `mnist` example.

use burn::{
    module::Module,
    nn::{
        BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Gelu, Linear, LinearConfig, Relu,
        conv::{Conv2d, Conv2dConfig},
        pool::{MaxPool2d, MaxPool2dConfig},
    },
    tensor::{Device, Tensor},
};

/// Two convolutions and three linear layers.
#[derive(Module, Debug)]
pub struct Model {
    conv1: ConvBlock,
    conv2: ConvBlock,
    fc1: Linear,
    fc2: Linear,
    fc3: Linear,
    dropout: Dropout,
    activation: Gelu,
}

impl Model {
    /// A new model for images of 28 × 28 pixels.
    pub fn new(dropout: f64, device: &Device) -> Self {
        Self {
            conv1: ConvBlock::new([1, 64], device),
            conv2: ConvBlock::new([64, 64], device),
            fc1: LinearConfig::new(64 * 5 * 5, 128).init(device),
            fc2: LinearConfig::new(128, 128).init(device),
            fc3: LinearConfig::new(128, 10).init(device),
            dropout: DropoutConfig::new(dropout).init(),
            activation: Gelu::new(),
        }
    }

    /// Images `[batch, height, width]` to logits `[batch, 10]`.
    pub fn forward(&self, images: Tensor<3>) -> Tensor<2> {
        let x = self.conv1.forward(images.unsqueeze_dim(1));
        let x = self.conv2.forward(x);
        let x = self.activation.forward(self.fc1.forward(x.flatten(1, 3)));
        let x = self.dropout.forward(x);
        let x = self.activation.forward(self.fc2.forward(x));
        let x = self.dropout.forward(x);
        self.fc3.forward(x)
    }
}

/// Convolution, norm, activation and pooling.
#[derive(Module, Debug)]
pub struct ConvBlock {
    conv: Conv2d,
    norm: BatchNorm,
    activation: Relu,
    pool: MaxPool2d,
}

impl ConvBlock {
    fn new(channels: [usize; 2], device: &Device) -> Self {
        Self {
            conv: Conv2dConfig::new(channels, [3, 3]).init(device),
            norm: BatchNormConfig::new(channels[1]).init(device),
            activation: Relu::new(),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let x = self.norm.forward(self.conv.forward(x));
        self.pool.forward(self.activation.forward(x))
    }
}
