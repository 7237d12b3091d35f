//! Replicas on a GPU beside those on the CPU.

use std::thread;

use burn::optim::SgdConfig;
use stovepipe_comm::local;
use stovepipe_pipeline::{CrossEntropy, NamedDevice, Pipeline, Recompute};
use stovepipe_schedule::{DataParallel, OneForwardOneBackward};

use crate::{
    beside_cpu::{TOLERANCE, cpu, two_devices},
    models::{ConvNet, builder, conv_net, floats_of, images, labels, relative_difference},
};

/// The model after three updates.
fn trained(mut pipeline: Pipeline<ConvNet>) -> Vec<(String, Vec<f32>)> {
    let mut optimizer = SgdConfig::new().init();
    for _ in 0..3 {
        let step = pipeline.train_step((images(8), labels(8, 4)), &CrossEntropy::new());
        pipeline = optimizer.step(0.05, pipeline, step.unwrap().gradients);
        pipeline.check_replicas().unwrap();
    }
    pipeline.share_parameters().unwrap();
    floats_of(&pipeline.layers().to_vec())
}

fn assert_like(found: &[(String, Vec<f32>)], expected: &[(String, Vec<f32>)], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for ((name, found), (_, expected)) in found.iter().zip(expected) {
        let difference = relative_difference(found, expected);
        assert!(difference < TOLERANCE, "{name}: {difference}, {what}");
    }
}

/// In one process the first replica's device updates. In two, the first process does, and the other one gets
/// its values: their own updates would drift apart.
#[test]
fn a_gpu_and_the_cpu_share_the_micro_batches() {
    let Some([gpu, _]) = two_devices() else {
        return;
    };
    let build = |devices: &[NamedDevice]| {
        let scheduler = DataParallel {
            scheduler: OneForwardOneBackward,
            shares: vec![3, 1],
        };
        let builder = builder(conv_net(), 2, scheduler, 4, Recompute::Always);
        builder.devices(devices.to_vec())
    };
    let expected = trained(build(&[cpu(), cpu()]).build().unwrap());
    for devices in [[gpu.clone(), cpu()], [cpu(), gpu]] {
        let what = format!("{}, {}", devices[0], devices[1]);
        assert_like(&trained(build(&devices).build().unwrap()), &expected, &what);
        let of_ranks = [0, 1].map(|process| NamedDevice {
            process,
            ..devices[process].clone()
        });
        let ranks = local(2, None).unwrap().into_iter().map(|comm| {
            let builder = build(&of_ranks).communicator(comm);
            thread::spawn(|| trained(builder.build().unwrap()))
        });
        let ranks: Vec<_> = ranks.collect();
        let ranks: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert_like(&ranks[0], &expected, &format!("{what} in two processes"));
        for ((name, first), (_, second)) in ranks[0].iter().zip(&ranks[1]) {
            let is_statistic = name.contains("running_");
            assert!(is_statistic || first == second, "{name} differs: {what}");
        }
    }
}
