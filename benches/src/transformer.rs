//! A stack of equal Transformer blocks: stages of it can be balanced exactly.

use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
use stovepipe::prelude::*;
use stovepipe_transformer::{Block, BlockConfig};

use crate::Failure;

/// A block of `models/transformer` as a layer, without dropout: `[n, length, d]` to the same.
#[derive(Module, Debug)]
pub struct TransformerLayer {
    block: Block,
}

impl TransformerLayer {
    /// A layer of width `d`.
    ///
    /// # Errors
    ///
    /// If the heads do not divide the width.
    pub fn new(d: usize, heads: usize, device: &Device) -> Result<Self, Failure> {
        let block = BlockConfig::new(d, heads).init(device)?;
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
    ) -> Result<Tensor<3>, Miswired> {
        self.block.forward(x, context.draws())
    }

    /// The mean over the sequence stands for logits of `d` classes, so that no layer differs.
    fn leave(x: Tensor<3>) -> Result<Tensor<2>, Miswired> {
        let [samples, _, d] = x.dims();
        Ok(x.mean_dim(1).reshape([samples, d]))
    }
}
