//! Chapter 3: a pipeline of two stages.

use burn::{optim::AdamWConfig, tensor::Device};
use stovepipe::{prelude::*, schedule::Costs};

use crate::{
    Failure,
    layers::Net,
    model::{Model, digits},
};

pub fn main() -> Result<(), Failure> {
    step()?;
    bubbles()
}

fn step() -> Result<(), Failure> {
    let device = Device::flex();
    let layers = Model::new(&device).into_layers();
    let mut pipeline = Pipeline::builder(layers)
        .devices([device.clone(), device.clone()]) // one for each stage
        .balance(Balance::Layers(vec![2, 3])) // layers of each stage
        .schedule(OneForwardOneBackward)
        .micro_batches(4)
        .build()?;
    let mut optimizer = AdamWConfig::new().init();

    for _ in 0..5 {
        let (images, labels) = digits(64, &device)?;
        let step = pipeline.train_step(images, labels, &CrossEntropy::new())?;
        println!(
            "loss {:.3}, bubble {:.0} %",
            step.loss,
            100.0 * step.bubble()
        );
        print!("{}", step.timeline.to_text(100, false));
        pipeline = optimizer.step(4e-3, pipeline, step.gradients);
    }
    Ok(())
}

/// The bubble by the formula, as it is simulated for equal stages, and as it is measured.
fn bubbles() -> Result<(), Failure> {
    let device = Device::flex();
    let (images, labels) = digits(64, &device)?;
    println!("micro-batches  formula  simulated  measured");
    for micro_batches in [1, 2, 4, 8, 16] {
        let formula = 1.0 / (micro_batches + 1) as f64; // (p − 1) / (m + p − 1), p = 2

        let schedule = OneForwardOneBackward.schedule(2, micro_batches)?;
        let costs = Costs::uniform(2, 1.0, 1.0, 1.0);
        let simulated = schedule.simulate(&costs)?.bubble();

        let pipeline = two_stages(&device, micro_batches)?;
        let mut measured = Vec::new();
        for _ in 0..9 {
            let step = pipeline.train_step(images.clone(), labels.clone(), &CrossEntropy::new())?;
            measured.push(step.bubble());
        }
        measured.sort_by(f64::total_cmp);
        let (formula, simulated, measured) =
            (100.0 * formula, 100.0 * simulated, 100.0 * measured[4]);
        println!("{micro_batches:13}  {formula:5.1} %  {simulated:7.1} %  {measured:6.1} %");
    }
    Ok(())
}

fn two_stages(device: &Device, micro_batches: usize) -> Result<Pipeline<Net>, BuildError> {
    Pipeline::builder(Model::new(device).into_layers())
        .devices([device.clone(), device.clone()])
        .balance(Balance::Layers(vec![2, 3]))
        .recompute(Recompute::Never)
        .micro_batches(micro_batches)
        .build()
}
