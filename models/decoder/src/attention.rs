//! Self-attention.

use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
use stovepipe_kernels::{Heads, Rotation, attention};
use stovepipe_pipeline::{KeyedRng, nn::Dropout};

use crate::{
    config::DecoderConfig,
    linear::{DecoderLinear, Values},
    norm::DecoderNorm,
};

/// Causal attention in heads that share keys and values: `[n, length, width]` to the same.
#[derive(Module, Debug)]
pub struct DecoderAttention {
    q_proj: DecoderLinear,
    k_proj: DecoderLinear,
    v_proj: DecoderLinear,
    o_proj: DecoderLinear,
    /// Of each head.
    q_norm: Option<DecoderNorm>,
    k_norm: Option<DecoderNorm>,
    dropout: Dropout,
    #[module(skip)]
    heads: Heads,
    #[module(skip)]
    rotation: Rotation,
}

impl DecoderAttention {
    pub(crate) fn new(
        config: &DecoderConfig,
        rotation: &Rotation,
        values: Values,
        device: &Device,
    ) -> Self {
        let linear = |sizes, has_bias| DecoderLinear::new(sizes, has_bias, values, device);
        let [queries, keys] = [config.heads, config.keys].map(|heads| heads * config.head_width);
        let norm = || DecoderNorm::new(config.head_width, config.epsilon, values, device);
        Self {
            q_proj: linear([config.width, queries], config.projection_bias),
            k_proj: linear([config.width, keys], config.projection_bias),
            v_proj: linear([config.width, keys], config.projection_bias),
            o_proj: linear([queries, config.width], config.output_bias),
            q_norm: config.head_norms.then(norm),
            k_norm: config.head_norms.then(norm),
            dropout: Dropout::new(config.attention_dropout),
            heads: Heads {
                keys: config.keys,
                ..Heads::new(config.heads, true)
            },
            rotation: rotation.clone(),
        }
    }

    pub(crate) fn forward(&self, x: Tensor<3>, rng: &mut KeyedRng) -> Tensor<3> {
        let [samples, length, _] = x.dims();
        let Heads { count, keys, .. } = self.heads;
        let q = self.q_proj.forward(x.clone(), rng);
        let k = self.k_proj.forward(x.clone(), rng);
        let v = self.v_proj.forward(x, rng);
        let q = normalized(self.q_norm.as_ref(), q, count);
        let k = normalized(self.k_norm.as_ref(), k, keys);
        let projected = Tensor::cat(vec![q, k, v], 2);
        let projected = self.rotation.of_heads(projected, count + keys);
        let square = [samples, count, length, length];
        let mask = self.dropout.mask(&square, rng);
        self.o_proj
            .forward(attention(projected, self.heads, mask), rng)
    }
}

impl DecoderAttention {
    /// Changes each linear layer, given its name in a block, and the norms.
    pub(crate) fn map(
        self,
        linear: &impl Fn(&str, DecoderLinear) -> DecoderLinear,
        norm: &impl Fn(DecoderNorm) -> DecoderNorm,
    ) -> Self {
        Self {
            q_proj: linear("self_attn.q_proj", self.q_proj),
            k_proj: linear("self_attn.k_proj", self.k_proj),
            v_proj: linear("self_attn.v_proj", self.v_proj),
            o_proj: linear("self_attn.o_proj", self.o_proj),
            q_norm: self.q_norm.map(norm),
            k_norm: self.k_norm.map(norm),
            ..self
        }
    }

    pub(crate) fn linears(&self) -> [&DecoderLinear; 4] {
        [&self.q_proj, &self.k_proj, &self.v_proj, &self.o_proj]
    }
}

fn normalized(norm: Option<&DecoderNorm>, x: Tensor<3>, heads: usize) -> Tensor<3> {
    let Some(norm) = norm else { return x };
    let [samples, length, width] = x.dims();
    let by_heads = x.reshape([samples, length, heads, width / heads]);
    norm.forward(by_heads).reshape([samples, length, width])
}
