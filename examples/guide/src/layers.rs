//! Chapter 2: the model as a list of layers.

use burn::{
    module::Module,
    nn::{Linear, conv::Conv2d},
    tensor::{Tensor, activation::relu},
};
use stovepipe::prelude::*;

use crate::model::{Model, pool};

/// A layer: what was one line of the struct's `forward`.
#[derive(Module, Debug)]
pub enum Net {
    Conv(Conv2d),
    Head(Linear),
}

/// What passes between layers.
#[derive(Clone, Debug, Flow)]
pub enum Passing {
    Maps(Tensor<4>),
    Logits(Tensor<2>),
}

impl Layer for Net {
    type Input = Tensor<4>; // what the model is given
    type Flow = Passing; // what passes between layers
    type Output = Tensor<2>; // what the model returns
    type Side = (); // what layers read from the side: nothing

    fn enter(images: Tensor<4>) -> Passing {
        Passing::Maps(images)
    }

    fn forward(&self, x: Passing, _: &mut Context<'_, Self>) -> Result<Passing, LayerError> {
        match (self, x) {
            (Self::Conv(conv), Passing::Maps(x)) => Ok(Passing::Maps(relu(conv.forward(x)))),
            (Self::Head(linear), Passing::Maps(x)) => Ok(Passing::Logits(linear.forward(pool(x)))),
            (_, Passing::Logits(_)) => Err(LayerError::new("maps", "logits")),
        }
    }

    fn leave(x: Passing) -> Result<Tensor<2>, LayerError> {
        match x {
            Passing::Logits(logits) => Ok(logits),
            Passing::Maps(_) => Err(LayerError::new("logits", "maps")),
        }
    }
}

impl Model {
    /// The same modules, with the same weights, as a list.
    pub fn into_layers(self) -> Vec<Net> {
        vec![
            Net::Conv(self.conv1),
            Net::Conv(self.conv2),
            Net::Conv(self.conv3),
            Net::Conv(self.conv4),
            Net::Head(self.linear),
        ]
    }
}
