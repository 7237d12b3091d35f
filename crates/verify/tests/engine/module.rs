//! The pipeline as a Burn module.

use std::{thread, time::Duration};

use burn::{
    module::ParamId,
    optim::ModuleOptimizer,
    store::{ModuleSnapshot, SafetensorsStore},
};

use crate::models::*;

fn pipeline(stages: usize) -> Pipeline<ConvNet> {
    let (rule, recompute) = (OneForwardOneBackward, Recompute::ExceptLast);
    built(conv_net(), stages, rule, 2, recompute)
}

fn trained(pipeline: Pipeline<ConvNet>) -> (Pipeline<ConvNet>, GradientsParams) {
    let gradients = train(&pipeline, images(4), 4).unwrap().gradients;
    (pipeline, gradients)
}

#[test]
fn records_know_no_stages() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("model.safetensors");
    let (saved, gradients) = trained(pipeline(3));
    let saved = AdamConfig::new().init().step(0.1, saved, gradients);
    let store = || SafetensorsStore::from_file(&file);
    saved.valid().save_into(&mut store()).unwrap();

    for stages in [1, 2, 7] {
        let mut loaded = pipeline(stages);
        assert_ne!(bits(&loaded), bits(&saved));
        loaded.load_from(&mut store()).unwrap();
        assert_eq!(bits(&loaded), bits(&saved));
        // It continues to train like the saved one.
        let step_on = |own: &Pipeline<_>| gradient_bits(own, &trained(own.clone()).1);
        assert_eq!(step_on(&loaded), step_on(&saved));
        // Steps move running statistics, which clones share: restores the saved ones.
        saved.clone().load_from(&mut store()).unwrap();
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
    assert_contains(text, "\n  stage 1 on cpu: HalfTied, Block, Head (");
}

/// One optimizer for all layers, and one per stage on the workers, do the same update.
#[test]
fn stages_can_be_optimised_in_parallel() {
    let (whole, gradients) = trained(pipeline(1));
    let whole = AdamConfig::new().init().step(0.1, whole, gradients);

    let (mut cut, gradients) = trained(pipeline(3));
    let gradients = cut.split_gradients(gradients);
    cut.change_stages(gradients, |_, layers, gradients| {
        let mut optimizer: ModuleOptimizer = AdamConfig::new().init();
        let layers = optimizer.step(0.1, layers, gradients);
        Ok((layers, GradientsParams::new()))
    })
    .unwrap();
    assert_eq!(bits(&cut), bits(&whole));
}

#[test]
fn a_change_with_too_few_states_touches_nothing() {
    let mut pipeline = pipeline(2);
    let before = bits(&pipeline);
    let changed = pipeline.change_stages(vec![()], |_, layers, ()| Ok((layers, ())));
    let error = changed.unwrap_err().to_string();
    assert_eq!(error, "1 state given for 2 stages");
    assert_eq!(bits(&pipeline), before);
}

/// The error of a change of a pipeline of two stages.
fn change_error(
    pipeline: &mut Pipeline<Dense>,
    change: impl Fn(usize) + Clone + Send + 'static,
) -> String {
    let changed = pipeline.change_stages(vec![(), ()], move |stage, layers, ()| {
        change(stage);
        Ok((layers, ()))
    });
    changed.unwrap_err().to_string()
}

#[test]
fn a_panic_in_a_change_is_an_error() {
    let mut pipeline = built(dense(&[2, 2, 2]), 2, GPipe, 2, Recompute::Always);
    let error = change_error(&mut pipeline, |stage| assert_ne!(stage, 1, "on purpose"));
    let expected = "stage 1 on cpu could not be changed: ";
    assert!(error.starts_with(expected), "{error}");
    assert_contains(error, "on purpose");
    assert_eq!(pipeline.stages().len(), 2);
    let inferred = pipeline.infer(vectors(2, 2));
    assert!(matches!(inferred, Err(StepError::LayersLost)));
}

/// A lost device may hang; a device without memory reports an error.
#[test]
fn a_change_that_hangs_or_has_no_memory_is_an_error() {
    let pipeline = || {
        let builder = builder(dense(&[2, 2, 2]), 2, GPipe, 2, Recompute::Always);
        let limit = Duration::from_secs(3);
        builder.stall_timeout(Some(limit)).build().unwrap()
    };
    let error = change_error(&mut pipeline(), |_| panic!("out of memory"));
    assert_contains(error, "use more micro-batches");

    let (open, gate) = crossbeam_channel::unbounded::<()>();
    let mut hangs = pipeline();
    let error = change_error(&mut hangs, move |stage| {
        if stage == 0 {
            let _ = gate.recv();
        }
    });
    let expected = "stage 0 on cpu could not be changed: no answer for 3.0 s";
    assert!(error.starts_with(expected), "{error}");
    let inferred = hangs.infer(vectors(2, 2));
    assert!(matches!(inferred, Err(StepError::Stuck { worker: 0 })));
    drop(open);
}

#[derive(Module, Debug)]
struct Scale {
    by: Param<Tensor<1>>,
}

#[layer]
impl Scale {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x * self.by.val().unsqueeze()
    }
}

/// The factor comes from `compute`, when somebody wants it.
fn scale(compute: fn() -> f32) -> Scale {
    let factor = move |device: &Device, _| Tensor::from_floats([compute()], device);
    let (id, device) = (ParamId::new(), Device::flex());
    let by = Param::uninitialized(id, factor, device, true, [1].into());
    Scale { by }
}

#[test]
fn an_update_that_fails_or_hangs_is_an_error_of_sync() {
    let waited = |compute: fn() -> f32| {
        let layers = vec![scale(|| 1.0), scale(|| 1.0)];
        let builder = Pipeline::builder(layers).devices(vec![Device::flex(); 2]);
        let limit = Some(Duration::from_secs(2));
        let mut pipeline = builder.stall_timeout(limit).build().unwrap();
        let update = move |stage, _, ()| {
            let updated = [scale(|| 2.0), scale(compute)];
            Ok((updated.into_iter().skip(stage).take(1).collect(), ()))
        };
        pipeline.change_stages(vec![(); 2], update).unwrap();
        pipeline.sync().map_err(|error| error.to_string())
    };
    assert_eq!(waited(|| 3.0), Ok(()));
    let updated = pipeline(2).valid();
    updated.sync().unwrap();
    let failed = waited(|| panic!("the device is lost")).unwrap_err();
    assert_contains(&failed, "stage 1");
    assert_contains(&failed, "the device is lost");
    let hung = waited(|| {
        loop {
            thread::park();
        }
    });
    let hung = hung.unwrap_err();
    assert_contains(&hung, "stage 1");
    assert_contains(&hung, "no answer for 2.0 s");
}
