//! A Transformer-shaped stack of equal layers: stages of it can be balanced exactly.

use burn::{
    module::Module,
    nn::{
        LayerNorm, LayerNormConfig,
        attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig},
        transformer::{PositionWiseFeedForward, PositionWiseFeedForwardConfig},
    },
    tensor::{Device, Tensor},
};
use stovepipe::prelude::*;

/// Attention and a GELU MLP of four times the width, each after a layer norm and beside a residual:
/// `[n, length, d]` to the same. Without dropout.
#[derive(Module, Debug)]
pub struct TransformerLayer {
    norm_attention: LayerNorm,
    attention: MultiHeadAttention,
    norm_mlp: LayerNorm,
    mlp: PositionWiseFeedForward,
}

impl TransformerLayer {
    /// A layer of width `d`.
    #[must_use]
    pub fn new(d: usize, heads: usize, device: &Device) -> Self {
        let norm = || LayerNormConfig::new(d).init(device);
        Self {
            norm_attention: norm(),
            attention: MultiHeadAttentionConfig::new(d, heads)
                .with_dropout(0.0)
                .init(device),
            norm_mlp: norm(),
            mlp: PositionWiseFeedForwardConfig::new(d, 4 * d)
                .with_dropout(0.0)
                .init(device),
        }
    }
}

impl Layer for TransformerLayer {
    type Input = Tensor<3>;
    type Flow = Tensor<3>;
    type Output = Tensor<2>;
    type Side = ();

    fn enter(input: Tensor<3>) -> Tensor<3> {
        input
    }

    fn forward(&self, x: Tensor<3>, _: &mut Context<'_, Self>) -> Result<Tensor<3>, Miswired> {
        let normal = self.norm_attention.forward(x.clone());
        let x = x + self.attention.forward(MhaInput::self_attn(normal)).context;
        let normal = self.norm_mlp.forward(x.clone());
        Ok(x + self.mlp.forward(normal))
    }

    /// The mean over the sequence stands for logits of `d` classes, so that no layer differs.
    fn leave(x: Tensor<3>) -> Result<Tensor<2>, Miswired> {
        let [samples, _, d] = x.dims();
        Ok(x.mean_dim(1).reshape([samples, d]))
    }
}
