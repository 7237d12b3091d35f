//! The model for the engine: one type of layer, one type of value between layers.

use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
use stovepipe_pipeline::{Context, Flow, Layer, LayerError};

use super::{config::VitConfig, head::VitHead, patches::PatchEmbedding};
use crate::{block::Block, block_config::BlockConfig, error::TransformerError};

/// One layer of a vision transformer.
#[derive(Module, Debug)]
pub enum VitLayer {
    /// From images to tokens.
    Embed(PatchEmbedding),
    /// Attention and a network.
    Block(Block),
    /// From tokens to logits.
    Head(VitHead),
}

/// What passes between the layers of a vision transformer.
#[derive(Clone, Debug, Flow)]
pub enum VitFlow {
    /// Images `[n, channels, height, width]`.
    Images(Tensor<4>),
    /// Tokens `[n, tokens, d]`.
    States(Tensor<3>),
    /// Logits `[n, classes]`.
    Logits(Tensor<2>),
}

impl VitConfig {
    /// Makes the layers, one for each block and two more. Each parameter is allocated on `device` on first
    /// use.
    ///
    /// # Errors
    ///
    /// [`TransformerError`] if a size is 0 or more than 16,777,216, the image is not a multiple of the
    /// patch, the heads do not divide the width, or a probability is not in [0, 1).
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
            let block = BlockConfig {
                drop_path: self.drop_path_of(index),
                ..self.block()
            };
            VitLayer::Block(block.build(device))
        });
        let mut layers = vec![VitLayer::Embed(PatchEmbedding::new(self, device))];
        layers.extend(blocks);
        layers.push(VitLayer::Head(VitHead::new(self, device)));
        Ok(layers)
    }
}

impl VitFlow {
    fn describe(&self) -> String {
        match self {
            Self::Images(images) => format!("images {:?}", images.dims()),
            Self::States(states) => format!("states {:?}", states.dims()),
            Self::Logits(logits) => format!("logits {:?}", logits.dims()),
        }
    }
}

impl Layer for VitLayer {
    type Input = Tensor<4>;
    type Flow = VitFlow;
    type Output = Tensor<2>;
    type Side = ();

    fn enter(images: Tensor<4>) -> VitFlow {
        VitFlow::Images(images)
    }

    fn forward(
        &self,
        flow: VitFlow,
        context: &mut Context<'_, Self>,
    ) -> Result<VitFlow, LayerError> {
        match (self, flow) {
            (Self::Embed(patches), VitFlow::Images(images)) => {
                Ok(VitFlow::States(patches.forward(images, context.rng())?))
            }
            (Self::Block(block), VitFlow::States(x)) => {
                Ok(VitFlow::States(block.forward(x, context.rng())?))
            }
            (Self::Head(head), VitFlow::States(x)) => Ok(VitFlow::Logits(head.forward(x)?)),
            (Self::Embed(_), flow) => Err(LayerError::new("images", flow.describe())),
            (_, flow) => Err(LayerError::new("states", flow.describe())),
        }
    }

    fn leave(flow: VitFlow) -> Result<Tensor<2>, LayerError> {
        match flow {
            VitFlow::Logits(logits) => Ok(logits),
            other => Err(LayerError::new("logits", other.describe())),
        }
    }
}
