//! Transformers on wgpu compute what they compute on the CPU.

use burn::tensor::{Device, Int, Tensor};
use stovepipe_pipeline::CrossEntropy;
use stovepipe_transformer::{LmConfig, VitConfig};

use crate::beside_cpu::{self, Pairs};

const SAMPLES: usize = 4;
const LENGTH: usize = 12;
const VOCABULARY: usize = 29;

fn tokens(first: usize) -> Tensor<2, Int> {
    let tokens = (0..SAMPLES * LENGTH).map(|i| ((i * i * 7 + 3 * i + first) % VOCABULARY) as i64);
    let tokens: Vec<_> = tokens.collect();
    let tokens = Tensor::<1, Int>::from_ints(tokens.as_slice(), &Device::flex());
    tokens.reshape([SAMPLES, LENGTH])
}

/// Embedding, causal attention, dropout, a softmax that has the embedding's table, on another device; some
/// targets do not count.
#[test]
fn a_language_model() {
    let objective = CrossEntropy::new().with_smoothing(0.1).ignoring(5);
    let layers = || {
        LmConfig::new(VOCABULARY, LENGTH, 2, 32, 4)
            .init(&Device::flex())
            .unwrap()
    };
    beside_cpu::check(
        &Pairs::Each,
        layers,
        || (tokens(0), tokens(1)),
        &objective,
        |builder| builder,
    );
}

/// Patches, a token of the class, no dropout.
#[test]
fn a_vision_transformer() {
    let images = || {
        let numbers =
            (0..SAMPLES * 3 * 16 * 16).map(|i| ((i as f32 * 12.9898).sin() * 43_758.547).fract());
        let numbers: Vec<f32> = numbers.collect();
        let images = Tensor::<1>::from_floats(numbers.as_slice(), &Device::flex());
        images.reshape([SAMPLES, 3, 16, 16])
    };
    let labels = || Tensor::arange(0..SAMPLES as i64, &Device::flex());
    let layers = || {
        VitConfig::new(16, 4, 2, 32, 4, 10)
            .init(&Device::flex())
            .unwrap()
    };
    beside_cpu::check(
        &Pairs::Each,
        layers,
        || (images(), labels()),
        &CrossEntropy::new(),
        |builder| builder,
    );
}
