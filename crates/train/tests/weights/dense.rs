//! A model to load weights into: linear layers, and norms between them.

use burn::{
    module::Module,
    nn::{BatchNorm, BatchNormConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig},
    tensor::{Device, Tensor},
};
use stovepipe_pipeline::{Context, Layer, LayerError, Pipeline};

/// A linear layer and perhaps norms of what it makes.
#[derive(Module, Debug)]
pub struct Dense {
    linear: Linear,
    norm: Option<LayerNorm>,
    batch: Option<BatchNorm>,
}

impl Dense {
    /// Of so many numbers to so many, without norms.
    pub fn new(from: usize, to: usize) -> Self {
        Self {
            linear: LinearConfig::new(from, to).init(&Device::flex()),
            norm: None,
            batch: None,
        }
    }

    /// With both norms.
    pub fn normed(from: usize, to: usize) -> Self {
        Self {
            norm: Some(LayerNormConfig::new(to).init(&Device::flex())),
            batch: Some(BatchNormConfig::new(to).init(&Device::flex())),
            ..Self::new(from, to)
        }
    }
}

impl Layer for Dense {
    type Input = Tensor<2>;
    type Flow = Tensor<2>;
    type Output = Tensor<2>;
    type Side = ();

    fn enter(input: Tensor<2>) -> Tensor<2> {
        input
    }

    fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, LayerError> {
        let y = self.linear.forward(x);
        let y = self.norm.as_ref().map_or(y.clone(), |norm| norm.forward(y));
        Ok((self.batch.as_ref()).map_or(y.clone(), |norm| norm.forward(y)))
    }

    fn leave(flow: Tensor<2>) -> Result<Tensor<2>, LayerError> {
        Ok(flow)
    }
}

/// The layers on one stage or more.
pub fn pipeline(layers: Vec<Dense>, stages: usize) -> Pipeline<Dense> {
    Pipeline::builder(layers)
        .devices(vec![Device::flex(); stages])
        .build()
        .unwrap()
}
