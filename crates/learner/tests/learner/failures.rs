//! What goes wrong in a stage.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn_train::{InferenceStep, TrainStep};

use crate::*;

/// What a failed step says.
fn message<R>(step: impl FnOnce() -> R) -> String {
    let Err(payload) = catch_unwind(AssertUnwindSafe(step)) else {
        panic!("it did not fail");
    };
    *payload.downcast::<String>().unwrap()
}

/// Five numbers a point where the first layer wants two.
fn wide() -> Points {
    let device = Device::flex();
    (Tensor::ones([4, 5], &device), Tensor::zeros([4], &device))
}

#[test]
fn a_failed_step_says_where() {
    let model = model(pipeline(2));
    let said = message(|| TrainStep::step(&model, wide()).item.loss);
    let expected = "a training step of the pipeline failed: stage 0 failed on ";
    assert!(said.starts_with(expected), "{said}");
    assert!(
        said.contains("in layer 0 (Dense), forward of micro-batch 0"),
        "{said}"
    );
    assert!(said.contains("wrong width"), "{said}");

    let said = message(|| InferenceStep::step(&model, wide()).loss);
    assert!(
        said.starts_with("a validation step of the pipeline failed: stage 0"),
        "{said}"
    );
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
    let said = message(move || training.launch(learner).model);
    assert!(said.contains("stage 1 failed"), "{said}");
    assert!(said.contains("micro-batch 1"), "{said}");

    let (points, _) = batches().remove(0);
    assert_eq!(pipeline.infer(points).unwrap().dims(), [BATCH, 4]);
}
