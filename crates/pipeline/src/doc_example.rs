//! A small layer for the examples in the documentation.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::{Device, Tensor},
};

use crate::model::layer::{Context, Layer, LayerError};

/// A linear layer followed by tanh.
#[derive(Module, Debug)]
pub struct Dense {
    /// The layer.
    pub linear: Linear,
}

impl Dense {
    /// One layer between each two neighbouring widths.
    #[must_use]
    pub fn layers(widths: &[usize]) -> Vec<Self> {
        let pairs = widths.windows(2);
        pairs
            .map(|pair| LinearConfig::new(pair[0], pair[1]).init(&Device::flex()))
            .map(|linear| Self { linear })
            .collect()
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
        Ok(self.linear.forward(x).tanh())
    }

    fn leave(flow: Tensor<2>) -> Result<Tensor<2>, LayerError> {
        Ok(flow)
    }
}
