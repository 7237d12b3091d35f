//! Transformers and decoders on a GPU compute what they compute on the CPU.

use burn::tensor::{Device, Int, Tensor};
use stovepipe_decoder::{DecoderConfig, LoraConfig, RopeScaling};
use stovepipe_pipeline::CrossEntropy;
use stovepipe_schedule::Rule;
use stovepipe_transformer::{LmConfig, VitConfig};

use crate::{
    beside_cpu::{self, Pairs},
    models::pattern,
};

const SAMPLES: usize = 4;
const LENGTH: usize = 12;
const VOCABULARY: usize = 29;

fn tokens(first: usize) -> Tensor<2, Int> {
    let tokens = (0..SAMPLES * LENGTH).map(|i| ((i * i * 7 + 3 * i + first) % VOCABULARY) as i64);
    let tokens: Vec<_> = tokens.collect();
    let tokens = Tensor::<1, Int>::from_ints(tokens.as_slice(), &Device::flex());
    tokens.reshape([SAMPLES, LENGTH])
}

/// Embedding, causal attention, dropout, a softmax that shares the embedding's table from another device,
/// and ignored targets.
#[test]
fn a_language_model() {
    language_model(Pairs::WithCpu);
}

#[test]
#[ignore = "many kernels to compile: takes minutes on a driver in software; run with --ignored"]
fn a_language_model_on_two_gpus() {
    language_model(Pairs::Each);
}

fn language_model(pairs: Pairs) {
    let objective = CrossEntropy::new().with_smoothing(0.1).ignoring(5);
    let config = LmConfig::new(VOCABULARY, LENGTH, 2, 32, 4);
    let layers = || config.init(&Device::flex()).unwrap();
    let batch = || (tokens(0), tokens(1));
    beside_cpu::check(pairs, layers, batch, &objective, |builder| builder);
}

/// Rotary positions, keys and values that heads share, norms of heads, biases, and an adapter.
#[test]
#[ignore = "many kernels to compile: takes minutes on a driver in software; run with --ignored"]
fn a_decoder() {
    let config = DecoderConfig {
        keys: 2,
        length: LENGTH,
        head_norms: true,
        projection_bias: true,
        output_bias: true,
        mlp_bias: true,
        scaling: RopeScaling::Linear(2.0),
        ..DecoderConfig::new(VOCABULARY, 32, 1, 4)
    };
    let objective = CrossEntropy::new().with_smoothing(0.1).ignoring(5);
    let device = Device::flex();
    let layers = config.init(&device).unwrap();
    let layers = LoraConfig::new(4).add_to(layers, &config, &device).unwrap();
    let batch = || (tokens(0), tokens(1));
    beside_cpu::check(
        Pairs::WithCpu,
        || layers.clone(),
        batch,
        &objective,
        |builder| builder,
    );
}

/// Patches, a class token, no dropout; gradients of weights wait on both.
#[test]
#[ignore = "many kernels to compile: takes minutes on a driver in software; run with --ignored"]
fn a_vision_transformer() {
    let config = VitConfig::new(16, 4, 2, 32, 4, 10);
    let layers = || config.init(&Device::flex()).unwrap();
    let labels = || Tensor::arange(0..SAMPLES as i64, &Device::flex());
    let batch = || (pattern([SAMPLES, 3, 16, 16]), labels());
    let objective = CrossEntropy::new();
    beside_cpu::check(Pairs::WithCpu, layers, batch, &objective, |builder| {
        builder.schedule(Rule::ZeroBubbleH1)
    });
}
