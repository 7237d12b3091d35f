//! Transformers and decoders on wgpu compute what they compute on the CPU.

use burn::tensor::{Device, Int, Tensor, Tolerance};
use stovepipe_decoder::{DecoderConfig, LoraConfig};
use stovepipe_kernels::linear_cross_entropy;
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
    let objective = CrossEntropy::new().with_smoothing(0.1).ignoring(5);
    let config = LmConfig::new(VOCABULARY, LENGTH, 2, 32, 4);
    let layers = || config.init(&Device::flex()).unwrap();
    let batch = || (tokens(0), tokens(1));
    beside_cpu::check(&Pairs::Each, layers, batch, &objective, |builder| builder);
}

/// Rotary positions, keys and values that heads share, a loss that makes its logits block by block; all
/// weights, or those of an adapter.
#[test]
fn a_decoder() {
    let config = DecoderConfig {
        keys: 2,
        length: LENGTH,
        ..DecoderConfig::new(VOCABULARY, 32, 2, 4)
    };
    let device = Device::flex();
    let objective = CrossEntropy::new().with_smoothing(0.1).ignoring(5);
    let batch = || (tokens(0), tokens(1));
    let layers = || config.init(&device).unwrap();
    beside_cpu::check(&Pairs::Each, layers, batch, &objective, |builder| builder);
    let adapted = || {
        LoraConfig::new(4)
            .add_to(layers(), &config, &device)
            .unwrap()
    };
    beside_cpu::check(&Pairs::One, adapted, batch, &objective, |builder| builder);
}

/// Patches, a class token, no dropout; gradients of weights wait on both.
#[test]
fn a_vision_transformer() {
    let config = VitConfig::new(16, 4, 2, 32, 4, 10);
    let layers = || config.init(&Device::flex()).unwrap();
    let labels = || Tensor::arange(0..SAMPLES as i64, &Device::flex());
    let batch = || (pattern([SAMPLES, 3, 16, 16]), labels());
    let objective = CrossEntropy::new();
    beside_cpu::check(&Pairs::Each, layers, batch, &objective, |builder| {
        builder.schedule(Rule::ZeroBubbleH1)
    });
}

/// In two blocks of rows, with a table that is trained or not, next to the kernel of the CPU.
#[test]
fn cross_entropy_block_by_block() {
    let Some([gpu, _]) = beside_cpu::two_devices() else {
        return;
    };
    let [rows, width, classes] = [150, 3, 33_001];
    let target = |row: usize| {
        if row % 7 == 3 {
            -1
        } else {
            (row * 7919 % classes) as i64
        }
    };
    let target: Vec<_> = (0..rows).map(target).collect();
    let seen = |device: &Device, is_trained: bool| {
        let on = |shape| pattern(shape).to_device(device);
        let x = on([rows, width]).autodiff().require_grad();
        let table = match is_trained {
            true => on([classes, width]).autodiff().require_grad(),
            false => on([classes, width]),
        };
        let target = Tensor::from_data(target.as_slice(), device);
        let (loss, right) = linear_cross_entropy(x.clone(), table.clone(), target, 0.1, Some(-1));
        let gradients = loss.backward();
        let mut all = vec![loss.inner(), right.inner()];
        all.extend(x.grad(&gradients).map(|own| own.reshape([-1])));
        all.extend(table.grad(&gradients).map(|own| own.reshape([-1])));
        all.into_iter()
            .map(|own| own.into_data())
            .collect::<Vec<_>>()
    };
    for is_trained in [true, false] {
        let [expected, found] =
            [Device::flex(), gpu.device.clone()].map(|on| seen(&on, is_trained));
        assert_eq!(expected.len(), if is_trained { 4 } else { 3 });
        for (found, expected) in found.iter().zip(&expected) {
            found.assert_approx_eq::<f32>(expected, Tolerance::rel_abs(1e-4, 1e-5));
        }
    }
}
