//! The first layer: from images to tokens.

use burn::{
    module::{Module, Param},
    nn::{Linear, LinearConfig},
    tensor::{Device, Tensor},
};
use stovepipe_pipeline::{KeyedRng, LayerError, nn::Dropout};

use super::config::{Pool, VitConfig};
use crate::{attention::apply, initial};

/// Makes a token of each patch, prepends the class token, and adds positions:
/// `[n, channels, image, image]` to `[n, tokens, d]`.
#[derive(Module, Debug)]
pub struct PatchEmbedding {
    /// Reads a patch's values by channel, row and column: timm's convolution.
    patches: Linear,
    class_token: Option<Param<Tensor<1>>>,
    /// A row for each token.
    positions: Param<Tensor<2>>,
    dropout: Dropout,
    /// `[channels, height, width]` of an image.
    image: [usize; 3],
    patch: usize,
}

impl PatchEmbedding {
    pub(super) fn new(config: &VitConfig, device: &Device) -> Self {
        let (width, side) = (config.d_model, config.image / config.patch);
        let has_class = config.pool == Pool::ClassToken;
        let tokens = side * side + usize::from(has_class);
        let numbers = config.channels * config.patch * config.patch;
        Self {
            // Initialized like PyTorch's convolution.
            patches: LinearConfig::new(numbers, width).init(device),
            class_token: has_class.then(|| initial::normal([width], 1e-6, device)),
            positions: initial::normal([tokens, width], 0.02, device),
            dropout: Dropout::new(config.dropout),
            image: [config.channels, config.image, config.image],
            patch: config.patch,
        }
    }

    pub(super) fn forward(
        &self,
        images: Tensor<4>,
        rng: &mut KeyedRng,
    ) -> Result<Tensor<3>, LayerError> {
        let [samples, channels, height, width] = images.dims();
        if samples == 0 || [channels, height, width] != self.image {
            let [channels, height, width] = self.image;
            let expected = format!("images [n, {channels}, {height}, {width}]");
            return Err(LayerError::new(expected, format!("{:?}", images.dims())));
        }
        let patches = apply(&self.patches, self.cut(images));
        let tokens = match &self.class_token {
            Some(token) => {
                let token = token.val();
                let [width] = token.dims();
                let token = token.reshape([1, 1, width]).expand([samples, 1, width]);
                Tensor::cat(vec![token, patches], 1)
            }
            None => patches,
        };
        let x = tokens + self.positions.val().unsqueeze();
        Ok(self.dropout.forward(x, rng))
    }

    /// Images as rows of patches: `[n, patches, values of a patch]`.
    fn cut(&self, images: Tensor<4>) -> Tensor<3> {
        let [samples, channels, height, width] = images.dims();
        let size = self.patch;
        let (rows, columns) = (height / size, width / size);
        images
            .reshape([samples, channels, rows, size, columns, size])
            .permute([0, 2, 4, 1, 3, 5])
            .reshape([samples, rows * columns, channels * size * size])
    }
}
