//! Self-attention.

use burn::{
    module::Module,
    nn::Linear,
    tensor::{Device, Tensor},
};
use stovepipe_kernels::{Heads, attention, linear};
use stovepipe_pipeline::{KeyedRng, nn::Dropout};

use crate::{block_config::BlockConfig, initial};

/// Attention in several heads: `[n, length, d]` to the same.
#[derive(Module, Debug)]
pub struct SelfAttention {
    /// Queries, keys and values next to each other.
    qkv: Linear,
    output: Linear,
    dropout: Dropout,
    #[module(skip)]
    heads: Heads,
}

impl SelfAttention {
    pub(crate) fn new(config: &BlockConfig, device: &Device) -> Self {
        let d = config.d_model;
        Self {
            qkv: initial::linear([d, 3 * d], config.deviation, device),
            output: initial::linear([d, d], config.residual_deviation, device),
            dropout: Dropout::new(config.attention_dropout),
            heads: Heads::new(config.heads, config.causal),
        }
    }

    pub(crate) fn forward(&self, x: Tensor<3>, rng: &mut KeyedRng) -> Tensor<3> {
        let [samples, length, _] = x.dims();
        let square = [samples, self.heads.count, length, length];
        let mask = self.dropout.mask(&square, rng);
        let mixed = attention(apply(&self.qkv, x), self.heads, mask);
        apply(&self.output, mixed)
    }
}

/// `layer.forward(x)`.
pub(crate) fn apply<const D: usize>(layer: &Linear, x: Tensor<D>) -> Tensor<D> {
    let bias = layer.bias.as_ref().map(|bias| bias.val());
    linear(x, layer.weight.val(), bias)
}
