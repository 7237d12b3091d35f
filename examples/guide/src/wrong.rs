//! When it goes wrong: the errors that one meets first.

use burn::{
    module::Module,
    nn::{Dropout, DropoutConfig, Linear, LinearConfig},
    tensor::{Device, Int, Tensor},
};
use stovepipe::{
    prelude::*,
    train::{RunFolder, TrainSettings, load_model, save_model},
};

use crate::{
    Failure,
    layers::Net,
    model::{Model, digits},
};

/// Prints them all.
pub fn main() -> Result<(), Failure> {
    for error in errors()? {
        println!("error: {error}\n");
    }
    Ok(())
}

/// What each of them says.
pub fn errors() -> Result<Vec<String>, Failure> {
    let device = Device::flex();
    let layers = || Model::new(&device).into_layers();
    let builder =
        |layers: Vec<Net>, stages| Pipeline::builder(layers).devices(vec![device.clone(); stages]);
    let (images, labels) = digits(8, &device)?;
    let cross_entropy = CrossEntropy::new();
    let mut said = Vec::new();

    said.push(text(builder(layers(), 6).build()));
    said.push(text(
        builder(layers(), 2)
            .balance(Balance::Layers(vec![2, 2]))
            .build(),
    ));
    said.push(text(device_from_name("cuda:0")));

    let mut turned = layers();
    turned.swap(3, 4);
    let sample = images.clone().narrow(0, 0, 1);
    said.push(text(builder(turned, 2).sample(sample, ()).build()));

    let dropping = Dropping {
        linear: LinearConfig::new(4, 4).init(&device),
        dropout: DropoutConfig::new(0.5).init(),
    };
    said.push(text(
        Pipeline::builder(vec![dropping])
            .devices([device.clone()])
            .build(),
    ));

    let pipeline = builder(layers(), 2).build()?;
    let grey = images.clone().narrow(1, 0, 1);
    said.push(text(pipeline.train_step(
        grey,
        labels.clone(),
        &cross_entropy,
    )));
    let fewer = labels.clone().narrow(0, 0, 7);
    said.push(text(pipeline.train_step(
        images.clone(),
        fewer,
        &cross_entropy,
    )));
    let huge = images.clone().mul_scalar(f32::MAX);
    said.push(text(pipeline.train_step(
        huge,
        labels.clone(),
        &cross_entropy,
    )));
    Ok(said)
}

fn text<T>(result: Result<T, impl std::error::Error>) -> String {
    match result {
        Ok(_) => "nothing went wrong".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// A layer with Burn's own dropout.
#[derive(Module, Debug)]
struct Dropping {
    linear: Linear,
    dropout: Dropout,
}

impl Layer for Dropping {
    type Input = Tensor<2>;
    type Flow = Tensor<2>;
    type Output = Tensor<2>;
    type Side = ();

    fn enter(x: Tensor<2>) -> Tensor<2> {
        x
    }

    fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, Miswired> {
        Ok(self.dropout.forward(self.linear.forward(x)))
    }

    fn leave(x: Tensor<2>) -> Result<Tensor<2>, Miswired> {
        Ok(x)
    }
}
