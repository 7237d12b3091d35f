//! A custom model in two stages, trained on handwritten digits.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::{Device, Tensor, activation::relu},
};
use stovepipe::prelude::*;
use stovepipe::train::{Data, Progress, RunFolder, Task, TrainSettings, Trainer};
use stovepipe_digits::{DigitBatcher, Digits};

/// An ordinary Burn module. Its fields run in order; an attribute says what else a layer does.
#[derive(Module, Debug, Layers)]
struct Net {
    #[layers(|images: Tensor<4>| -> Tensor<2> { relu(input.forward(images.flatten(1, 3))) })]
    input: Linear,
    #[layers(|x| relu(hidden.forward(x)))]
    hidden: Linear,
    head: Linear,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex();
    let linear = |from, to| LinearConfig::new(from, to).init(&device);
    let net = Net {
        input: linear(3072, 128),
        hidden: linear(128, 128),
        head: linear(128, 10),
    };
    let pipeline = Pipeline::builder(net.into_layers())
        .devices([device.clone(), device.clone()]) // or cuda(0), wgpu(…): one for each stage
        .micro_batches(4)
        .build()?;
    let folder = RunFolder::create_next("runs".as_ref(), "custom-model")?;
    let data = Data::new(Digits::train()?, Digits::test()?, DigitBatcher);
    let settings = TrainSettings::default();
    let mut trainer = Trainer::new(pipeline, Task::classification(&settings), settings)?;
    let summary = trainer.run(&data, &folder, Progress::new)?;
    println!("{}; see {}", summary.test, folder.finish()?.display());
    Ok(())
}
