//! The errors that users meet first.

use std::path::PathBuf;

use burn::{
    module::Module,
    nn::{Dropout, DropoutConfig, Linear, LinearConfig},
    tensor::{Device, Tensor},
};
use stovepipe::{
    pipeline::PipelineBuilder,
    prelude::*,
    train::{load_model, save_model},
};

use crate::{
    Failure,
    model::{Model, ModelLayer, digits},
};

/// Makes each mistake and prints the error.
pub fn main() -> Result<(), Failure> {
    for mistake in [
        more_stages_than_layers,
        balance_of_another_model,
        device_that_is_not_built_in,
        layers_in_the_wrong_order,
        dropout_of_burn,
        images_of_another_shape,
        labels_that_are_too_few,
        nan_in_the_data,
        file_of_another_model,
    ] {
        let error = mistake().err().ok_or("nothing went wrong")?;
        println!("error: {error}\n");
    }
    Ok(())
}

fn more_stages_than_layers() -> Result<(), Failure> {
    stages(6, layers()).build()?;
    Ok(())
}

fn balance_of_another_model() -> Result<(), Failure> {
    let balance = Balance::Layers(vec![2, 2]);
    stages(2, layers()).balance(balance).build()?;
    Ok(())
}

fn device_that_is_not_built_in() -> Result<(), Failure> {
    "cuda:0".parse::<NamedDevice>()?;
    Ok(())
}

fn layers_in_the_wrong_order() -> Result<(), Failure> {
    let device = Device::flex();
    let mut layers = layers();
    layers.push(ModelLayer::Conv4(Model::new(&device).conv4)); // after the last layer
    let (images, _) = digits(1, &device)?;
    stages(2, layers).sample(images, ()).build()?;
    Ok(())
}

fn dropout_of_burn() -> Result<(), Failure> {
    let layer = Dropping {
        linear: LinearConfig::new(4, 4).init(&Device::flex()),
        dropout: DropoutConfig::new(0.5).init(),
    };
    stages(1, vec![layer]).build()?;
    Ok(())
}

fn images_of_another_shape() -> Result<(), Failure> {
    let (images, labels) = digits(8, &Device::flex())?;
    let grey = images.narrow(1, 0, 1);
    let pipeline = stages(2, layers()).build()?;
    let _ = pipeline.train_step((grey, labels), &CrossEntropy::new())?;
    Ok(())
}

fn labels_that_are_too_few() -> Result<(), Failure> {
    let (images, labels) = digits(8, &Device::flex())?;
    let fewer = labels.narrow(0, 0, 7);
    let pipeline = stages(2, layers()).build()?;
    let _ = pipeline.train_step((images, fewer), &CrossEntropy::new())?;
    Ok(())
}

fn nan_in_the_data() -> Result<(), Failure> {
    let (images, labels) = digits(8, &Device::flex())?;
    let logarithms = images.log(); // some pixels are negative
    let pipeline = stages(2, layers()).build()?;
    let _ = pipeline.train_step((logarithms, labels), &CrossEntropy::new())?;
    Ok(())
}

fn file_of_another_model() -> Result<(), Failure> {
    let path = PathBuf::from("other.safetensors");
    let mut fewer = layers();
    fewer.remove(2);
    save_model(&stages(2, fewer).build()?, path.clone())?;
    let loaded = load_model(&mut stages(2, layers()).build()?, &path);
    std::fs::remove_file(&path)?;
    Ok(loaded?)
}

fn layers() -> Vec<ModelLayer> {
    Model::new(&Device::flex()).into_layers()
}

/// A pipeline of so many stages on the CPU.
fn stages<L: Layer>(stages: usize, layers: Vec<L>) -> PipelineBuilder<L> {
    Pipeline::builder(layers).devices(vec![Device::flex(); stages])
}

/// A layer with Burn's own dropout.
#[derive(Module, Debug)]
struct Dropping {
    linear: Linear,
    dropout: Dropout,
}

#[layer]
impl Dropping {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.dropout.forward(self.linear.forward(x))
    }
}
