//! A model of one's own in two stages, trained on handwritten digits.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::{Device, Tensor, activation::relu},
};
use stovepipe::prelude::*;
use stovepipe::train::{Data, Progress, RunFolder, Task, TrainSettings, Trainer};
use stovepipe_digits::{DigitBatcher, Digits};

/// A model is a list of layers, here of two kinds: an enum of ordinary Burn modules.
#[derive(Module, Debug)]
enum Net {
    Hidden(Linear),
    Head(Linear),
}

impl Layer for Net {
    type Input = Tensor<4>; // images
    type Flow = Tensor<2>; // what passes between layers
    type Output = Tensor<2>; // a logit for each class
    type Side = (); // what layers read from the side: nothing

    fn enter(images: Tensor<4>) -> Tensor<2> {
        images.flatten(1, 3)
    }

    fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, LayerError> {
        Ok(match self {
            Self::Hidden(linear) => relu(linear.forward(x)),
            Self::Head(linear) => linear.forward(x),
        })
    }

    fn leave(logits: Tensor<2>) -> Result<Tensor<2>, LayerError> {
        Ok(logits)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex();
    let linear = |from, to| LinearConfig::new(from, to).init(&device);
    let hidden = [(3072, 128), (128, 128)].map(|(from, to)| Net::Hidden(linear(from, to)));
    let layers = hidden.into_iter().chain([Net::Head(linear(128, 10))]);
    let pipeline = Pipeline::builder(layers.collect())
        .devices([device.clone(), device.clone()]) // or cuda(0), wgpu(…): one for each stage
        .micro_batches(4)
        .build()?;
    let folder = RunFolder::create(&RunFolder::next("runs".as_ref(), "custom-model"))?;
    let data = Data::new(Digits::train()?, Digits::test()?, DigitBatcher);
    let settings = TrainSettings::default();
    let mut trainer = Trainer::new(pipeline, Task::classification(&settings), settings)?;
    let summary = trainer.run(&data, &folder, Progress::new)?;
    println!("{}; see {}", summary.test, folder.finish()?.display());
    Ok(())
}
