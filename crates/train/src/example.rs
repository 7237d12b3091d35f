//! A layer for the examples in the documentation.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::{Device, Tensor},
};
use stovepipe_pipeline::{Context, Layer, LayerError};

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

impl Layer for Dense {
    type Input = Tensor<2>;
    type Flow = Tensor<2>;
    type Output = Tensor<2>;
    type Side = ();

    fn enter(input: Tensor<2>) -> Tensor<2> {
        input
    }

    fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, LayerError> {
        Ok(self.linear.forward(x))
    }

    fn leave(flow: Tensor<2>) -> Result<Tensor<2>, LayerError> {
        Ok(flow)
    }
}
