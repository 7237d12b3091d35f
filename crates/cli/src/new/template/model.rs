//! The model: an ordinary Burn module.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::{Device, Tensor, activation::relu},
};
use stovepipe::prelude::*;

/// Its fields run in order. An attribute says what else a layer does.
#[derive(Module, Debug, Layers)]
pub struct Net {
    #[layers(|points: Tensor<2>| -> Tensor<2> { relu(input.forward(points)) })]
    input: Linear,
    #[layers(|x| relu(hidden.forward(x)))]
    hidden: Linear,
    head: Linear,
}

impl Net {
    pub fn new(device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        Self {
            input: linear(2, 64),
            hidden: linear(64, 64),
            head: linear(64, 3),
        }
    }
}
