//! The README's example: AmoebaNet-D in two stages, one step of training.

use burn::{optim::AdamWConfig, tensor::*};
use stovepipe::prelude::*;
use stovepipe_amoebanet::AmoebaNetDConfig;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let devices = [Device::flex(), Device::flex()]; // one for each stage: here the CPU twice
    let layers = AmoebaNetDConfig::new(3, 16, 10).init(&devices[0])?;
    let images = Tensor::ones([4, 3, 224, 224], &devices[0]);
    let labels = Tensor::<1, Int>::zeros([4], &devices[0]);
    let pipeline = Pipeline::auto(layers, devices, images.clone())?.build()?;
    let mut optimizer = AdamWConfig::new().init(); // Burn's
    let step = pipeline.train_step((images, labels), &CrossEntropy::new())?;
    let pipeline = optimizer.step(1e-3, pipeline, step.gradients);
    println!("loss {:.3}\n{pipeline}", step.loss);
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_the_readmes_and_it_runs() -> Result<(), Box<dyn std::error::Error>> {
        let readme = include_str!("../../../README.md");
        let (program, _) = include_str!("main.rs")
            .split_once("\n#[cfg(test)]")
            .ok_or("no tests")?;
        let (_, program) = program.split_once("\n\n").ok_or("no heading")?;
        assert!(readme.contains(program.trim()));
        super::main()
    }
}
