//! One model in Burn's Learner: on one device ([`before`]) and in two stages ([`after`]). This file
//! is the same for both.
//!
//! ```sh
//! cargo run --release --bin learner -- after --bars
//! diff examples/learner/src/before.rs examples/learner/src/after.rs
//! ```

use std::{error::Error, path::PathBuf};

use burn::{data::dataloader::DataLoaderBuilder, optim::AdamConfig, tensor::Device};
use burn_train::{
    ClassificationOutput, ExecutionStrategy, InferenceStep, Learner, LearnerModel, LearningResult,
    MetricEarlyStoppingStrategy, StoppingCondition, SupervisedTraining, TrainStep,
    TrainingStrategy,
    metric::{
        AccuracyMetric, LearningRateMetric, LossMetric,
        store::{Aggregate, Direction, Split},
    },
};
use clap::{Parser, ValueEnum};
use stovepipe::learner::{Bars, PipelineStrategy};
use stovepipe_digits::{DigitBatch, DigitBatcher, Digits};

mod after;
mod before;

/// Trains a model on handwritten digits in Burn's Learner.
#[derive(Parser)]
struct Options {
    /// Where the model trains
    #[arg(value_enum, default_value_t = Model::After)]
    model: Model,
    /// Show bars rather than Burn's dashboard
    #[arg(long)]
    bars: bool,
    /// Number of epochs
    #[arg(long, default_value_t = 8)]
    epochs: usize,
    /// Resume after this epoch's checkpoint
    #[arg(long, value_name = "EPOCH")]
    resume: Option<usize>,
    /// Where metrics and checkpoints go
    #[arg(long, default_value = "runs/learner")]
    out: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Model {
    /// On one device
    Before,
    /// In two stages
    After,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let device = Device::flex();
    match options.model {
        Model::Before => {
            let strategy = ExecutionStrategy::single(device.clone());
            train(before::model(&device), strategy.into(), &options)
        }
        Model::After => {
            let model = after::model([device.clone(), device])?;
            train(model, PipelineStrategy.into(), &options)
        }
    }
}

/// The usual code of a burn-train user.
fn train<M>(
    model: M,
    strategy: TrainingStrategy<M>,
    options: &Options,
) -> Result<(), Box<dyn Error>>
where
    M: LearnerModel
        + TrainStep<Input = DigitBatch, Output = ClassificationOutput>
        + InferenceStep<Input = DigitBatch, Output = ClassificationOutput>,
{
    let loader = || DataLoaderBuilder::new(DigitBatcher).batch_size(32);
    let train = loader().shuffle(42).build(Digits::train()?);
    let valid = loader().build(Digits::test()?);

    let mut training = SupervisedTraining::new(&options.out, train, valid)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .metric_train_numeric(LearningRateMetric::new())
        .early_stopping(MetricEarlyStoppingStrategy::new(
            &LossMetric::new(),
            Aggregate::Mean,
            Direction::Lowest,
            Split::Valid,
            StoppingCondition::NoImprovementSince { n_epochs: 2 },
        ))
        .with_training_strategy(strategy)
        .with_default_checkpointers()
        .num_epochs(options.epochs)
        .summary();
    if let Some(epoch) = options.resume {
        training = training.checkpoint(epoch);
    }
    if options.bars {
        training = training.renderer(Box::new(Bars::new()));
    }
    let learner = Learner::new(model, AdamConfig::new().init(), 2e-3);
    let LearningResult { model, error, .. } = training.launch(learner);
    if let Some(error) = error {
        return Err(error.to_string().into());
    }
    model.save_file(options.out.join("model.bpk"))?;
    Ok(())
}
