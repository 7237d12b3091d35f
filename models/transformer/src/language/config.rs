//! The configuration.

use burn::config::Config;

use super::positions::Positions;
use crate::block_config::BlockConfig;

/// A language model: an embedding, blocks with attention, a layer norm and a softmax over tokens.
///
/// By default it is like GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners",
/// 2019): learned positions, the softmax tied to the embedding, dropout of 0.1, normal initial weights
/// with a standard deviation of 0.02, and of 0.02 / √2L at the end of each branch.
#[derive(Config, Debug, PartialEq)]
pub struct LmConfig {
    /// The number of different tokens.
    pub vocabulary: usize,
    /// The maximum length of a sequence.
    pub length: usize,
    /// L, the number of blocks. The model has two more layers.
    pub layers: usize,
    /// The width of the model.
    pub d_model: usize,
    /// Attention heads. The width is a multiple of them.
    pub heads: usize,
    /// The width of the network in a block: by default four times that of the model.
    pub d_ff: Option<usize>,
    /// The probability of dropout: on embeddings, attention weights, hidden values, and the output of
    /// each branch.
    #[config(default = 0.1)]
    pub dropout: f64,
    /// Whether the softmax shares the table of the embedding (Press and Wolf, "Using the Output Embedding
    /// to Improve Language Models", 2017).
    #[config(default = true)]
    pub tied: bool,
    /// Whether a token sees only those before it, which generating text requires.
    #[config(default = true)]
    pub causal: bool,
    /// How positions are encoded.
    #[config(default = "Positions::Learned")]
    pub positions: Positions,
}

impl LmConfig {
    /// Transformer-L of Huang et al. (2019): width 2048, 8192 within a block, 32 heads, 32,000 tokens,
    /// sequences of 1024, a separate embedding and softmax, and sinusoidal positions: L · 50.36M +
    /// 131.07M parameters. No dropout, which the paper does not mention.
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
        let config = Self::new(32_000, 1024, layers, 2048, 32).with_tied(false);
        (config.with_positions(Positions::Sinusoidal)).with_dropout(0.0)
    }

    pub(super) fn block(&self) -> BlockConfig {
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
