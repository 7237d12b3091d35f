//! What burn-train's loop does otherwise than Stovepipe's own.

use burn::optim::{GradientsAccumulator, SgdConfig};
use burn_train::{
    Interrupter, MetricEarlyStoppingStrategy, StoppingCondition,
    metric::store::{Aggregate, Direction, Split},
};

use crate::*;

/// Seven batches in windows of three: two whole ones, and one of a single batch, which is not dropped. The gradients of
/// a window are added up, not averaged, and the learning rate moves once an update.
#[test]
fn a_window_of_gradients_is_their_sum_and_the_last_one_may_be_smaller() {
    let directory = tempfile::tempdir().unwrap();
    let learner = Learner::new(
        model(pipeline(2)),
        SgdConfig::new().init(),
        rates().init().unwrap(),
    );
    let training = training(directory.path(), 2).grads_accumulation(3);
    let learned = training.launch(learner).model;

    let mut by_hand = pipeline(2);
    let mut optimizer = SgdConfig::new().init();
    let mut rates = rates().init().unwrap();
    for _ in 0..2 {
        for window in batches().chunks(3) {
            let mut sum = GradientsAccumulator::new();
            for (points, quarters) in window.iter().cloned() {
                let step = by_hand
                    .train_step((points, quarters), &CrossEntropy::new())
                    .unwrap();
                sum.accumulate(&by_hand, step.gradients);
            }
            by_hand = optimizer.step(rates.step(), by_hand, sum.grads());
        }
    }
    assert_eq!(numbers(&learned), numbers(&by_hand));
}

/// A last mini-batch of one sample counts as much as one of eight.
#[test]
fn the_loss_of_an_epoch_is_the_mean_over_mini_batches() {
    let directory = tempfile::tempdir().unwrap();
    let written = Written::default();
    let mut valid = items(1000, 9);
    valid[8].1 = 3 - valid[8].1; // wrong, and so costly
    let (train, loader) = (loader(items(0, TRAINING)), loader(valid.clone()));
    let result = SupervisedTraining::new(directory.path(), train, loader)
        .metrics((LossMetric::new(),))
        .with_application_logger(None)
        .renderer(Box::new(Bars::written(written.clone())))
        .num_epochs(3)
        .launch(learner(pipeline(2)));

    let loss = |items: &[Item]| {
        let (points, quarters) = PointBatcher.batch(items.to_vec(), &Device::flex());
        let pipeline = result.model.pipeline();
        pipeline
            .evaluate((points, quarters), &CrossEntropy::new())
            .unwrap()
            .loss
    };
    let by_batch = format!(
        "valid Loss {:.2} ",
        (loss(&valid[..8]) + loss(&valid[8..])) / 2.0
    );
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
    let written = Written::default();
    let training = training(directory.path(), 10)
        .renderer(Box::new(Bars::written(written.clone())))
        .early_stopping(MetricEarlyStoppingStrategy::new(
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
    assert!(
        text.ends_with("training ended after 3 of 10 epochs\n"),
        "{text}"
    );
}

/// An interruption takes effect after the step under way.
#[test]
fn an_interruption_stops() {
    let directory = tempfile::tempdir().unwrap();
    let written = Written::default();
    let interrupter = Interrupter::new();
    interrupter.stop(Some("enough"));
    let result = training(directory.path(), 10)
        .renderer(Box::new(Bars::written(written.clone())))
        .with_interrupter(interrupter)
        .launch(learner(pipeline(2)));
    assert_eq!(
        result.interrupted.unwrap().reason.as_deref(),
        Some("enough")
    );
    assert_eq!(result.model.pipeline().steps(), 1);
    let text = written.text();
    let end = "training ended after 0 of 10 epochs; then: train Accuracy ";
    assert!(text.starts_with(end), "{text}");
}

/// The strategy moves a model to its first device; a pipeline stays where it is, on the workers it had.
#[test]
fn stages_stay_where_they_are() {
    let pipeline = pipeline(3);
    let result = learn(pipeline.clone(), 1);
    let layers = |pipeline: &Pipeline<Dense>| {
        let stages = pipeline.stages().into_iter();
        stages.map(|stage| stage.layers).collect::<Vec<_>>()
    };
    assert_eq!(layers(result.model.pipeline()), layers(&pipeline));
    // Clones count their steps together.
    assert_eq!(pipeline.steps(), 7);
}
