//! The model for the engine: one type of layer, one type of value between layers.

use burn::{
    module::Module,
    tensor::{Device, Int, Tensor},
};
use stovepipe_pipeline::{Context, Flow, Layer, LayerError};

use super::{config::LmConfig, embedding::TokenEmbedding, head::LmHead};
use crate::{block::Block, error::TransformerError};

/// One layer of a language model.
#[derive(Module, Debug)]
pub enum LmLayer {
    /// From tokens to vectors.
    Embed(TokenEmbedding),
    /// Attention and a network.
    Block(Block),
    /// From vectors to logits.
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

impl LmConfig {
    /// Makes the L + 2 layers. Each parameter is allocated on `device` on first use.
    ///
    /// # Errors
    ///
    /// [`TransformerError`] if a size is 0 or more than 16,777,216, the heads do not divide the width, or
    /// the probability of dropout is not in [0, 1).
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use stovepipe_transformer::{LmConfig, TransformerError};
    ///
    /// let config = LmConfig::new(256, 64, 4, 128, 4).with_tied(false);
    /// assert_eq!(config.init(&Device::flex())?.len(), 4 + 2);
    ///
    /// let error = LmConfig::new(256, 64, 4, 128, 5).init(&Device::flex()).unwrap_err();
    /// assert_eq!(error, TransformerError::Heads { width: 128, heads: 5 });
    /// # Ok::<(), TransformerError>(())
    /// ```
    pub fn init(&self, device: &Device) -> Result<Vec<LmLayer>, TransformerError> {
        let block = self.block();
        TransformerError::check_sizes(&[
            ("the number of tokens", self.vocabulary),
            ("the length of a sequence", self.length),
            ("the number of blocks", self.layers),
        ])?;
        block.check()?;
        let embedding = TokenEmbedding::new(self, device);
        let head = LmHead::new(self, &embedding, device);
        let blocks = (0..self.layers).map(|_| LmLayer::Block(block.build(device)));
        let mut layers = vec![LmLayer::Embed(embedding)];
        layers.extend(blocks);
        layers.push(LmLayer::Head(head));
        Ok(layers)
    }
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
}
