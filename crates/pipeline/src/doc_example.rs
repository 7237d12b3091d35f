//! A small layer for the examples in the documentation.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::{Device, Tensor},
};

use stovepipe_derive::layer;

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

#[layer]
impl Dense {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.linear.forward(x).tanh()
    }
}
