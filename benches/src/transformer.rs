//! A stack of equal Transformer blocks, which can be balanced exactly.

use burn::{
    module::Module,
    store::KeyRemapper,
    tensor::{Device, Tensor},
};
use stovepipe::prelude::*;
use stovepipe_transformer::{Block, BlockConfig};

use crate::Failure;

/// A block of `models/transformer` as a layer: `[n, length, d]` to the same.
#[derive(Module, Debug)]
pub struct TransformerLayer {
    block: Block,
}

impl TransformerLayer {
    pub fn new(config: &BlockConfig, device: &Device) -> Result<Self, Failure> {
        let block = config.init(device)?;
        Ok(Self { block })
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

    fn forward(
        &self,
        x: Tensor<3>,
        context: &mut Context<'_, Self>,
    ) -> Result<Tensor<3>, LayerError> {
        self.block.forward(x, context.rng())
    }

    /// The mean over the sequence is used as logits of `d` classes, so that all layers are equal.
    fn leave(x: Tensor<3>) -> Result<Tensor<2>, LayerError> {
        let [samples, _, d] = x.dims();
        Ok(x.mean_dim(1).reshape([samples, d]))
    }
}

/// Parameter names of PyTorch's `TransformerEncoderLayer`, and ours.
const PARTS: [(&str, &str); 6] = [
    (r"self_attn\.in_proj_", "attention.qkv."),
    (r"self_attn\.out_proj\.", "attention.output."),
    (r"linear1\.", "mlp.inner."),
    (r"linear2\.", "mlp.outer."),
    (r"norm1\.", "norm_attention."),
    (r"norm2\.", "norm_mlp."),
];

/// Renames the tensors of a stack of PyTorch's layers to ours.
pub fn torch_keys() -> Result<KeyRemapper, Failure> {
    let patterns = PARTS.map(|(theirs, ours)| {
        let pattern = format!(r"^(\d+)\.{theirs}(\w+)$");
        (pattern, format!("${{1}}.block.{ours}${{2}}"))
    });
    Ok(KeyRemapper::from_patterns(patterns.into())?)
}
