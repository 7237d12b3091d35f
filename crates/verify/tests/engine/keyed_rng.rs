//! Random numbers in layers are the same wherever and whenever a layer runs.

use burn::nn::{
    DropoutConfig, GaussianNoiseConfig,
    attention::{MultiHeadAttention, MultiHeadAttentionConfig},
};
use stovepipe_pipeline::{
    error::UnkeyedError,
    nn::{DropPath, Dropout, GaussianNoise},
};

use crate::{models::*, ranks::assert_no_cut_shows};

/// All layers of `nn`, dropout twice.
#[derive(Module, Debug)]
struct Noisy {
    linear: Linear,
    dropout: Dropout,
    path: DropPath,
    noise: GaussianNoise,
}

#[layer]
impl Noisy {
    fn forward(&self, x: Tensor<2>, rng: &mut KeyedRng) -> Tensor<2> {
        let y = self.linear.forward(self.dropout.forward(x.clone(), rng));
        let y = self.dropout.forward(y.tanh(), rng);
        self.noise.forward(x, rng) + self.path.forward(y, rng)
    }
}

fn noisy(layers: usize) -> Vec<Noisy> {
    let layer = |_| Noisy {
        linear: linear(6, 6),
        dropout: Dropout::new(0.3),
        path: DropPath::new(0.4),
        noise: GaussianNoise::new(0.1),
    };
    (0..layers).map(layer).collect()
}

#[test]
fn no_cut_schedule_or_recomputation_changes_what_is_drawn() {
    for micro_batches in [1, 3] {
        let inputs = (vectors(7, 6), vectors(3, 6));
        let seen = assert_no_cut_shows(|| noisy(4), micro_batches, inputs, 6);
        assert_ne!(seen[1], seen[5], "each step draws anew");
    }
}

/// Each sample has its own numbers, with any number of micro-batches.
#[test]
fn the_mini_batch_in_one_piece_draws_the_same() {
    for micro_batches in [1, 2, 3, 7] {
        let (rule, recompute) = (OneForwardOneBackward, Recompute::Always);
        let pipeline = built(noisy(3), 3, rule, micro_batches, recompute);
        pipeline.set_steps(12);
        let step = train(&pipeline, vectors(7, 6), 6).unwrap();
        let found = gradients_of(&pipeline, &step.gradients);
        assert_eq!(pipeline.steps(), 13);

        let draws = |layer| KeyedRng::new(7, 12, layer, 0..7);
        let expected = plain_gradients(pipeline.layers(), vectors(7, 6).autodiff(), 6, draws);
        assert_close(&found, &expected, 1e-5);
    }
}

#[test]
fn another_seed_or_step_draws_other_numbers_and_a_failed_step_draws_them_again() {
    let gradients = |seed, steps, fail: bool| {
        // Parameters have values, so the seed only affects the draws.
        let layers = built(noisy(2), 1, GPipe, 1, Recompute::Never).into_layers();
        let pipeline = builder(layers, 2, GPipe, 2, Recompute::Always).seed(seed);
        let pipeline = pipeline.build().unwrap();
        pipeline.set_steps(steps);
        if fail {
            let bad = MeanOf(|_: Tensor<2>, _: Tensor<2>| panic!("no loss today"));
            let step = pipeline.train_step((vectors(4, 6), vectors(4, 6)), &bad);
            assert!(step.is_err());
        }
        let step = train(&pipeline, vectors(4, 6), 6).unwrap();
        gradient_bits(&pipeline, &step.gradients)
    };
    assert_eq!(gradients(1, 0, false), gradients(1, 0, false));
    assert_eq!(gradients(1, 0, true), gradients(1, 0, false));
    assert_ne!(gradients(2, 0, false), gradients(1, 0, false));
    assert_ne!(gradients(1, 3, false), gradients(1, 0, false));
}

#[test]
fn evaluation_and_frozen_layers_drop_nothing() {
    let pipeline = built(noisy(2), 2, GPipe, 2, Recompute::Always);
    let output = || tensor_bits(pipeline.infer(vectors(4, 6)).unwrap());
    let expected = output();
    assert_eq!(output(), expected);
    pipeline.set_steps(5);
    assert_eq!(output(), expected);

    let loss = |pipeline| train(pipeline, vectors(4, 6), 6).unwrap().loss;
    let (frozen, trained) = (pipeline.clone().freeze(), loss(&pipeline));
    let logits = pipeline.infer(vectors(4, 6)).unwrap();
    let plain = CrossEntropy::new().loss(logits, labels(4, 6));
    let plain = f64::from(plain.into_scalar::<f32>() / 4.0);
    assert!((loss(&frozen) - plain).abs() < 1e-6);
    assert!((trained - plain).abs() > 1e-3);
}

/// A layer with one of Burn's modules.
#[derive(Module, Debug)]
enum Burns {
    Dropout(burn::nn::Dropout),
    Noise(burn::nn::GaussianNoise),
    Attention(MultiHeadAttention),
    Linear(Linear),
}

#[layer]
impl Burns {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        match self {
            Self::Dropout(dropout) => dropout.forward(x),
            Self::Noise(noise) => noise.forward(x),
            Self::Attention(_) => x,
            Self::Linear(linear) => linear.forward(x),
        }
    }
}

fn burns_own(layer: Burns, recompute: Recompute) -> PipelineBuilder<Burns> {
    let layers = vec![Burns::Linear(linear(4, 4)), layer];
    builder(layers, 2, GPipe, 2, recompute)
}

fn dropout(probability: f64) -> Burns {
    Burns::Dropout(DropoutConfig::new(probability).init())
}

#[test]
fn what_cannot_be_drawn_again_is_an_error_that_names_what_can() {
    let build = |layer: Burns, ignore| {
        let builder = burns_own(layer, Recompute::Always);
        builder.unkeyed_draws_nothing(ignore).build()
    };
    let noise = || Burns::Noise(GaussianNoiseConfig::new(0.1).init());
    let attention = || Burns::Attention(MultiHeadAttentionConfig::new(4, 2).init(&cpu()));
    let message = |layer| build(layer, false).unwrap_err().to_string();
    assert_eq!(
        message(dropout(0.0)),
        "layer 1 (Dropout) holds Burn's `Dropout`, which draws other numbers when the layer is \
         recomputed or the model is cut elsewhere: use `stovepipe::nn::Dropout` instead; or use \
         `allow_unkeyed(true)` and recompute `never`, without the same bits; or \
         `unkeyed_draws_nothing(true)` if its probability is 0"
    );
    assert!(message(noise()).contains("use `stovepipe::nn::GaussianNoise` instead"));
    assert!(message(attention()).contains("holds Burn's `Dropout`"));
    for layer in [dropout(0.0), noise(), attention()] {
        let ignored = build(layer.clone(), true).unwrap();
        assert_eq!(ignored.unkeyed(), []);
        let evaluated = build(layer.clone().valid(), false);
        assert!(evaluated.is_err(), "it will train again");
        let frozen = build(layer.freeze(), false).expect("what is frozen draws nothing");
        // Until it is thawed.
        let step = |pipeline| train(&pipeline, vectors(4, 4), 4);
        assert!(step(frozen.clone()).is_ok());
        let refused = |error| matches!(error, StepError::Unkeyed(UnkeyedError::NotAllowed(_)));
        assert!(step(frozen.unfreeze()).is_err_and(refused));
    }
    build(Burns::Linear(linear(4, 4)), false).unwrap();
    // Ours has the same name, but is keyed.
    built(noisy(2), 2, GPipe, 2, Recompute::Always);
}

#[test]
fn burns_own_dropout_trains_without_recomputation_and_with_a_warning() {
    const TEST: &str =
        "keyed_rng::burns_own_dropout_trains_without_recomputation_and_with_a_warning";
    let run = || {
        check_burns_own_dropout();
        Ok::<_, StepError>(())
    };
    in_own_process(TEST, run).unwrap();
}

fn check_burns_own_dropout() {
    for recompute in [Recompute::Always, Recompute::ExceptLast] {
        let builder = burns_own(dropout(0.5), recompute.clone()).allow_unkeyed(true);
        let BuildError::Unkeyed(error) = builder.build().unwrap_err() else {
            panic!("another error");
        };
        assert!(matches!(error, UnkeyedError::Recomputed { .. }));
        assert_contains(&error, &format!("mode is `{recompute}`"));
        let advice = "Use recompute `never`, or `stovepipe::nn::Dropout` instead";
        assert_contains(&error, advice);
    }
    // What is thawed later is checked before it trains.
    let frozen = dropout(0.5).freeze();
    let frozen = burns_own(frozen, Recompute::Always).allow_unkeyed(true);
    let thawed = frozen.build().unwrap().unfreeze();
    let refused = |error| matches!(error, StepError::Unkeyed(UnkeyedError::Recomputed { .. }));
    assert!(train(&thawed, vectors(8, 4), 4).is_err_and(refused));

    let allowed = burns_own(dropout(0.5), Recompute::Never).allow_unkeyed(true);
    let pipeline = allowed.build().unwrap();
    let warnings: Vec<_> = pipeline.unkeyed().iter().map(ToString::to_string).collect();
    let expected = "layer 1 (Dropout) holds Burn's `Dropout`, which draws other numbers in each run: \
        training does not give the same bits again; `stovepipe::nn::Dropout` does";
    assert_eq!(warnings, [expected]);
    // It drops: steps of one model differ.
    let losses = [(); 4].map(|()| train(&pipeline, vectors(8, 4), 4).unwrap().loss);
    assert!(losses.iter().all(|loss| loss.is_finite()));
    assert!(losses.iter().any(|&loss| loss != losses[0]));
    let batch = || (vectors(8, 4), labels(8, 4));
    let evaluate = || pipeline.evaluate(batch(), &CrossEntropy::new()).unwrap();
    assert_eq!(evaluate(), evaluate());
}
