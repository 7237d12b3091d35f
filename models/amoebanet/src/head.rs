//! The last layer: from features to classes.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::{Device, Tensor},
};
use stovepipe_pipeline::LayerError;

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
pub(crate) fn mean_over_map(x: Tensor<4>) -> Tensor<2> {
    x.flatten::<3>(2, 3).mean_dim(2).flatten(1, 2)
}
