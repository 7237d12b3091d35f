//! The unit that most operations are made of.

use burn::{
    module::Module,
    nn::{
        BatchNorm, BatchNormConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
    },
    tensor::{Device, Tensor},
};
use stovepipe_kernels::{batch_norm, convolve, relu_convolve};

/// ReLU, convolution without bias, batch normalization: `[n, in, h, w]` to `[n, out, h', w']`.
#[derive(Module, Debug)]
pub(crate) struct ReluConvNorm {
    pub conv: Conv2d,
    pub bn: BatchNorm,
}

impl ReluConvNorm {
    /// With an odd `kernel`, padded so that a stride of 2 rounds up when it halves the map.
    pub fn new(
        channels: [usize; 2],
        kernel: [usize; 2],
        stride: [usize; 2],
        device: &Device,
    ) -> Self {
        Self {
            conv: convolution(channels, kernel, stride, device),
            bn: BatchNormConfig::new(channels[1]).init(device),
        }
    }

    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        batch_norm(&self.bn, relu_convolve(&self.conv, x))
    }

    /// The same for an input that is rectified already.
    pub fn conv_norm(&self, x: Tensor<4>) -> Tensor<4> {
        batch_norm(&self.bn, convolve(&self.conv, x))
    }
}

/// A convolution without bias, padded by half its kernel.
pub(crate) fn convolution(
    channels: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    device: &Device,
) -> Conv2d {
    let [height, width] = kernel.map(|size| size / 2);
    Conv2dConfig::new(channels, kernel)
        .with_stride(stride)
        .with_padding(PaddingConfig2d::Explicit(height, width, height, width))
        .with_bias(false)
        .init(device)
}
