//! A table of models. Each is a test, so that they run in parallel.

use burn::{
    module::Module,
    nn::Initializer,
    tensor::{Bool, Int, Tensor},
};
use stovepipe_amoebanet::{AmoebaNetDConfig, Stem};
use stovepipe_decoder::{DecoderConfig, LoraConfig, RopeScaling};
use stovepipe_pipeline::{Batch, CrossEntropy, Objective};
use stovepipe_transformer::{LmConfig, Positions, VitConfig};

use crate::{MICRO_BATCHES, SAMPLES, check, palette::*};

/// Most models need not have every number of stages: the perceptron and random models have.
const FEW: &[usize] = &[1, 2, 4];

#[test]
fn perceptron() {
    let layers = [(5, 9), (9, 7), (7, 7), (7, 3)].map(|(from, to)| Part::Linear(linear(from, to)));
    let batch = vectors(SAMPLES, 5, 3);
    check(layers.to_vec(), batch, CrossEntropy::new(), &[1, 2, 3, 4]);
}

#[test]
fn convolutions_with_batch_norm() {
    let layers = vec![
        convolution(2, 4),
        convolution(4, 4),
        convolution(4, 6),
        Part::Pool(linear(6, 8)),
        normed(8, 8),
        Part::Linear(linear(8, 3)),
    ];
    let maps = Value::Maps(pattern([SAMPLES, 2, 5, 5]));
    let batch = Batch::from((maps, labels([SAMPLES], 3), None));
    let cases = check(layers, batch, CrossEntropy::new(), FEW);
    assert_eq!(cases, MICRO_BATCHES.len());
}

#[test]
fn amoebanet_with_an_auxiliary_head() {
    let config = AmoebaNetDConfig::new(3, 4, 3).with_stem(Stem::Small);
    let config = config.with_auxiliary(true);
    let batch = Batch::new(pattern([5, 3, 8, 8]), labels([5], 3));
    let objective = CrossEntropy::new().with_smoothing(0.1);
    let objective = objective.with_auxiliary_share(0.4);
    check(config.init(&cpu()).unwrap(), batch, objective, &[2]);
}

/// Words, two blocks of attention with dropout, and a side input that masks padding.
#[test]
fn transformer_with_dropout_and_a_mask() {
    let length = 6;
    let layers = vec![
        embed(11, 8),
        block(8, 2),
        block(8, 2),
        Part::Pool(linear(8, 8)),
        Part::Linear(linear(8, 3)),
    ];
    let is_padded = |i: usize| i % length > i / length % length;
    let padded: Vec<bool> = (0..SAMPLES * length).map(is_padded).collect();
    let padding = Tensor::<1, Bool>::from_bool(padded.as_slice(), &cpu());
    let words = Value::Words(labels([SAMPLES, length], 11));
    let padding = Some(padding.reshape([SAMPLES, length]));
    let batch = Batch::from((words, labels([SAMPLES], 3), padding));
    check(layers, batch, CrossEntropy::new(), FEW);
}

/// The softmax shares the embedding's table. Dropout is everywhere, inside attention too.
#[test]
fn a_language_model_with_tied_words() {
    let config = LmConfig::new(7, 5, 2, 8, 2).with_dropout(0.2);
    for positions in [Positions::Learned, Positions::Sinusoidal] {
        let config = config.clone().with_positions(positions);
        let batch = Batch::new(labels([SAMPLES, 5], 7), labels([SAMPLES, 5], 7));
        let layers = config.init(&cpu()).unwrap();
        check(layers, batch, CrossEntropy::new(), FEW);
    }
}

#[test]
fn a_vision_transformer_that_drops_branches() {
    let config = VitConfig::new(8, 4, 3, 12, 3, 3).with_drop_path(0.4);
    let config = config.with_dropout(0.1).with_attention_dropout(0.2);
    let batch = Batch::new(pattern([SAMPLES, 3, 8, 8]), labels([SAMPLES], 3));
    let objective = CrossEntropy::new().with_smoothing(0.1);
    check(config.init(&cpu()).unwrap(), batch, objective, &[1, 2, 5]);
}

/// Four heads share the keys and values of two, and only an adapter is trained, with dropout.
#[test]
fn a_decoder_with_an_adapter() {
    let config = DecoderConfig {
        keys: 2,
        length: 5,
        ..DecoderConfig::new(7, 16, 2, 4)
    };
    let lora = LoraConfig {
        dropout: 0.2,
        ..LoraConfig::new(2)
    };
    let layers = lora
        .add_to(config.init(&cpu()).unwrap(), &config, &cpu())
        .unwrap();
    let batch = Batch::new(labels([SAMPLES, 5], 7), labels([SAMPLES, 5], 7));
    check(layers, batch, CrossEntropy::new(), FEW);
}

/// All that other kinds of decoders have, and all is trained.
#[test]
fn a_decoder_with_norms_of_heads_biases_and_two_tables() {
    let config = DecoderConfig {
        keys: 1,
        length: 5,
        head_norms: true,
        projection_bias: true,
        output_bias: true,
        mlp_bias: true,
        tied: false,
        scaling: RopeScaling::Linear(2.0),
        attention_dropout: 0.1,
        ..DecoderConfig::new(7, 8, 1, 2)
    };
    let batch = Batch::new(labels([SAMPLES, 5], 7), labels([SAMPLES, 5], 7));
    check(
        config.init(&cpu()).unwrap(),
        batch,
        CrossEntropy::new(),
        &[2, 3],
    );
}

#[test]
fn values_that_skip_layers() {
    let batch = vectors(SAMPLES, 6, 6);
    check(long_skips(), batch, CrossEntropy::new(), &[1, 2, 3, 6]);
}

#[test]
fn layers_that_share_no_shape() {
    let layers = vec![
        Part::Linear(linear(5, 3)),
        Part::Unfold(linear(3, 32)),
        convolution(2, 5),
        Part::Pool(linear(5, 7)),
        Part::Linear(linear(7, 4)),
    ];
    check(layers, vectors(SAMPLES, 5, 4), CrossEntropy::new(), FEW);
}

/// The loss ignores padding, so that micro-batches have different weights, some of them 0.
#[test]
fn integers_and_a_loss_that_ignores_padding() {
    let length = 4;
    let (gain, fan_out_only) = (1.0, false);
    let head = Part::TiedHead(table(Initializer::KaimingUniform { gain, fan_out_only }));
    let layers = vec![embed(7, 6), block(6, 2), block(6, 3), head];
    // A sample has 0 to 4 targets that count; two in a row have none.
    let targets: Vec<i64> = (0..SAMPLES * length)
        .map(|i| match (i / length, i % length) {
            (6 | 7, _) => -1,
            (sample, place) if place > sample % length => -1,
            (sample, place) => ((3 * sample + place) % 7) as i64,
        })
        .collect();
    let words = Value::Words(labels([SAMPLES, length], 7));
    let targets = Tensor::<1, Int>::from_ints(targets.as_slice(), &cpu());
    let batch = Batch::from((words, targets.reshape([SAMPLES, length]), None));
    let objective = Tokens(CrossEntropy::new().ignoring(-1));
    check(layers, batch, objective, FEW);
}

/// Logits have a row for each token, targets a row for each sample.
#[derive(Clone)]
struct Tokens(CrossEntropy);

impl Objective<Tensor<2>, Tensor<2, Int>> for Tokens {
    fn loss(&self, logits: Tensor<2>, target: Tensor<2, Int>) -> Tensor<1> {
        self.0.loss(logits, target.flatten::<1>(0, 1))
    }

    fn weight(&self, target: &Tensor<2, Int>) -> f64 {
        self.0.weight(&target.clone().flatten::<1>(0, 1))
    }
}

/// Within a layer, and over four layers in a row.
#[test]
fn a_value_with_four_consumers() {
    let mut layers = vec![Part::Four(linear(5, 5)), Part::Begin(linear(5, 5))];
    layers.extend((0..3).map(|_| Part::Read(linear(5, 5))));
    layers.push(Part::Linear(linear(5, 3)));
    check(
        layers,
        vectors(SAMPLES, 5, 3),
        CrossEntropy::new(),
        &[1, 3, 6],
    );
}

#[test]
fn all_kinds_of_randomness() {
    let objective = CrossEntropy::new().with_auxiliary_share(0.3);
    check(every_randomness(), vectors(SAMPLES, 6, 3), objective, FEW);
}

/// The embedding and the softmax share a table, on different stages.
#[test]
fn tied_words() {
    let length = 3;
    let (mean, std) = (0.0, 0.3);
    let table = table(Initializer::Normal { mean, std });
    let (first, last) = (Part::Tied(table.clone()), Part::TiedHead(table));
    let layers = vec![first, block(6, 2), block(6, 2), last];
    let words = Value::Words(labels([SAMPLES, length], 7));
    let batch = Batch::from((words, labels([SAMPLES, length], 7), None));
    check(layers, batch, Tokens(CrossEntropy::new()), FEW);
}

/// A frozen layer at the start, one in between, and frozen batch norm.
#[test]
fn frozen_layers() {
    let layers = vec![
        Part::Linear(linear(5, 6)).freeze(),
        normed(6, 6).freeze(),
        skip(6, "+a"),
        Part::Linear(linear(6, 6)).freeze(),
        skip(6, "-a"),
        Part::Linear(linear(6, 3)),
    ];
    check(
        layers,
        vectors(SAMPLES, 5, 3),
        CrossEntropy::new(),
        &[1, 2, 6],
    );
}
