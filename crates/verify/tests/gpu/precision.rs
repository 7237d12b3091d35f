//! Mixed precision on a GPU.

use stovepipe_pipeline::{
    CrossEntropy, LossScaler, NamedDevice, Pipeline, Precision, error::BuildError,
};

use crate::{
    beside_cpu::{cpu, two_devices},
    models::{assert_contains, dense, gradients_of, labels, relative_difference, vectors},
};

/// A GPU that computes in f16 has the gradients of f32 up to rounding, alone and beside the CPU. Others say so
/// before anything runs.
#[test]
#[ignore = "many kernels to compile: takes minutes on a driver in software; run with --ignored"]
fn f16() {
    check(Precision::F16, 1.0 / 2048.0);
}

#[test]
fn bf16() {
    check(Precision::Bf16, 1.0 / 256.0);
}

/// `rounding` is the largest relative error of one.
fn check(precision: Precision, rounding: f64) {
    let Some([gpu, _]) = two_devices() else {
        return;
    };
    if let Err(error) = precision.check(&gpu) {
        let builder = Pipeline::builder(dense(&WIDTHS)).devices([gpu]);
        let refused = builder.precision(precision).build().unwrap_err();
        assert!(matches!(refused, BuildError::Precision(_)), "{refused}");
        assert_eq!(refused.to_string(), error.to_string());
        assert_contains(&refused, &format!("cannot compute in {precision}"));
        let advice = "use f32 (`--precision f32`), or a device that can: cpu";
        assert_contains(&refused, advice);
        return;
    }
    let exact = train(vec![cpu()], Precision::F32);
    for devices in [vec![gpu.clone()], vec![gpu.clone(), cpu()]] {
        let own = train(devices.clone(), precision);
        let error = relative_difference(&own, &exact);
        // As on the CPU: a gradient is rounded nine times a layer.
        let most = 9.0 * (WIDTHS.len() - 1) as f64 * rounding;
        assert!(error < most, "{devices:?}: {error} of {most}");
        assert!(error > 0.1 * rounding, "{devices:?}: {error}");
    }
}

const WIDTHS: [usize; 5] = [5, 8, 8, 8, 3];

/// All gradients of a step, in one list.
fn train(devices: Vec<NamedDevice>, precision: Precision) -> Vec<f32> {
    let builder = Pipeline::builder(dense(&WIDTHS)).devices(devices).seed(7);
    let builder = builder.micro_batches(3).precision(precision);
    let pipeline = builder.build().unwrap();
    let mut scaler = LossScaler::default();
    (0..6).for_each(|_| scaler.update(true));
    pipeline.set_loss_scaler(scaler);
    let step = pipeline.train_step((vectors(8, 5), labels(8, 3)), &CrossEntropy::new());
    let step = step.unwrap();
    assert!(!step.overflowed);
    let gradients = gradients_of(&pipeline, &step.gradients);
    gradients.into_iter().flat_map(|(_, own)| own).collect()
}
