//! The pipeline as a Burn module.

use std::time::Duration;

use burn::{
    module::Module,
    optim::{AdamConfig, GradientsParams, ModuleOptimizer},
    store::{ModuleSnapshot, SafetensorsStore},
};
use stovepipe_pipeline::{CrossEntropy, Pipeline, Recompute, StepError, count_parameters};
use stovepipe_schedule::{GPipe, OneForwardOneBackward};

use crate::models::*;

fn pipeline(stages: usize) -> Pipeline<ConvNet> {
    built(
        conv_net(),
        stages,
        OneForwardOneBackward,
        2,
        Recompute::ExceptLast,
    )
}

fn trained(pipeline: Pipeline<ConvNet>) -> (Pipeline<ConvNet>, GradientsParams) {
    let step = pipeline
        .train_step((images(4), labels(4, 4)), &CrossEntropy::new())
        .unwrap();
    (pipeline, step.gradients)
}

#[test]
fn records_know_no_stages() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("model.safetensors");
    let (saved, gradients) = trained(pipeline(3));
    let saved = AdamConfig::new().init().step(0.1, saved, gradients);
    let mut store = SafetensorsStore::from_file(&file);
    saved.valid().save_into(&mut store).unwrap();

    for stages in [1, 2, 7] {
        let mut loaded = pipeline(stages);
        assert_ne!(bits(&loaded), bits(&saved));
        loaded
            .load_from(&mut SafetensorsStore::from_file(&file))
            .unwrap();
        assert_eq!(bits(&loaded), bits(&saved));
        // It continues to train like the saved one.
        assert_eq!(
            gradient_bits(&loaded, &trained(loaded.clone()).1),
            gradient_bits(&saved, &trained(saved.clone()).1),
        );
        saved.load_same_statistics(&file);
    }
}

trait Restore {
    fn load_same_statistics(&self, file: &std::path::Path);
}

impl Restore for Pipeline<ConvNet> {
    /// Steps move running statistics, which clones share: restores the saved ones.
    fn load_same_statistics(&self, file: &std::path::Path) {
        let mut clone = self.clone();
        clone
            .load_from(&mut SafetensorsStore::from_file(file))
            .unwrap();
    }
}

#[test]
fn moving_it_leaves_every_layer_where_it_is() {
    let before = pipeline(2);
    let after = before.clone().fork(&cpu()).to_device(&cpu());
    assert_eq!(bits(&after), bits(&before));
    assert_eq!(after.stages().len(), 2);
    assert_eq!(after.into_layers().len(), 7);
}

#[test]
fn parameters_are_counted_by_stage_and_printed() {
    let pipeline = pipeline(2);
    let stages = pipeline.stages();
    let sum: usize = stages.iter().map(|stage| stage.parameters).sum();
    assert_eq!(sum, count_parameters(&pipeline));
    assert_eq!(sum, (3 * 6 * 9 + 6) + 5 * (6 * 6 * 9 + 12) + (6 * 4 + 4));
    let text = pipeline.to_string();
    assert!(text.starts_with("Pipeline {\n  stage 0 on cpu: "), "{text}");
    assert!(
        text.contains("\n  stage 1 on cpu: HalfTied, Block, Head ("),
        "{text}"
    );
}

/// One optimizer for all layers, and one per stage on the workers, do the same update.
#[test]
fn stages_can_be_optimised_in_parallel() {
    let (whole, gradients) = trained(pipeline(1));
    let whole = AdamConfig::new().init().step(0.1, whole, gradients);

    let (mut cut, gradients) = trained(pipeline(3));
    let gradients = cut.split_gradients(gradients);
    let states: Vec<(ModuleOptimizer, GradientsParams)> = gradients
        .into_iter()
        .map(|gradients| (AdamConfig::new().init(), gradients))
        .collect();
    cut.change_stages(states, |_, layers, (mut optimizer, gradients)| {
        let layers = optimizer.step(0.1, layers, gradients);
        (layers, (optimizer, GradientsParams::new()))
    })
    .unwrap();
    assert_eq!(bits(&cut), bits(&whole));
}

#[test]
fn a_change_with_too_few_states_touches_nothing() {
    let mut pipeline = pipeline(2);
    let before = bits(&pipeline);
    let changed = pipeline.change_stages(vec![()], |_, layers, ()| (layers, ()));
    assert!(matches!(
        changed,
        Err(StepError::WrongStates {
            states: 1,
            stages: 2
        })
    ));
    assert_eq!(bits(&pipeline), before);
}

#[test]
fn a_panic_in_a_change_is_an_error() {
    let mut pipeline = built(dense(&[2, 2, 2]), 2, GPipe, 2, Recompute::Always);
    let changed = pipeline.change_stages(vec![(), ()], |stage, layers, ()| {
        assert_ne!(stage, 1, "on purpose");
        (layers, ())
    });
    let error = changed.err().map(|error| error.to_string()).unwrap();
    assert!(
        error.starts_with("stage 1 on cpu could not be changed: "),
        "{error}"
    );
    assert!(error.contains("on purpose"), "{error}");
    assert_eq!(pipeline.stages().len(), 2);
    assert!(matches!(
        pipeline.infer(vectors(2, 2)),
        Err(StepError::LayersLost)
    ));
}

/// A lost device may hang; a device without memory reports an error.
#[test]
fn a_change_that_hangs_or_has_no_memory_is_an_error() {
    let pipeline = || {
        let builder = builder(dense(&[2, 2, 2]), 2, GPipe, 2, Recompute::Always);
        let limit = Duration::from_secs(1);
        builder.stall_timeout(Some(limit)).build().unwrap()
    };
    let mut full = pipeline();
    let changed = full.change_stages(vec![(), ()], |_, _, ()| panic!("out of memory"));
    let error = changed.err().map(|error| error.to_string()).unwrap();
    assert!(error.contains("use more micro-batches"), "{error}");

    let (open, gate) = crossbeam_channel::unbounded::<()>();
    let mut hangs = pipeline();
    let changed = hangs.change_stages(vec![(), ()], move |stage, layers, ()| {
        if stage == 0 {
            let _ = gate.recv();
        }
        (layers, ())
    });
    let error = changed.err().map(|error| error.to_string()).unwrap();
    assert!(
        error.starts_with("stage 0 on cpu could not be changed: no answer for 1.0 s"),
        "{error}"
    );
    assert!(matches!(
        hangs.infer(vectors(2, 2)),
        Err(StepError::Stuck { worker: 0 })
    ));
    drop(open);
}
