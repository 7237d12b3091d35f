//! The numbers that a user chooses.

use burn::{config::Config, tensor::Device};

use super::{embedding::TokenEmbedding, head::LmHead, layer::LmLayer, positions::Positions};
use crate::{block::BlockConfig, error::TransformerError};

/// A language model: an embedding, blocks with attention, a layer norm and a softmax over words.
///
/// By default it is of GPT-2's kind (Radford et al., "Language Models are Unsupervised Multitask
/// Learners", 2019): learned positions, the softmax tied to the embedding, dropout of 0.1. Weights begin
/// as there, too: normal with a standard deviation of 0.02, and at the end of each branch of 0.02 / √2L.
#[derive(Config, Debug, PartialEq)]
pub struct LmConfig {
    /// The number of different tokens.
    pub vocabulary: usize,
    /// The most tokens of a sequence.
    pub length: usize,
    /// L, the number of blocks. The model has two more layers.
    pub layers: usize,
    /// The width of the model.
    pub d_model: usize,
    /// Attention heads, which divide the width.
    pub heads: usize,
    /// The width of the network in a block: four times that of the model if not given.
    pub d_ff: Option<usize>,
    /// The probability of dropout: of what is embedded, of what attention looks at, of hidden numbers,
    /// and of what each branch adds.
    #[config(default = 0.1)]
    pub dropout: f64,
    /// Whether the softmax has the table of the embedding, and not one of its own (Press and Wolf, "Using
    /// the Output Embedding to Improve Language Models", 2017).
    #[config(default = true)]
    pub tied: bool,
    /// Whether a token is told of those before it only, as a model must that is to continue texts.
    #[config(default = true)]
    pub causal: bool,
    /// How the model knows where a token stands.
    #[config(default = "Positions::Learned")]
    pub positions: Positions,
}

impl LmConfig {
    /// Transformer-L of Huang et al. (2019): width 2048, 8192 within a block, 32 heads, 32,000 words,
    /// sequences of 1024, an embedding and a softmax of their own, and positions that are not learned:
    /// L · 50.36M + 131.07M parameters. No dropout, of which the paper says nothing.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use stovepipe_pipeline::count_parameters;
    /// use stovepipe_transformer::LmConfig;
    ///
    /// let layers = LmConfig::transformer_l(103).init(&Device::flex())?;
    /// let billions = count_parameters(&layers) as f64 / 1e9; // none allocated
    /// assert!((billions - 5.3).abs() < 0.05);
    /// # Ok::<(), stovepipe_transformer::TransformerError>(())
    /// ```
    #[must_use]
    pub fn transformer_l(layers: usize) -> Self {
        Self::new(32_000, 1024, layers, 2048, 32)
            .with_tied(false)
            .with_positions(Positions::Sinusoidal)
            .with_dropout(0.0)
    }

    /// Makes the layers, L + 2 of them; each parameter is allocated on `device` when it is first used.
    ///
    /// # Errors
    ///
    /// [`TransformerError`] if a size is 0 or more than 16,777,216, the heads do not divide the width, or
    /// the probability of dropout is not at least 0 and less than 1.
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

    fn block(&self) -> BlockConfig {
        let block = BlockConfig::new(self.d_model, self.heads);
        BlockConfig {
            d_ff: self.d_ff.unwrap_or(self.d_model.saturating_mul(4)),
            causal: self.causal,
            dropout: self.dropout,
            attention_dropout: self.dropout,
            residual_deviation: block.deviation / (2.0 * self.layers as f64).sqrt(),
            ..block
        }
    }
}
