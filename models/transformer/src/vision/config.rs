//! The configuration.

use burn::config::Config;

use super::EPSILON;
use crate::{block_config::BlockConfig, error::TransformerError};

/// The input of the classifier.
#[derive(Config, Debug, Copy, PartialEq, Eq)]
pub enum Pool {
    /// A learned token before the patches.
    ClassToken,
    /// The mean over the patches, without a class token.
    Mean,
}

/// A vision transformer: patches of an image as tokens, blocks, and a linear classifier.
///
/// It equals timm's `VisionTransformer`, initialization included. Counts of parameters for 1000 classes,
/// images of 224×224 and patches of 16×16: ViT-Ti 5.7M, ViT-S 22.1M, ViT-B 86.6M.
#[derive(Config, Debug, PartialEq)]
pub struct VitConfig {
    /// Height and width of images, a multiple of the patch's.
    pub image: usize,
    /// Height and width of a patch.
    pub patch: usize,
    /// The number of blocks. The model has two more layers.
    pub layers: usize,
    /// The width of the model.
    pub d_model: usize,
    /// Attention heads. The width is a multiple of them.
    pub heads: usize,
    /// The number of classes.
    pub classes: usize,
    /// The channels of an image.
    #[config(default = 3)]
    pub channels: usize,
    /// The width of the network in a block: by default four times that of the model.
    pub d_ff: Option<usize>,
    /// The input of the classifier.
    #[config(default = "Pool::ClassToken")]
    pub pool: Pool,
    /// The probability of dropout: on patches, hidden values, and the output of each branch.
    #[config(default = 0.0)]
    pub dropout: f64,
    /// The probability of dropout on the attention weights.
    #[config(default = 0.0)]
    pub attention_dropout: f64,
    /// The probability that a sample skips a branch of the last block. It grows with depth, from 0 at the
    /// first block (Huang et al., "Deep Networks with Stochastic Depth", 2016).
    #[config(default = 0.0)]
    pub drop_path: f64,
}

impl VitConfig {
    /// ViT-Ti: 12 blocks of width 192 with 3 heads.
    #[must_use]
    pub fn tiny(image: usize, patch: usize, classes: usize) -> Self {
        Self::new(image, patch, 12, 192, 3, classes)
    }

    /// ViT-S: 12 blocks of width 384 with 6 heads.
    #[must_use]
    pub fn small(image: usize, patch: usize, classes: usize) -> Self {
        Self::new(image, patch, 12, 384, 6, classes)
    }

    /// ViT-B: 12 blocks of width 768 with 12 heads.
    #[must_use]
    pub fn base(image: usize, patch: usize, classes: usize) -> Self {
        Self::new(image, patch, 12, 768, 12, classes)
    }

    /// The prefix of the classifier's tensors in a pipeline: `….bias` has a value for each class. Weights
    /// for other classes can be loaded without these tensors.
    ///
    /// ```
    /// let config = stovepipe_transformer::VitConfig::tiny(224, 16, 10);
    /// assert_eq!(config.classifier(), "layers.13.classes");
    /// ```
    #[must_use]
    pub fn classifier(&self) -> String {
        format!("layers.{}.classes", self.layers + 1)
    }

    pub(super) fn check(&self) -> Result<(), TransformerError> {
        let &Self { image, patch, .. } = self;
        TransformerError::check_sizes(&[
            ("the size of an image", image),
            ("the size of a patch", patch),
            ("the number of blocks", self.layers),
            ("the number of classes", self.classes),
            ("the number of channels", self.channels),
        ])?;
        if !image.is_multiple_of(patch) {
            return Err(TransformerError::Patches { image, patch });
        }
        self.block().check()
    }

    pub(super) fn block(&self) -> BlockConfig {
        BlockConfig {
            d_ff: self.d_ff.unwrap_or(self.d_model.saturating_mul(4)),
            epsilon: EPSILON,
            dropout: self.dropout,
            attention_dropout: self.attention_dropout,
            drop_path: self.drop_path,
            // timm truncates at 100 deviations.
            ..BlockConfig::new(self.d_model, self.heads)
        }
    }

    pub(super) fn drop_path_of(&self, block: usize) -> f64 {
        self.drop_path * block as f64 / (self.layers - 1).max(1) as f64
    }
}
