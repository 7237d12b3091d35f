//! The configuration of a block.

use crate::error::TransformerError;

/// The settings of a [`Block`](crate::Block), for custom models.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockConfig {
    /// The width of the model.
    pub d_model: usize,
    /// Attention heads. The width is a multiple of them.
    pub heads: usize,
    /// The width of the network after attention.
    pub d_ff: usize,
    /// Whether a position sees only itself and those before it.
    pub causal: bool,
    /// ε of the layer norms.
    pub epsilon: f64,
    /// The probability of dropout on the hidden values of the network after attention, and on the output
    /// of both branches.
    pub dropout: f64,
    /// The probability of dropout on the attention weights.
    pub attention_dropout: f64,
    /// The probability that a sample skips a branch.
    pub drop_path: f64,
    /// The standard deviation of initial weights.
    pub deviation: f64,
    /// The same for the last linear layer of each branch.
    pub residual_deviation: f64,
}

impl BlockConfig {
    /// PyTorch's `TransformerEncoderLayer` without dropout: not causal, a network four times as wide as
    /// the model, ε of 1e-5, weights of standard deviation 0.02.
    #[must_use]
    pub fn new(d_model: usize, heads: usize) -> Self {
        Self {
            d_model,
            heads,
            // `init` checks it.
            d_ff: d_model.saturating_mul(4),
            causal: false,
            epsilon: 1e-5,
            dropout: 0.0,
            attention_dropout: 0.0,
            drop_path: 0.0,
            deviation: 0.02,
            residual_deviation: 0.02,
        }
    }

    pub(crate) fn check(&self) -> Result<(), TransformerError> {
        let (width, heads) = (self.d_model, self.heads);
        let of_network = if self.d_ff == width.saturating_mul(4) {
            "the width of the network in a block, four times that of the model,"
        } else {
            "the width of the network in a block"
        };
        TransformerError::check_sizes(&[
            ("the width of the model", width),
            ("the number of heads", heads),
            (of_network, self.d_ff),
        ])?;
        if !width.is_multiple_of(heads) {
            return Err(TransformerError::Heads { width, heads });
        }
        TransformerError::check_probabilities(&[
            ("dropout", self.dropout),
            ("dropout in attention", self.attention_dropout),
            ("drop-path", self.drop_path),
        ])
    }
}
