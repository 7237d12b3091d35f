//! The README's example: AmoebaNet-D in two stages, one step of training.

use burn::{optim::AdamWConfig, tensor::*};
use stovepipe::prelude::*;
use stovepipe_amoebanet::{AmoebaNetDConfig, Stem};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = AmoebaNetDConfig::new(3, 8, 10).with_stem(Stem::Small);
    let devices = [Device::flex(), Device::flex()]; // or cuda(0), wgpu(…): one for each stage
    let layers = config.init(&devices[0])?; // nothing is allocated yet
    let images = Tensor::ones([8, 3, 32, 32], &devices[0]);
    let mut pipeline = Pipeline::auto(layers, devices.clone(), images.clone())?.build()?;
    let mut optimizer = AdamWConfig::new().init();

    let targets = Tensor::<1, Int>::zeros([8], &devices[0]);
    let step = pipeline.train_step(images, targets, &CrossEntropy::new())?;
    println!("loss {:.3}, bubble {:.2}", step.loss, step.bubble());
    pipeline = optimizer.step(1e-3, pipeline, step.gradients); // Burn's optimizer, as ever
    println!("{pipeline}");
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
