//! The Learner's checkpoints have the names of the layers.

use burn::module::Module;

use crate::*;

/// Names and values do not depend on stages.
#[test]
fn a_checkpoint_loads_under_any_number_of_stages_and_under_none() {
    let directory = tempfile::tempdir().unwrap();
    let training = training(directory.path(), 2).with_default_checkpointers();
    let learned = training.launch(learner(pipeline(2))).model;
    let file = directory.path().join("checkpoint/model-2.bpk");

    for stages in [1, 3] {
        let loaded = pipeline(stages).load_file(&file);
        assert_eq!(numbers(&loaded), numbers(&learned));
    }
    let layers = layers(false);
    let plain = Plain { layers }.load_file(&file);
    let (points, _) = batches().remove(0);
    let expected = learned.pipeline().infer(points.clone()).unwrap();
    assert_eq!(plain.forward(points).into_data(), expected.into_data());
}

#[test]
fn training_resumes_under_another_number_of_stages() {
    let unbroken = numbers(&learn(pipeline(2), 4).model);
    let directory = tempfile::tempdir().unwrap();
    let training = |epochs| training(directory.path(), epochs).with_default_checkpointers();
    training(2).launch(learner(pipeline(2)));
    let resumed = training(4).checkpoint(2).launch(learner(pipeline(3)));
    assert_eq!(numbers(&resumed.model), unbroken);
}

/// Running statistics in a checkpoint are those that validation used, not one update old.
#[test]
fn a_checkpoint_has_the_newest_running_statistics() {
    let directory = tempfile::tempdir().unwrap();
    let training = training(directory.path(), 2).with_default_checkpointers();
    let learned = training.launch(learner(pipeline_of(layers(true), 2))).model;
    let file = directory.path().join("checkpoint/model-2.bpk");
    let loaded = pipeline_of(layers(true), 1).load_file(file).valid();
    assert_eq!(numbers(&loaded), numbers(&learned.pipeline().valid()));

    let manual = learn_manually(pipeline_of(layers(true), 2), 2);
    assert_eq!(numbers(&learned), numbers(&manual.valid()));
}
