//! The engine on wgpu.
use stovepipe_pipeline::{
    CrossEntropy, NamedDevice, Recompute, StepError, device::measure_link, error::TransferKind,
};
use stovepipe_schedule::{GPipe, OneForwardOneBackward, Rule};

use crate::{
    beside_cpu::{Pairs, check, cpu, two_devices},
    models::{self, By, builder, conv_net, images, labels},
};

/// Convolutions, batch norms, a value with three readers.
#[test]
fn a_net_of_convolutions() {
    let batch = || (images(8), labels(8, 4));
    check(
        &Pairs::Each,
        conv_net,
        batch,
        &CrossEntropy::new(),
        |builder| builder,
    );
}

/// Where no gradient can come later, the second half of a backward pass is empty.
#[test]
fn backward_passes_in_halves() {
    let batch = || (images(8), labels(8, 4));
    check(
        &Pairs::One,
        conv_net,
        batch,
        &CrossEntropy::new(),
        |builder| builder.schedule(By(Rule::ZeroBubbleH1, 1)).micro_batches(3),
    );
}

/// Workers on one device hand over without a copy, each on a stream of its own; skips go past a worker elsewhere.
#[test]
fn several_workers_on_a_device() {
    let Some([best, other]) = two_devices() else {
        return;
    };
    let train = |devices: &[&NamedDevice]| {
        let builder = builder(
            conv_net(),
            3,
            OneForwardOneBackward,
            4,
            Recompute::ExceptLast,
        );
        let pipeline = builder
            .devices(devices.iter().copied().cloned())
            .build()
            .unwrap();
        let step = pipeline.train_step((images(8), labels(8, 4)), &CrossEntropy::new());
        let step = step.unwrap();
        (step.loss, models::gradients_of(&pipeline, &step.gradients))
    };
    let (loss, expected) = train(&[&cpu(), &cpu(), &cpu()]);
    for devices in [[&best, &best, &best], [&best, &other, &best]] {
        let (found_loss, found) = train(&devices);
        assert!((loss - found_loss).abs() < 1e-4 * loss);
        for ((name, expected), (_, found)) in expected.iter().zip(&found) {
            let difference = models::relative_difference(found, expected);
            assert!(difference < 1e-4, "{name}: {difference}");
        }
    }
}

#[test]
fn errors_name_the_device_by_its_name() {
    let Some([best, first]) = two_devices() else {
        return;
    };
    let pipeline = builder(conv_net(), 2, GPipe, 2, Recompute::Never)
        .devices([best, first])
        .build()
        .unwrap();
    let names: Vec<_> = pipeline
        .stages()
        .into_iter()
        .map(|stage| stage.device_name)
        .collect();
    assert_eq!(names, ["wgpu", "wgpu:0"]);
    // What is no number is found on a GPU, too.
    let wrong = images(8) * f32::NAN;
    let error = pipeline
        .train_step((wrong, labels(8, 4)), &CrossEntropy::new())
        .err();
    let error = error.map(|error| error.to_string()).unwrap();
    assert!(error.contains("stage 0 failed on wgpu, "), "{error}");
    let step = pipeline.train_step((images(8), labels(8, 4)), &CrossEntropy::new());
    let _ = step.unwrap();
}

/// Tensors of the CPU arrive on the device, and come back.
#[test]
fn a_transfer_that_fails_names_both_devices() {
    let Some([best, _]) = two_devices() else {
        return;
    };
    let pipeline = builder(conv_net(), 2, GPipe, 2, Recompute::Never)
        .devices([best, cpu()])
        .on_transfer(|transfer| {
            assert!(
                transfer.kind != TransferKind::Gradients,
                "the device is lost"
            );
        })
        .build()
        .unwrap();
    let step = pipeline.train_step((images(8), labels(8, 4)), &CrossEntropy::new());
    let Err(error @ StepError::Failed(_)) = step else {
        panic!("the step should fail");
    };
    let text = error.to_string();
    let told =
        "from stage 1 on cpu to stage 0 on wgpu did not arrive: panicked: the device is lost";
    assert!(text.contains(told), "{text}");
}

#[test]
fn a_link_is_measured_between_devices() {
    let Some([best, first]) = two_devices() else {
        return;
    };
    for (from, to) in [(&best, &first), (&best, &cpu()), (&cpu(), &best)] {
        let link = measure_link(&from.device, &to.device).unwrap();
        assert!(
            link.latency > 0.0 && link.bandwidth > 1e6,
            "{from} to {to}: {link:?}"
        );
    }
}
