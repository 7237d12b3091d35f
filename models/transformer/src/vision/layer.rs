//! The model as an engine sees it: one type of layer, one type of value between layers.

use burn::{module::Module, tensor::Tensor};
use stovepipe_pipeline::{Context, Flow, Layer, LayerError};

use super::{head::VitHead, patches::PatchEmbedding};
use crate::block::Block;

/// One layer of a vision transformer.
#[derive(Module, Debug)]
pub enum VitLayer {
    /// Makes tokens of patches.
    Embed(PatchEmbedding),
    /// Attention and a network.
    Block(Block),
    /// Makes logits of tokens.
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

    fn name(&self) -> String {
        let name = match self {
            Self::Embed(_) => "Embed",
            Self::Block(_) => "Block",
            Self::Head(_) => "Head",
        };
        name.to_owned()
    }
}
