//! The last layer: from features to the output.

use burn::{
    module::Module,
    nn::conv::{Conv2d, Conv2dConfig},
    tensor::{Device, Tensor},
};
use stovepipe_kernels::convolve;
use stovepipe_pipeline::LayerError;

use crate::convolution::check_channels;

/// 1×1 convolution without bias: `[n, in, h, w]` to `[n, out, h, w]`.
#[derive(Module, Debug)]
pub struct Segment {
    conv: Conv2d,
}

impl Segment {
    pub(crate) fn new(channels: [usize; 2], device: &Device) -> Self {
        let config = Conv2dConfig::new(channels, [1, 1]).with_bias(false);
        let conv = config.init(device);
        Self { conv }
    }

    pub(crate) fn forward(&self, x: Tensor<4>) -> Result<Tensor<4>, LayerError> {
        check_channels(&self.conv, &x)?;
        Ok(convolve(&self.conv, x))
    }
}
