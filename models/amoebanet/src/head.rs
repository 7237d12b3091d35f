//! Classifiers: at the end of the network, and in its middle, whose loss helps to train the early layers.

use burn::{
    module::Module,
    nn::{
        Linear, LinearConfig,
        pool::{AvgPool2d, AvgPool2dConfig},
    },
    tensor::{Device, Tensor, activation::relu},
};
use stovepipe_pipeline::LayerError;

use crate::convolution::ReluConvNorm;

/// Mean over the map, then a linear layer: `[n, channels, h, w]` to logits `[n, classes]`.
#[derive(Module, Debug)]
pub struct Classifier {
    fc: Linear,
    channels: usize,
}

impl Classifier {
    pub(crate) fn new(channels: usize, classes: usize, device: &Device) -> Self {
        Self {
            fc: LinearConfig::new(channels, classes).init(device),
            channels,
        }
    }

    pub(crate) fn forward(&self, x: Tensor<4>) -> Result<Tensor<2>, LayerError> {
        let [_, channels, ..] = x.dims();
        if channels != self.channels {
            return Err(LayerError::new(
                format!("a state of {} channels", self.channels),
                format!("{:?}", x.dims()),
            ));
        }
        Ok(self.fc.forward(mean_over_map(x)))
    }
}

/// `[n, c, h, w]` to `[n, c]`.
fn mean_over_map(x: Tensor<4>) -> Tensor<2> {
    x.flatten::<3>(2, 3).mean_dim(2).flatten(1, 2)
}

const WINDOW: usize = 5;
/// The channels after the first convolution and after the second.
const CHANNELS: [usize; 2] = [128, 768];

/// The auxiliary head of the reference AmoebaNet: `[n, c, h, w]` to logits `[n, classes]`.
///
/// ReLU, mean over 5×5 with stride 3, 1×1 convolution to 128 channels, a convolution over the whole
/// map to 768, linear; batch norm and ReLU after each convolution. Images may have any size here,
/// so the convolution over the map is a mean over it and a 1×1 convolution, and a map smaller than
/// 5×5 is averaged as a whole.
#[derive(Module, Debug)]
pub struct AuxiliaryHead {
    pool: AvgPool2d,
    narrow: ReluConvNorm,
    widen: ReluConvNorm,
    fc: Linear,
}

impl AuxiliaryHead {
    pub(crate) fn new(channels: usize, classes: usize, device: &Device) -> Self {
        let ([few, many], pool) = (CHANNELS, AvgPool2dConfig::new([WINDOW; 2]));
        let conv_1x1 = |channels| ReluConvNorm::new(channels, [1, 1], [1, 1], device);
        Self {
            pool: pool.with_strides([3, 3]).init(),
            narrow: conv_1x1([channels, few]),
            widen: conv_1x1([few, many]),
            fc: LinearConfig::new(many, classes).init(device),
        }
    }

    pub(crate) fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        // A mean of rectified values needs no second ReLU.
        let x = self.narrow.conv_norm(self.pool(relu(x)));
        let x = self.widen.conv_norm(whole_map(relu(x)));
        self.fc.forward(relu(x).flatten(1, 3))
    }

    fn pool(&self, x: Tensor<4>) -> Tensor<4> {
        let [_, _, height, width] = x.dims();
        if height.min(width) < WINDOW {
            whole_map(x)
        } else {
            self.pool.forward(x)
        }
    }
}

/// The mean over the map, as a map of one pixel: `[n, c, 1, 1]`.
fn whole_map(x: Tensor<4>) -> Tensor<4> {
    let [samples, channels, ..] = x.dims();
    mean_over_map(x).reshape([samples, channels, 1, 1])
}
