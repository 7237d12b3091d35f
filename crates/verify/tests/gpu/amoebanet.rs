//! AmoebaNets on a GPU compute what they compute on the CPU.

use burn::tensor::{Device, Int, Tensor};
use stovepipe_amoebanet::{AmoebaLayer, AmoebaNetBConfig, AmoebaNetDConfig, Stem};
use stovepipe_pipeline::CrossEntropy;

use crate::{
    beside_cpu::{self, Pairs},
    models::pattern,
};

const SAMPLES: usize = 8;

/// Images of 32² and their classes.
fn batch() -> (Tensor<4>, Tensor<1, Int>) {
    let labels = Tensor::arange(0..SAMPLES as i64, &Device::flex());
    (pattern([SAMPLES, 3, 32, 32]), labels)
}

/// With these seeds, no ReLU's input is so close to zero that rounding decides its sign. Each such input
/// would change gradients by 1 %.
fn check(seed: u64, layers: impl Fn() -> Vec<AmoebaLayer>) {
    let objective = CrossEntropy::new().with_smoothing(0.1);
    beside_cpu::check(Pairs::OneGpu, layers, batch, &objective, |builder| {
        builder.seed(seed)
    });
}

/// With an auxiliary head, and operations that are dropped.
#[test]
#[ignore = "many kernels to compile: takes minutes on a driver in software; run with --ignored"]
fn amoebanet_d() {
    check(10, || {
        let config = AmoebaNetDConfig::new(3, 16, 10).with_stem(Stem::Small);
        let config = config.with_auxiliary(true).with_drop_path(0.2);
        config.init(&Device::flex()).unwrap()
    });
}

/// Its separable convolutions have groups and dilations, and its narrowest norms one channel.
#[test]
#[ignore = "many kernels to compile: takes minutes on a driver in software; run with --ignored"]
fn amoebanet_b() {
    check(8, || {
        let config = AmoebaNetBConfig::new(3, 8, 10).with_stem(Stem::Small);
        config.init(&Device::flex()).unwrap()
    });
}
