//! A layer for the examples in the documentation.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::{Device, Tensor},
};
use stovepipe_pipeline::layer;

/// A linear layer.
#[derive(Module, Debug)]
pub struct Dense {
    linear: Linear,
}

impl Dense {
    /// A layer with `inputs` and `outputs`, on the CPU.
    #[must_use]
    pub fn new(inputs: usize, outputs: usize) -> Self {
        let linear = LinearConfig::new(inputs, outputs).init(&Device::flex());
        Self { linear }
    }
}

#[layer]
impl Dense {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.linear.forward(x)
    }
}
