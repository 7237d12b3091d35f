//! The blocks.

use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
use stovepipe_kernels::Rotation;
use stovepipe_pipeline::{KeyedRng, LayerError};

use crate::{
    attention::DecoderAttention,
    config::DecoderConfig,
    linear::{DecoderLinear, Values},
    mlp::DecoderMlp,
    norm::DecoderNorm,
};

/// Attention and a gated network, each after a norm and beside a residual: `[n, length, width]` to the
/// same.
#[derive(Module, Debug)]
pub struct DecoderBlock {
    input_layernorm: DecoderNorm,
    self_attn: DecoderAttention,
    post_attention_layernorm: DecoderNorm,
    mlp: DecoderMlp,
    width: usize,
    length: usize,
}

impl DecoderBlock {
    pub(crate) fn new(
        config: &DecoderConfig,
        rotation: &Rotation,
        values: Values,
        device: &Device,
    ) -> Self {
        let norm = || DecoderNorm::new(config.width, config.epsilon, values, device);
        Self {
            input_layernorm: norm(),
            self_attn: DecoderAttention::new(config, rotation, values, device),
            post_attention_layernorm: norm(),
            mlp: DecoderMlp::new(config, values, device),
            width: config.width,
            length: config.length,
        }
    }

    pub(crate) fn forward(
        &self,
        x: Tensor<3>,
        rng: &mut KeyedRng,
    ) -> Result<Tensor<3>, LayerError> {
        let [_, length, width] = x.dims();
        if width != self.width || length > self.length {
            let expected = format!("states [n, up to {}, {}]", self.length, self.width);
            return Err(LayerError::new(expected, format!("{:?}", x.dims())));
        }
        let x = self.input_layernorm.cast(x);
        let branch = self
            .self_attn
            .forward(self.input_layernorm.forward(x.clone()), rng);
        let x = x + branch;
        let branch = self
            .mlp
            .forward(self.post_attention_layernorm.forward(x.clone()), rng);
        Ok(x + branch)
    }

    /// Changes each linear layer, given its name in the block, and the norms.
    pub(crate) fn map(
        self,
        linear: &impl Fn(&str, DecoderLinear) -> DecoderLinear,
        norm: impl Fn(DecoderNorm) -> DecoderNorm,
    ) -> Self {
        Self {
            input_layernorm: norm(self.input_layernorm),
            self_attn: self.self_attn.map(linear, &norm),
            post_attention_layernorm: norm(self.post_attention_layernorm),
            mlp: self.mlp.map(linear),
            ..self
        }
    }

    /// Its linear layers, with their names in the block.
    pub(crate) fn linears(&self) -> [(&'static str, &DecoderLinear); 7] {
        let [q, k, v, o] = self.self_attn.linears();
        let [gate, up, down] = self.mlp.linears();
        let [a, b, c, d, e, f, g] = LINEARS;
        [
            (a, q),
            (b, k),
            (c, v),
            (d, o),
            (e, gate),
            (f, up),
            (g, down),
        ]
    }
}

/// The names of a block's linear layers.
pub(crate) const LINEARS: [&str; 7] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];
