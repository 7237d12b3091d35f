//! The unit that a level is made of.

use burn::{
    module::Module,
    nn::{
        PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
    },
    tensor::{Device, Tensor, activation::leaky_relu},
};
use stovepipe_kernels::{convolve, instance_norm};
use stovepipe_pipeline::{KeyedRng, LayerError, nn::ChannelDropout};

/// Keeps the division by the deviation finite.
const EPSILON: f64 = 1e-5;
/// The slope of the rectifier where its input is negative.
const SLOPE: f64 = 0.01;

/// 3×3 convolution without bias, dropout of channels, normalization of each map by itself, leaky ReLU:
/// `[n, in, h, w]` to `[n, out, h, w]`.
#[derive(Module, Debug)]
pub struct Convolution {
    conv: Conv2d,
    dropout: ChannelDropout,
}

impl Convolution {
    pub(crate) fn new(channels: [usize; 2], dropout: f64, device: &Device) -> Self {
        let conv = Conv2dConfig::new(channels, [3, 3])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .with_bias(false)
            .init(device);
        Self {
            conv,
            dropout: ChannelDropout::new(dropout),
        }
    }

    pub(crate) fn forward(
        &self,
        x: Tensor<4>,
        draws: &mut KeyedRng,
    ) -> Result<Tensor<4>, LayerError> {
        check_channels(&self.conv, &x)?;
        check_deviates(&x)?;
        let x = self.dropout.forward(convolve(&self.conv, x), draws);
        Ok(leaky_relu(instance_norm(x, EPSILON), SLOPE))
    }
}

/// A map must have the channels that the convolution reads.
pub(crate) fn check_channels(conv: &Conv2d, x: &Tensor<4>) -> Result<(), LayerError> {
    let [_, channels, ..] = conv.weight.shape().dims::<4>();
    match x.dims()[1] == channels {
        true => Ok(()),
        false => Err(LayerError::new(
            format!("maps of {channels} channels"),
            format!("{:?}", x.dims()),
        )),
    }
}

/// A map of one pixel is its own mean: nothing would be left of it.
fn check_deviates(x: &Tensor<4>) -> Result<(), LayerError> {
    let [_, _, height, width] = x.dims();
    match height * width > 1 {
        true => Ok(()),
        false => Err(LayerError::new(
            "maps of more than one pixel (larger images, or less depth)",
            format!("{:?}", x.dims()),
        )),
    }
}
