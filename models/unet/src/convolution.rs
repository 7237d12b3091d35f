//! The convolutions of a level.

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

const EPSILON: f64 = 1e-5;
const SLOPE: f64 = 0.01;

/// 3×3 convolution without bias, dropout of channels, instance norm, leaky ReLU:
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
        rng: &mut KeyedRng,
    ) -> Result<Tensor<4>, LayerError> {
        check_channels(&self.conv, &x)?;
        check_pixels(&x)?;
        let x = self.dropout.forward(convolve(&self.conv, x), rng);
        Ok(leaky_relu(instance_norm(x, EPSILON), SLOPE))
    }
}

/// Refuses maps with other channels than the convolution's.
pub(crate) fn check_channels(conv: &Conv2d, x: &Tensor<4>) -> Result<(), LayerError> {
    let [_, channels, ..] = conv.weight.shape().dims::<4>();
    let expected = || format!("maps of {channels} channels");
    ensure(x.dims()[1] == channels, expected, x)
}

/// Refuses maps of one pixel: such a map is its own mean, and normalization would leave nothing.
fn check_pixels(x: &Tensor<4>) -> Result<(), LayerError> {
    let [_, _, height, width] = x.dims();
    let expected = || "maps of more than one pixel (larger images, or less depth)".to_owned();
    ensure(height * width > 1, expected, x)
}

/// An error with the sizes of `x`, unless it fits.
pub(crate) fn ensure(
    fits: bool,
    expected: impl FnOnce() -> String,
    x: &Tensor<4>,
) -> Result<(), LayerError> {
    if fits {
        return Ok(());
    }
    Err(LayerError::new(expected(), format!("{:?}", x.dims())))
}
