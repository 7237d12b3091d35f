//! The last layer: from vectors to logits.

use burn::{
    module::{Module, Param},
    nn::LayerNorm,
    tensor::{Device, Tensor},
};
use stovepipe_kernels::linear_by_rows;
use stovepipe_pipeline::LayerError;

use super::{config::LmConfig, embedding::TokenEmbedding};
use crate::{
    block::{check_width, norm, normalized},
    initial,
};

/// A layer norm and a product with the table of tokens: `[n, length, d]` to logits
/// `[n, length, vocabulary]`.
#[derive(Module, Debug)]
pub struct LmHead {
    norm: LayerNorm,
    /// The same as the embedding's, if they are tied.
    tokens: Param<Tensor<2>>,
}

impl LmHead {
    pub(super) fn new(config: &LmConfig, embedding: &TokenEmbedding, device: &Device) -> Self {
        let shape = [config.vocabulary, config.d_model];
        let tied = config.tied.then(|| embedding.tokens.clone());
        Self {
            norm: norm(config.d_model, device),
            tokens: tied.unwrap_or_else(|| initial::normal(shape, 0.02, device)),
        }
    }

    pub(super) fn forward(&self, x: Tensor<3>) -> Result<Tensor<3>, LayerError> {
        let table = self.tokens.val();
        check_width(&x, "length", table.dims()[1])?;
        Ok(linear_by_rows(normalized(&self.norm, x, 1e-5), table, None))
    }
}
