//! The numbers that a user chooses.

use burn::{config::Config, store::KeyRemapper, tensor::Device};

use super::{EPSILON, head::VitHead, layer::VitLayer, patches::PatchEmbedding, timm};
use crate::{block::BlockConfig, error::TransformerError};

/// What the classifier sees of an image.
#[derive(Config, Debug, Copy, PartialEq, Eq)]
pub enum Pool {
    /// A token that stands for the class, before the patches.
    ClassToken,
    /// The mean over the patches; there is no token for the class.
    Mean,
}

/// A vision transformer: patches of an image as tokens, blocks, and a linear classifier.
///
/// It is the one of timm's `VisionTransformer`, and initialised as there. Counts of parameters for 1000
/// classes, images of 224×224 and patches of 16×16: ViT-Ti 5.7M, ViT-S 22.1M, ViT-B 86.6M.
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
    /// Attention heads, which divide the width.
    pub heads: usize,
    /// The number of classes.
    pub classes: usize,
    /// The channels of an image.
    #[config(default = 3)]
    pub channels: usize,
    /// The width of the network in a block: four times that of the model if not given.
    pub d_ff: Option<usize>,
    /// What the classifier sees.
    #[config(default = "Pool::ClassToken")]
    pub pool: Pool,
    /// The probability of dropout: of patches, of hidden numbers, and of what each branch adds.
    #[config(default = 0.0)]
    pub dropout: f64,
    /// The probability of dropout of what attention looks at.
    #[config(default = 0.0)]
    pub attention_dropout: f64,
    /// The probability that a sample goes without a branch of the last block. It grows with depth, from 0
    /// at the first (Huang et al., "Deep Networks with Stochastic Depth", 2016).
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

    /// Makes the layers, one for each block and two more; each parameter is allocated on `device` when it
    /// is first used.
    ///
    /// # Errors
    ///
    /// [`TransformerError`] if a size is 0 or more than 16,777,216, the image is no multiple of the patch,
    /// the heads do not divide the width, or a probability is not at least 0 and less than 1.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use stovepipe_pipeline::count_parameters;
    /// use stovepipe_transformer::{TransformerError, VitConfig};
    ///
    /// let layers = VitConfig::tiny(224, 16, 1000).init(&Device::flex())?;
    /// assert_eq!(layers.len(), 12 + 2);
    /// assert_eq!(count_parameters(&layers), 5_717_416); // none allocated yet
    ///
    /// let error = VitConfig::tiny(32, 5, 10).init(&Device::flex()).unwrap_err();
    /// assert_eq!(error, TransformerError::Patches { image: 32, patch: 5 });
    /// # Ok::<(), TransformerError>(())
    /// ```
    pub fn init(&self, device: &Device) -> Result<Vec<VitLayer>, TransformerError> {
        self.check()?;
        let blocks = (0..self.layers).map(|index| {
            let drop_path = self.drop_path_of(index);
            let block = BlockConfig {
                drop_path,
                ..self.block()
            };
            VitLayer::Block(block.build(device))
        });
        let mut layers = vec![VitLayer::Embed(PatchEmbedding::new(self, device))];
        layers.extend(blocks);
        layers.push(VitLayer::Head(VitHead::new(self, device)));
        Ok(layers)
    }

    /// Renames the tensors of timm's `VisionTransformer` to those of the list of layers that [`init`](Self::init) makes.
    ///
    /// | timm | here, without the names of enum variants |
    /// |---|---|
    /// | `cls_token`, `[1, 1, d]` | `0.class_token`, `[d]` |
    /// | `pos_embed`, `[1, tokens, d]` | `0.positions`, `[tokens, d]` |
    /// | `patch_embed.proj.weight`, `[d, channels, patch, patch]` | `0.patches.weight`, `[channels · patch², d]` |
    /// | `patch_embed.proj.bias` | `0.patches.bias` |
    /// | `blocks.{i}.norm1.weight`, `….bias` | `{i + 1}.norm_attention.gamma`, `….beta` |
    /// | `blocks.{i}.attn.qkv`: queries, keys and values next to each other | `{i + 1}.attention.qkv` |
    /// | `blocks.{i}.attn.proj` | `{i + 1}.attention.output` |
    /// | `blocks.{i}.norm2.weight`, `….bias` | `{i + 1}.norm_mlp.gamma`, `….beta` |
    /// | `blocks.{i}.mlp.fc1`, `blocks.{i}.mlp.fc2` | `{i + 1}.mlp.inner`, `{i + 1}.mlp.outer` |
    /// | `norm`, or `fc_norm` for [`Pool::Mean`] | `{layers + 1}.norm` |
    /// | `head` | `{layers + 1}.classes` |
    ///
    /// Linear weights are turned: `[out, in]` there, `[in, out]` here. What else timm's model may have (a norm before the
    /// blocks, scales of layers, registers, norms of queries and keys) this one has not: such a file is refused.
    /// `stovepipe_train::Weights` sees to turned and flattened tensors and to norms' names. Names that are not timm's stay as
    /// they are.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use stovepipe_pipeline::Pipeline;
    /// use stovepipe_train::Weights;
    /// use stovepipe_transformer::VitConfig;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = VitConfig::new(12, 4, 2, 24, 3, 5);
    /// let layers = config.init(&Device::flex())?;
    /// let mut pipeline = Pipeline::builder(layers).devices(vec![Device::flex(); 2]).build()?;
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/timm_class_token.safetensors");
    /// let weights = Weights::open(path)?.renamed(&config.timm_keys())?;
    /// weights.load_into(&mut pipeline)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn timm_keys(&self) -> KeyRemapper {
        timm::keys(self)
    }

    /// What the names of the classifier's tensors in a pipeline begin with: its bias, `….bias`, has as many numbers as there
    /// are classes, and without these tensors weights for other classes can be loaded.
    ///
    /// ```
    /// let config = stovepipe_transformer::VitConfig::tiny(224, 16, 10);
    /// assert_eq!(config.classifier(), "layers.13.classes");
    /// ```
    #[must_use]
    pub fn classifier(&self) -> String {
        format!("layers.{}.classes", self.layers + 1)
    }

    fn check(&self) -> Result<(), TransformerError> {
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
        let block = BlockConfig {
            drop_path: self.drop_path,
            ..self.block()
        };
        block.check()
    }

    fn block(&self) -> BlockConfig {
        BlockConfig {
            d_ff: self.d_ff.unwrap_or(self.d_model.saturating_mul(4)),
            epsilon: EPSILON,
            dropout: self.dropout,
            attention_dropout: self.attention_dropout,
            // timm truncates at 100 deviations.
            ..BlockConfig::new(self.d_model, self.heads)
        }
    }

    fn drop_path_of(&self, block: usize) -> f64 {
        self.drop_path * block as f64 / (self.layers - 1).max(1) as f64
    }
}
