//! The layer that Transformers are made of.

use burn::{
    module::Module,
    nn::{LayerNorm, LayerNormConfig},
    tensor::{Device, Tensor},
};
use stovepipe_kernels::layer_norm;
use stovepipe_pipeline::{
    KeyedRng, LayerError,
    nn::{DropPath, Dropout},
};

use crate::{attention::SelfAttention, error::TransformerError, mlp::Mlp};

/// A block by itself: what both models give their own, for models of one's own.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockConfig {
    /// The width of the model.
    pub d_model: usize,
    /// Attention heads, which divide the width.
    pub heads: usize,
    /// The width of the network after attention.
    pub d_ff: usize,
    /// Whether a place looks at itself and those before it only.
    pub causal: bool,
    /// ε of the layer norms.
    pub epsilon: f64,
    /// The probability of dropout on the hidden numbers of the network after attention, and on what
    /// either branch adds.
    pub dropout: f64,
    /// The probability of dropout on what attention looks at.
    pub attention_dropout: f64,
    /// The probability that a sample goes without a branch.
    pub drop_path: f64,
    /// The standard deviation of weights at first.
    pub deviation: f64,
    /// That of the linear layers at the end of each branch.
    pub residual_deviation: f64,
}

impl BlockConfig {
    /// A block as PyTorch's `TransformerEncoderLayer` has it, but that nothing is dropped: every place
    /// looks at all, the network is four times as wide, ε is 1e-5, weights begin at 0.02.
    #[must_use]
    pub fn new(d_model: usize, heads: usize) -> Self {
        Self {
            d_model,
            heads,
            // What is too large is said when the block is made.
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

    /// Makes the block; each parameter is allocated on `device` when it is first used.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use stovepipe_pipeline::KeyedRng;
    /// use stovepipe_transformer::BlockConfig;
    ///
    /// let block = BlockConfig::new(16, 4).init(&Device::flex())?;
    /// let y = block.forward(Tensor::ones([2, 5, 16], &Device::flex()), &mut KeyedRng::none())?;
    /// assert_eq!(y.dims(), [2, 5, 16]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TransformerError`] if a size is 0 or more than 16,777,216, the heads do not divide the width, or a
    /// probability is not at least 0 and less than 1.
    pub fn init(&self, device: &Device) -> Result<Block, TransformerError> {
        self.check()?;
        Ok(self.build(device))
    }

    pub(crate) fn check(&self) -> Result<(), TransformerError> {
        let (width, heads) = (self.d_model, self.heads);
        let of_network = match self.d_ff == width.saturating_mul(4) {
            true => "the width of the network in a block, four times that of the model,",
            false => "the width of the network in a block",
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

    /// Of numbers that have been checked.
    pub(crate) fn build(&self, device: &Device) -> Block {
        let norm = || norm(self.d_model, device);
        Block {
            norm_attention: norm(),
            attention: SelfAttention::new(self, device),
            norm_mlp: norm(),
            mlp: Mlp::new(self, device),
            dropout: Dropout::new(self.dropout),
            drop_path: DropPath::new(self.drop_path),
            epsilon: self.epsilon,
            width: self.d_model,
        }
    }
}

/// Attention and a network of two linear layers, each after a layer norm and beside a residual:
/// `[n, length, d]` to the same.
#[derive(Module, Debug)]
pub struct Block {
    norm_attention: LayerNorm,
    attention: SelfAttention,
    norm_mlp: LayerNorm,
    mlp: Mlp,
    dropout: Dropout,
    drop_path: DropPath,
    /// Burn's norms do not show theirs.
    epsilon: f64,
    width: usize,
}

impl Block {
    /// Runs the block; `draws` are a layer's random numbers.
    ///
    /// # Errors
    ///
    /// [`LayerError`] if `x` has another width.
    pub fn forward(&self, x: Tensor<3>, draws: &mut KeyedRng) -> Result<Tensor<3>, LayerError> {
        if x.dims()[2] != self.width {
            let expected = format!("states [n, length, {}]", self.width);
            return Err(LayerError::new(expected, format!("{:?}", x.dims())));
        }
        let normal = normalized(&self.norm_attention, x.clone(), self.epsilon);
        let branch = self.attention.forward(normal, draws);
        let x = self.add(x, branch, draws);
        let normal = normalized(&self.norm_mlp, x.clone(), self.epsilon);
        let branch = self.mlp.forward(normal, draws);
        Ok(self.add(x, branch, draws))
    }

    fn add(&self, x: Tensor<3>, branch: Tensor<3>, draws: &mut KeyedRng) -> Tensor<3> {
        let branch = self.dropout.forward(branch, draws);
        x + self.drop_path.forward(branch, draws)
    }
}

pub(crate) fn norm(width: usize, device: &Device) -> LayerNorm {
    LayerNormConfig::new(width).init(device)
}

/// What `norm.forward(x)` returns, if `norm` was made with this ε.
pub(crate) fn normalized<const D: usize>(
    norm: &LayerNorm,
    x: Tensor<D>,
    epsilon: f64,
) -> Tensor<D> {
    let gamma = norm.gamma.val();
    let beta = match &norm.beta {
        Some(beta) => beta.val(),
        None => gamma.zeros_like(),
    };
    layer_norm(x, gamma, beta, epsilon)
}
