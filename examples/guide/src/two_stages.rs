//! Chapter 3: a pipeline of two stages.

use burn::{optim::AdamWConfig, tensor::Device};
use stovepipe::{
    prelude::*,
    schedule::{Costs, Timeline},
};

use crate::{
    Failure,
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

    let mut timeline = Timeline::default();
    for _ in 0..5 {
        let (images, labels) = digits(64, &device)?;
        let step = pipeline.train_step((images, labels), &CrossEntropy::new())?;
        println!("loss {:.3}, bubble {:.2}", step.loss, step.bubble());
        pipeline = optimizer.step(4e-3, pipeline, step.gradients);
        timeline = step.timeline;
    }
    print!("{}", timeline.to_text(100, false));
    Ok(())
}

/// The bubble: by the formula, simulated for equal stages, and measured.
fn bubbles() -> Result<(), Failure> {
    println!("micro-batches  formula  simulated  measured");
    for m in [1, 2, 4, 8, 16] {
        let p = 2;
        let formula = (p - 1) as f64 / (m + p - 1) as f64;
        let schedule = OneForwardOneBackward.schedule(p, m)?;
        let costs = Costs::uniform(p, 1.0, 1.0, 1.0);
        let simulated = schedule.simulate(&costs)?.bubble();
        let measured = measured(m)?;
        println!("{m:13}  {formula:7.2}  {simulated:9.2}  {measured:8.2}");
    }
    Ok(())
}

/// The median bubble of 21 steps in two stages, without recomputation.
fn measured(micro_batches: usize) -> Result<f64, Failure> {
    let device = Device::flex();
    let pipeline = Pipeline::builder(Model::new(&device).into_layers())
        .devices([device.clone(), device.clone()])
        .balance(Balance::Layers(vec![2, 3]))
        .micro_batches(micro_batches)
        .recompute(Recompute::Never)
        .build()?;
    let (images, labels) = digits(64, &device)?;
    let step = || pipeline.train_step((images.clone(), labels.clone()), &CrossEntropy::new());
    let steps = (0..21).map(|_| step()).collect::<Result<Vec<_>, _>>()?;
    let mut bubbles: Vec<_> = steps.iter().map(Step::bubble).collect();
    bubbles.sort_by(f64::total_cmp);
    Ok(bubbles[10])
}
