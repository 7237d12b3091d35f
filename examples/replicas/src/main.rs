//! Replicas: two pipelines of two stages train one model, each on every other micro-batch.
//!
//! ```sh
//! cargo run --release -p replicas
//! ```

use std::error::Error;

use burn::{
    data::{dataloader::batcher::Batcher, dataset::Dataset},
    module::Module,
    nn::{Linear, LinearConfig},
    optim::SgdConfig,
    tensor::{Device, Int, Tensor},
};
use stovepipe::{prelude::*, schedule::DataParallel};
use stovepipe_digits::{DigitBatcher, Digits};

type Failure = Box<dyn Error + Send + Sync>;

#[derive(Module, Debug)]
struct Dense {
    linear: Linear,
}

#[layer]
impl Dense {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.linear.forward(x).tanh()
    }
}

fn layers() -> Vec<Dense> {
    let widths = [3 * 32 * 32, 64, 64, 64, 10];
    let layer = |pair: &[usize]| Dense {
        linear: LinearConfig::new(pair[0], pair[1]).init(&Device::flex()),
    };
    widths.windows(2).map(layer).collect()
}

/// A pipeline of two stages, so many times.
fn pipeline(replicas: usize) -> Result<Pipeline<Dense>, Failure> {
    let scheduler = DataParallel::equal(OneForwardOneBackward, replicas);
    let builder = Pipeline::builder(layers())
        .devices(vec![Device::flex(); 2 * replicas]) // replica by replica
        .schedule(scheduler)
        .micro_batches(8);
    Ok(builder.build()?)
}

/// The losses of 20 steps.
fn train(mut pipeline: Pipeline<Dense>) -> Result<Vec<f64>, Failure> {
    let mut optimizer = SgdConfig::new().init();
    let mut losses = Vec::new();
    for step in 0..20 {
        let step = pipeline.train_step(batch(step)?, &CrossEntropy::new())?;
        // All replicas share the parameters, which are updated once.
        pipeline = optimizer.step(0.1, pipeline, step.gradients);
        losses.push(step.loss);
    }
    Ok(losses)
}

fn batch(step: usize) -> Result<(Tensor<2>, Tensor<1, Int>), Failure> {
    let digits = Digits::train()?;
    let items = (32 * step..32 * (step + 1)).map(|index| digits.get(index));
    let items = items.collect::<Result<_, _>>()?;
    let (images, labels) = DigitBatcher.batch(items, &Device::flex());
    Ok((images.flatten(1, 3), labels))
}

fn main() -> Result<(), Failure> {
    let pipeline = pipeline(2)?;
    for (index, stage) in pipeline.stages().iter().enumerate() {
        println!("stage {index} on workers {:?}", stage.replicas);
    }
    println!("{:?}", train(pipeline)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_train_as_one_pipeline_does() -> Result<(), Failure> {
        let (two, one) = (train(pipeline(2)?)?, train(pipeline(1)?)?);
        // Gradients are added in another order, after the first step.
        assert_eq!(two[0], one[0]);
        assert!(two[19] < two[0]);
        for (two, one) in two.into_iter().zip(one) {
            assert!((two - one).abs() < 1e-5, "{two} {one}");
        }
        Ok(())
    }
}
