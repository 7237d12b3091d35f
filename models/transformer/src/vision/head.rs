//! The last layer: from tokens to classes.

use burn::{
    module::Module,
    nn::{LayerNorm, Linear},
    tensor::{Device, Tensor},
};
use stovepipe_pipeline::LayerError;

use super::{
    EPSILON,
    config::{Pool, VitConfig},
};
use crate::{
    attention::apply,
    block::{check_width, norm, normalized},
    initial,
};

/// The class token or the mean of all, a layer norm and a linear layer: `[n, tokens, d]` to logits
/// `[n, classes]`.
#[derive(Module, Debug)]
pub struct VitHead {
    norm: LayerNorm,
    classes: Linear,
    width: usize,
    takes_first: bool,
}

impl VitHead {
    pub(super) fn new(config: &VitConfig, device: &Device) -> Self {
        let width = config.d_model;
        Self {
            norm: norm(width, device),
            classes: initial::linear([width, config.classes], 0.02, device),
            width,
            takes_first: config.pool == Pool::ClassToken,
        }
    }

    pub(super) fn forward(&self, x: Tensor<3>) -> Result<Tensor<2>, LayerError> {
        check_width(&x, "tokens", self.width)?;
        let [samples, _, width] = x.dims();
        let pooled = if self.takes_first {
            x.narrow(1, 0, 1)
        } else {
            x.mean_dim(1)
        };
        let pooled = pooled.reshape([samples, width]);
        let normal = normalized(&self.norm, pooled, EPSILON);
        Ok(apply(&self.classes, normal))
    }
}
