//! Differences between burn-train's loop and Stovepipe's `Trainer`.

use burn::optim::{GradientsAccumulator, SgdConfig};
use burn_train::{
    Interrupter, MetricEarlyStoppingStrategy, StoppingCondition,
    metric::store::{Aggregate, Direction, Split},
};

use crate::*;

/// Seven batches, three to an update: the last update has one batch and is not dropped. Gradients are added
/// up, not averaged, and the learning rate changes once per update.
#[test]
fn accumulated_gradients_are_a_sum_and_the_last_may_have_fewer_batches() {
    let directory = tempfile::tempdir().unwrap();
    let optimizer = SgdConfig::new().init();
    let learner = Learner::new(model(pipeline(2)), optimizer, rates().init().unwrap());
    let training = training(directory.path(), 2).grads_accumulation(3);
    let learned = training.launch(learner).model;

    let mut manual = pipeline(2);
    let mut optimizer = SgdConfig::new().init();
    let mut rates = rates().init().unwrap();
    for _ in 0..2 {
        for batches in batches().chunks(3) {
            let mut sum = GradientsAccumulator::new();
            for batch in batches.iter().cloned() {
                let step = manual.train_step(batch, &CrossEntropy::new()).unwrap();
                sum.accumulate(&manual, step.gradients);
            }
            manual = optimizer.step(rates.step(), manual, sum.grads());
        }
    }
    assert_eq!(numbers(&learned), numbers(&manual));
}

/// A last mini-batch of one sample counts as much as one of eight.
#[test]
fn the_loss_of_an_epoch_is_the_mean_over_mini_batches() {
    let directory = tempfile::tempdir().unwrap();
    let mut valid = items(1000, 9);
    valid[8].1 = 3 - valid[8].1; // a wrong label, with a large loss
    let (train, loader) = (loader(items(0, TRAINING)), loader(valid.clone()));
    let training = SupervisedTraining::new(directory.path(), train, loader)
        .metrics((LossMetric::new(),))
        .with_application_logger(None)
        .num_epochs(3);
    let (training, written) = written(training);
    let result = training.launch(learner(pipeline(2)));

    let loss = |items: &[Item]| {
        let batch = PointBatcher.batch(items.to_vec(), &Device::flex());
        let evaluation = (result.model.pipeline()).evaluate(batch, &CrossEntropy::new());
        evaluation.unwrap().loss
    };
    let mean = (loss(&valid[..8]) + loss(&valid[8..])) / 2.0;
    let by_batch = format!("valid Loss {mean:.2} ");
    let by_sample = format!("valid Loss {:.2} ", loss(&valid));
    assert!(written.text().contains(&by_batch), "{}", written.text());
    assert_ne!(by_batch, by_sample);
}

/// Stovepipe's step counter, which keys random draws, is not in the Learner's checkpoint.
#[test]
fn a_resumed_pipeline_counts_steps_from_zero() {
    let directory = tempfile::tempdir().unwrap();
    let training = |epochs| training(directory.path(), epochs).with_default_checkpointers();
    let began = training(2).launch(learner(pipeline(2))).model;
    assert_eq!(began.pipeline().steps(), 14);
    let resumed = training(3).checkpoint(2).launch(learner(pipeline(2))).model;
    assert_eq!(resumed.pipeline().steps(), 7);

    let pipeline = pipeline(2);
    pipeline.set_steps(14);
    let resumed = training(3).checkpoint(2).launch(learner(pipeline)).model;
    assert_eq!(resumed.pipeline().steps(), 21);
}

/// With a learning rate of zero no epoch is better than the first.
#[test]
fn early_stopping_stops() {
    let directory = tempfile::tempdir().unwrap();
    let (training, written) = written(training(directory.path(), 10));
    let training = training.early_stopping(MetricEarlyStoppingStrategy::new(
        &LossMetric::new(),
        Aggregate::Mean,
        Direction::Lowest,
        Split::Valid,
        StoppingCondition::NoImprovementSince { n_epochs: 2 },
    ));
    let learner = Learner::new(model(pipeline(2)), AdamConfig::new().init(), 0.0);
    let result = training.launch(learner);
    assert_eq!(result.model.pipeline().steps(), 3 * 7);
    let text = written.text();
    let end = "training ended after 3 of 10 epochs\n";
    assert!(text.ends_with(end), "{text}");
}

/// An interruption takes effect after the current step.
#[test]
fn an_interruption_stops() {
    let directory = tempfile::tempdir().unwrap();
    let interrupter = Interrupter::new();
    interrupter.stop(Some("enough"));
    let (training, written) = written(training(directory.path(), 10));
    let training = training.with_interrupter(interrupter);
    let result = training.launch(learner(pipeline(2)));
    let reason = result.interrupted.unwrap().reason;
    assert_eq!(reason.as_deref(), Some("enough"));
    assert_eq!(result.model.pipeline().steps(), 1);
    let text = written.text();
    let end = "training ended after 0 of 10 epochs; then: train Accuracy ";
    assert!(text.starts_with(end), "{text}");
}

/// The strategy moves a model to its first device, but a pipeline keeps its devices and workers.
#[test]
fn stages_stay_where_they_are() {
    let pipeline = pipeline(3);
    let result = learn(pipeline.clone(), 1);
    let layers = |pipeline: &Pipeline<Dense>| {
        let stages = pipeline.stages().into_iter();
        stages.map(|stage| stage.layers).collect::<Vec<_>>()
    };
    assert_eq!(layers(result.model.pipeline()), layers(&pipeline));
    // Clones share the count of steps.
    assert_eq!(pipeline.steps(), 7);
}
