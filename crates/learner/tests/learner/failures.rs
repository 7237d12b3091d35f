//! Failed stages.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn_train::{InferenceStep, TrainStep};

use crate::*;

fn message<R>(step: impl FnOnce() -> R) -> String {
    let payload = catch_unwind(AssertUnwindSafe(step)).err();
    *payload.unwrap().downcast::<String>().unwrap()
}

/// Five numbers per point, where the first layer takes two.
fn wide() -> Points {
    let device = Device::flex();
    (Tensor::ones([4, 5], &device), Tensor::zeros([4], &device))
}

#[test]
fn a_failed_step_names_the_place() {
    let model = model(pipeline(2));
    let text = message(|| TrainStep::step(&model, wide()).item.loss);
    let start = "a training step of the pipeline failed: stage 0 failed on ";
    assert!(text.starts_with(start), "{text}");
    let place = "in layer 0 (Dense), forward of micro-batch 0";
    let is_named = text.contains(place) && text.contains("wrong width");
    assert!(is_named, "{text}");

    let text = message(|| InferenceStep::step(&model, wide()).loss);
    let start = "a validation step of the pipeline failed: stage 0";
    assert!(text.starts_with(start), "{text}");
}

#[test]
fn a_failed_step_ends_the_training_and_leaves_a_pipeline_that_works() {
    let directory = tempfile::tempdir().unwrap();
    let pipeline = pipeline(2);
    let mut items = items(0, 20);
    items[13].1 = 7; // no such class
    let training = SupervisedTraining::new(directory.path(), loader(items.clone()), loader(items))
        .with_application_logger(None)
        .renderer(Box::new(Bars::written(std::io::sink())));
    let learner = learner(pipeline.clone());
    let text = message(move || training.launch(learner).model);
    assert!(text.contains("stage 1 failed"), "{text}");
    assert!(text.contains("micro-batch 1"), "{text}");

    let (points, _) = batches().remove(0);
    assert_eq!(pipeline.infer(points).unwrap().dims(), [BATCH, 4]);
}
