//! Attention of a sequence with itself.

use burn::{module::Module, nn::Linear, tensor::Tensor};
use stovepipe_kernels::{Heads, attention, linear};
use stovepipe_pipeline::{KeyedRng, nn::Dropout};

use crate::{block::BlockConfig, initial};

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
    pub(crate) fn new(config: &BlockConfig, device: &burn::tensor::Device) -> Self {
        let d = config.d_model;
        Self {
            qkv: initial::linear([d, 3 * d], config.deviation, device),
            output: initial::linear([d, d], config.residual_deviation, device),
            dropout: Dropout::new(config.attention_dropout),
            heads: Heads {
                count: config.heads,
                causal: config.causal,
            },
        }
    }

    pub(crate) fn forward(&self, x: Tensor<3>, draws: &mut KeyedRng) -> Tensor<3> {
        let [samples, length, _] = x.dims();
        let square = [samples, self.heads.count, length, length];
        let kept = self.dropout.factors(square, draws, &x.device());
        let mixed = attention(apply(&self.qkv, x), self.heads, kept);
        apply(&self.output, mixed)
    }
}

/// What `layer.forward(x)` returns.
pub(crate) fn apply<const D: usize>(layer: &Linear, x: Tensor<D>) -> Tensor<D> {
    linear(
        x,
        layer.weight.val(),
        layer.bias.as_ref().map(|bias| bias.val()),
    )
}
