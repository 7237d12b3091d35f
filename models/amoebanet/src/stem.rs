//! The first layer: from images to features.

use burn::{
    config::Config,
    module::Module,
    nn::{BatchNorm, BatchNormConfig, conv::Conv2d},
    tensor::{Device, Tensor},
};
use stovepipe_kernels::{batch_norm, relu_convolve};
use stovepipe_pipeline::LayerError;

use crate::convolution::convolution;

/// The first layers of an AmoebaNet.
#[derive(Config, Debug, Copy, PartialEq, Eq)]
pub enum Stem {
    /// For images of 224×224 and more: a convolution of stride 2 and two reduction cells shrink
    /// the map to an eighth.
    ImageNet,
    /// For images of 32×32: a convolution of stride 1, a normal cell and a reduction cell, as wide
    /// as those of the large stem, shrink the map to a half.
    Small,
}

const COLORS: usize = 3;

/// ReLU, 3×3 convolution, batch norm: an image `[n, 3, h, w]` to `[n, D/4, ⌈h/s⌉, ⌈w/s⌉]`, where
/// the stride s is 2 for large images and 1 for small ones.
#[derive(Module, Debug)]
pub struct StemConvolution {
    conv: Conv2d,
    bn: BatchNorm,
}

impl StemConvolution {
    pub(crate) fn new(filters: usize, stride: usize, device: &Device) -> Self {
        Self {
            conv: convolution([COLORS, filters], [3, 3], [stride; 2], device),
            bn: BatchNormConfig::new(filters).init(device),
        }
    }

    pub(crate) fn forward(&self, image: Tensor<4>) -> Result<Tensor<4>, LayerError> {
        let [_, colors, height, width] = image.dims();
        if colors != COLORS || height * width == 0 {
            return Err(LayerError::new(
                format!("images [n, {COLORS}, height, width]"),
                format!("{:?}", image.dims()),
            ));
        }
        Ok(batch_norm(&self.bn, relu_convolve(&self.conv, image)))
    }
}
