//! The model of Burn's `simple-regression` example.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig, Relu},
    tensor::{Device, Tensor},
};

/// A perceptron with a hidden layer.
#[derive(Module, Debug)]
pub struct Model {
    input_layer: Linear,
    output_layer: Linear,
    activation: Relu,
}

impl Model {
    /// A new model.
    pub fn new(features: usize, device: &Device) -> Self {
        Self {
            input_layer: LinearConfig::new(features, 64).init(device),
            output_layer: LinearConfig::new(64, 1).init(device),
            activation: Relu::new(),
        }
    }

    /// Features `[batch, features]` to a value each, `[batch, 1]`.
    pub fn forward(&self, features: Tensor<2>) -> Tensor<2> {
        let x = self.input_layer.forward(features);
        self.output_layer.forward(self.activation.forward(x))
    }
}
