//! The blocks of Transformers.

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

use crate::{
    attention::SelfAttention, block_config::BlockConfig, error::TransformerError, mlp::Mlp,
};

impl BlockConfig {
    /// Makes the block. Each parameter is allocated on `device` on first use.
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
    /// [`TransformerError`] if a size is 0 or more than 16,777,216, the heads do not divide the width, or
    /// a probability is not in [0, 1).
    pub fn init(&self, device: &Device) -> Result<Block, TransformerError> {
        self.check()?;
        Ok(self.build(device))
    }

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
    /// Of the norms: Burn's norms have no getter for it.
    epsilon: f64,
    width: usize,
}

impl Block {
    /// Runs the block with a layer's random numbers.
    ///
    /// # Errors
    ///
    /// [`LayerError`] if `x` has another width.
    pub fn forward(&self, x: Tensor<3>, rng: &mut KeyedRng) -> Result<Tensor<3>, LayerError> {
        check_width(&x, "length", self.width)?;
        let normal = normalized(&self.norm_attention, x.clone(), self.epsilon);
        let branch = self.attention.forward(normal, rng);
        let x = self.add(x, branch, rng);
        let normal = normalized(&self.norm_mlp, x.clone(), self.epsilon);
        let branch = self.mlp.forward(normal, rng);
        Ok(self.add(x, branch, rng))
    }

    fn add(&self, x: Tensor<3>, branch: Tensor<3>, rng: &mut KeyedRng) -> Tensor<3> {
        let branch = self.dropout.forward(branch, rng);
        x + self.drop_path.forward(branch, rng)
    }
}

pub(crate) fn norm(width: usize, device: &Device) -> LayerNorm {
    LayerNormConfig::new(width).init(device)
}

/// Refuses states `[n, {axis}, …]` of another width.
pub(crate) fn check_width(x: &Tensor<3>, axis: &str, width: usize) -> Result<(), LayerError> {
    if x.dims()[2] == width {
        return Ok(());
    }
    let expected = format!("states [n, {axis}, {width}]");
    Err(LayerError::new(expected, format!("{:?}", x.dims())))
}

/// `norm.forward(x)`, for a `norm` with this ε.
pub(crate) fn normalized<const D: usize>(
    norm: &LayerNorm,
    x: Tensor<D>,
    epsilon: f64,
) -> Tensor<D> {
    let gamma = norm.gamma.val();
    let beta = (norm.beta.as_ref()).map_or_else(|| gamma.zeros_like(), |beta| beta.val());
    layer_norm(x, gamma, beta, epsilon)
}
