//! Chapter 4: the pipeline computes what the struct does.

use burn::{
    nn::loss::CrossEntropyLossConfig,
    optim::GradientsParams,
    tensor::{Device, Tensor},
};
use stovepipe::{prelude::*, verify::Verifier};

use crate::{
    Failure,
    model::{Model, digits},
};

pub fn main() -> Result<(), Failure> {
    compare()?;
    verify()
}

fn compare() -> Result<(), Failure> {
    let device = Device::flex();
    let (images, labels) = digits(64, &device)?;

    // The struct, on one device.
    let model = Model::new(&device.clone().autodiff());
    let logits = model.forward(images.clone().autodiff());
    let loss = CrossEntropyLossConfig::new().init(&device);
    let loss = loss.forward(logits.clone(), labels.clone().autodiff());
    let by_struct = GradientsParams::from_grads(loss.backward(), &model);

    // The list, with the same weights, in two stages and four micro-batches.
    let pipeline = Pipeline::builder(model.clone().into_layers())
        .devices([device.clone(), device])
        .micro_batches(4)
        .build()?;
    let batch = Batch::new(images, labels);
    let step = pipeline.train_step(batch.keep_outputs(), &CrossEntropy::new())?;

    let outputs = step.outputs.ok_or("no outputs")?;
    let (loss, logits) = (loss.into_scalar::<f32>(), logits.inner());
    println!("loss: {loss:.7} and {:.7}", step.loss);
    println!("logits differ by {:.1e}", difference(logits, outputs));
    let id = model.conv1.weight.id;
    let by_struct = by_struct.get::<4>(id).ok_or("no gradient")?;
    let by_stages = step.gradients.get::<4>(id).ok_or("no gradient")?;
    let largest = by_struct.clone().abs().max().into_scalar::<f32>();
    let differ = difference(by_struct, by_stages);
    println!("gradients of conv1 are up to {largest:.1e} and differ by {differ:.1e}");
    Ok(())
}

fn verify() -> Result<(), Failure> {
    let device = Device::flex();
    let layers = Model::new(&device).into_layers();
    let (input, target) = digits(6, &device)?;
    let batch = Batch::new(input, target);
    let report = Verifier::new(layers, batch, CrossEntropy::new())
        .stages([1, 2, 3])
        .micro_batches([1, 4])
        .run()?;
    println!("{report}");
    assert!(report.holds());
    Ok(())
}

/// The largest difference between elements.
fn difference<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> f32 {
    (a - b).abs().max().into_scalar::<f32>()
}
