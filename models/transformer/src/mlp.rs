//! The network of a block, applied to each position.

use burn::{
    module::Module,
    nn::Linear,
    tensor::{Device, Tensor},
};
use stovepipe_kernels::gelu;
use stovepipe_pipeline::{KeyedRng, nn::Dropout};

use crate::{attention::apply, block_config::BlockConfig, initial};

/// Two linear layers with a GELU between them: `[n, length, d]` to the same.
#[derive(Module, Debug)]
pub struct Mlp {
    inner: Linear,
    outer: Linear,
    dropout: Dropout,
}

impl Mlp {
    pub(crate) fn new(config: &BlockConfig, device: &Device) -> Self {
        let (d, wide) = (config.d_model, config.d_ff);
        Self {
            inner: initial::linear([d, wide], config.deviation, device),
            outer: initial::linear([wide, d], config.residual_deviation, device),
            dropout: Dropout::new(config.dropout),
        }
    }

    pub(crate) fn forward(&self, x: Tensor<3>, rng: &mut KeyedRng) -> Tensor<3> {
        let hidden = gelu(apply(&self.inner, x));
        apply(&self.outer, self.dropout.forward(hidden, rng))
    }
}
