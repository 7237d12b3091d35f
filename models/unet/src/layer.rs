//! U-Net for the engine: one type of layer, maps between layers, and a skip for each level.

use burn::{module::Module, tensor::Tensor};
use stovepipe_pipeline::{Context, Layer, LayerError, SkipUse};

use crate::{
    convolution::Convolution,
    resize::{Down, Up},
    segment::Segment,
};

/// One layer of a U-Net. All take and return maps `[n, channels, height, width]`.
#[derive(Module, Debug)]
pub enum UNetLayer {
    /// Makes features of a level.
    Convolution(Convolution),
    /// Halves the map, and sends the whole map to the layer that doubles it again.
    Down(Down),
    /// Doubles the map, and adds the channels of the skip.
    Up(Up),
    /// Makes the output from the features.
    Segment(Segment),
}

impl Layer for UNetLayer {
    type Input = Tensor<4>;
    type Flow = Tensor<4>;
    type Output = Tensor<4>;
    type Side = ();

    fn enter(images: Tensor<4>) -> Tensor<4> {
        images
    }

    fn forward(
        &self,
        x: Tensor<4>,
        context: &mut Context<'_, Self>,
    ) -> Result<Tensor<4>, LayerError> {
        match self {
            Self::Convolution(convolution) => convolution.forward(x, context.rng()),
            Self::Down(down) => {
                context.send(skip(down.level), x.clone());
                down.forward(x)
            }
            Self::Up(up) => up.forward(x, context.take(&skip(up.level))?),
            Self::Segment(segment) => segment.forward(x),
        }
    }

    fn leave(x: Tensor<4>) -> Result<Tensor<4>, LayerError> {
        Ok(x)
    }

    fn skips(&self) -> Vec<SkipUse> {
        match self {
            Self::Down(down) => vec![SkipUse::send(skip(down.level))],
            Self::Up(up) => vec![SkipUse::take(skip(up.level))],
            Self::Convolution(_) | Self::Segment(_) => vec![],
        }
    }
}

fn skip(level: usize) -> String {
    format!("level {level}")
}
