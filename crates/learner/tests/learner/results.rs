//! Results equal those of a manual loop, of the `Trainer`, and of a plain Burn model.

use burn::{
    module::Module,
    optim::AdamConfig,
    tensor::{Tensor, TensorData},
};
use burn_train::TrainStep;
use stovepipe_train::{
    Batches, EpochPass, Progress, RunFolder, Source, Task, TrainSettings, Trainer,
    settings::{DecaySetting, OptimizerSetting},
};

use crate::*;

const EPOCHS: usize = 4;

#[test]
fn a_manual_loop_gives_the_same_bits() {
    let learned = learn(pipeline(2), EPOCHS).model;
    let manual = learn_manually(pipeline(2), EPOCHS);
    assert_eq!(numbers(&learned), numbers(&manual));
    assert_ne!(numbers(&learned), numbers(&pipeline(2)));
}

struct InOrder;

impl Source<Tensor<2>, Tensor<1, Int>> for InOrder {
    fn training_samples(&self) -> usize {
        TRAINING
    }

    fn test_samples(&self) -> usize {
        TRAINING
    }

    fn train(&self, _: EpochPass) -> Batches<Tensor<2>, Tensor<1, Int>> {
        Box::new(batches().into_iter().map(|batch| Ok(batch.into())))
    }

    fn test(&self, _: usize) -> Batches<Tensor<2>, Tensor<1, Int>> {
        Box::new(batches().into_iter().map(|batch| Ok(batch.into())))
    }
}

#[test]
fn stovepipes_trainer_gives_the_same_bits() {
    let settings = TrainSettings {
        epochs: EPOCHS,
        batch_size: BATCH,
        optimizer: OptimizerSetting::Adam,
        lr: 0.01,
        warmup_epochs: 0.0,
        decay: DecaySetting::None,
        epsilon: 1e-5, // as AdamConfig has it
        weight_decay: 0.0,
        label_smoothing: 0.0,
        clip: 0.0,
        ..TrainSettings::default()
    };
    let directory = tempfile::tempdir().unwrap();
    let folder = RunFolder::create(&directory.path().join("run")).unwrap();
    let task = Task::classification(&settings);
    let mut trainer = Trainer::new(pipeline(2), task, settings).unwrap();
    let trained = trainer.run(&InOrder, &folder, |_, _| Progress::silent());
    trained.unwrap();

    let learner = Learner::new(model(pipeline(2)), AdamConfig::new().init(), 0.01);
    let learned = training(directory.path(), EPOCHS).launch(learner).model;
    assert_eq!(numbers(&learned), numbers(trainer.pipeline()));
}

#[test]
fn the_number_of_stages_changes_no_bit() {
    let learned = |stages| numbers(&learn(pipeline(stages), EPOCHS).model);
    let one = learned(1);
    assert_eq!(learned(2), one);
    assert_eq!(learned(3), one);
}

#[test]
fn a_step_is_that_of_the_plain_model() {
    let model = model(pipeline(3)).train();
    let layers = model.pipeline().layers().to_vec();
    let plain = Plain { layers };
    let (points, quarters) = batches().remove(0);
    let step = TrainStep::step(&model, (points.clone(), quarters.clone()));

    let logits = plain.forward(points.autodiff());
    let picked = burn::tensor::activation::log_softmax(logits.clone(), 1)
        .gather(1, quarters.clone().autodiff().unsqueeze_dim(1));
    let loss = picked.mean().neg();
    let tolerance = burn::tensor::Tolerance::<f32>::absolute(1e-6);
    let close = |a: TensorData, b: TensorData| a.assert_approx_eq::<f32>(&b, tolerance);
    let expected = loss.clone().inner().into_data();
    close(step.item.loss.into_data(), expected);
    close(step.item.output.into_data(), logits.inner().into_data());
    assert_eq!(step.item.targets.into_data(), quarters.into_data());

    let gradients = loss.backward();
    for layer in &plain.layers {
        let weight = &layer.linear.weight;
        let expected = weight.grad(&gradients).unwrap();
        let found = step.grads.get::<2>(weight.id).unwrap();
        close(found.into_data(), expected.into_data());
    }
}
