//! The model as an engine sees it: one type of layer, one type of value between layers.

use burn::{
    module::Module,
    tensor::{Int, Tensor},
};
use stovepipe_pipeline::{Context, Flow, Layer, LayerError};

use super::{embedding::TokenEmbedding, head::LmHead};
use crate::block::Block;

/// One layer of a language model.
#[derive(Module, Debug)]
pub enum LmLayer {
    /// Makes vectors of tokens.
    Embed(TokenEmbedding),
    /// Attention and a network.
    Block(Block),
    /// Makes logits of vectors.
    Head(LmHead),
}

/// What passes between the layers of a language model.
#[derive(Clone, Debug, Flow)]
pub enum LmFlow {
    /// Tokens `[n, length]`.
    Tokens(Tensor<2, Int>),
    /// Vectors `[n, length, d]`.
    States(Tensor<3>),
    /// Logits `[n, length, vocabulary]`.
    Logits(Tensor<3>),
}

impl LmFlow {
    fn describe(&self) -> String {
        match self {
            Self::Tokens(tokens) => format!("tokens {:?}", tokens.dims()),
            Self::States(states) => format!("states {:?}", states.dims()),
            Self::Logits(logits) => format!("logits {:?}", logits.dims()),
        }
    }
}

impl Layer for LmLayer {
    type Input = Tensor<2, Int>;
    type Flow = LmFlow;
    type Output = Tensor<3>;
    type Side = ();

    fn enter(tokens: Tensor<2, Int>) -> LmFlow {
        LmFlow::Tokens(tokens)
    }

    fn forward(&self, flow: LmFlow, context: &mut Context<'_, Self>) -> Result<LmFlow, LayerError> {
        match (self, flow) {
            (Self::Embed(embedding), LmFlow::Tokens(tokens)) => {
                Ok(LmFlow::States(embedding.forward(tokens, context.rng())?))
            }
            (Self::Block(block), LmFlow::States(x)) => {
                Ok(LmFlow::States(block.forward(x, context.rng())?))
            }
            (Self::Head(head), LmFlow::States(x)) => Ok(LmFlow::Logits(head.forward(x)?)),
            (Self::Embed(_), flow) => Err(LayerError::new("tokens", flow.describe())),
            (_, flow) => Err(LayerError::new("states", flow.describe())),
        }
    }

    fn leave(flow: LmFlow) -> Result<Tensor<3>, LayerError> {
        match flow {
            LmFlow::Logits(logits) => Ok(logits),
            other => Err(LayerError::new("logits", other.describe())),
        }
    }

    fn name(&self) -> String {
        let name = match self {
            Self::Embed(_) => "Embed",
            Self::Block(_) => "Block",
            Self::Head(_) => "Head",
        };
        name.to_owned()
    }
}
