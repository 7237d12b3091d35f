//! A model to load weights into: linear layers, and norms between them.

use burn::{
    module::Module,
    nn::{BatchNorm, BatchNormConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig},
    tensor::{Device, Tensor},
};
use stovepipe_pipeline::{Pipeline, layer};

/// A linear layer, with or without norms.
#[derive(Module, Debug)]
pub struct Dense {
    linear: Linear,
    norm: Option<LayerNorm>,
    batch: Option<BatchNorm>,
}

impl Dense {
    pub fn new(from: usize, to: usize) -> Self {
        Self {
            linear: LinearConfig::new(from, to).init(&Device::flex()),
            norm: None,
            batch: None,
        }
    }

    pub fn normed(from: usize, to: usize) -> Self {
        Self {
            norm: Some(LayerNormConfig::new(to).init(&Device::flex())),
            batch: Some(BatchNormConfig::new(to).init(&Device::flex())),
            ..Self::new(from, to)
        }
    }
}

#[layer]
impl Dense {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let y = self.linear.forward(x);
        let y = self.norm.as_ref().map_or(y.clone(), |norm| norm.forward(y));
        (self.batch.as_ref()).map_or(y.clone(), |norm| norm.forward(y))
    }
}

pub fn pipeline(layers: Vec<Dense>, stages: usize) -> Pipeline<Dense> {
    Pipeline::builder(layers)
        .devices(vec![Device::flex(); stages])
        .build()
        .unwrap()
}
