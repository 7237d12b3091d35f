//! Chapter 6: memory and recomputation.

use burn::tensor::Device;
use stovepipe::prelude::*;

use crate::{
    Failure,
    model::{Model, digits},
};

pub fn main() -> Result<(), Failure> {
    let device = Device::flex();
    let (images, labels) = digits(64, &device)?;
    for recompute in Recompute::MODES {
        let pipeline = Pipeline::builder(Model::new(&device).into_layers())
            .devices([device.clone(), device.clone()])
            .schedule(GPipe)
            .micro_batches(8)
            .recompute(recompute.clone())
            .build()?;
        let step = pipeline.train_step((images.clone(), labels.clone()), &CrossEntropy::new())?;
        println!("recompute {recompute}");
        for (stage, held) in step.held.iter().enumerate() {
            let (tapes, inputs) = (held.activations, held.inputs);
            println!(
                "  stage {stage}: activations of {tapes} and inputs of {inputs} micro-batches"
            );
        }
    }
    Ok(())
}
