//! Random numbers in layers are the same wherever and whenever a layer runs.

use burn::{
    module::Module,
    nn::{
        DropoutConfig, GaussianNoiseConfig, Linear, LinearConfig,
        attention::{MultiHeadAttention, MultiHeadAttentionConfig},
    },
    optim::{GradientsParams, SgdConfig},
    tensor::Tensor,
};
use stovepipe_pipeline::{
    BuildError, Context, CrossEntropy, KeyedRng, Layer, LayerError, MeanOf, Objective, Pipeline,
    PipelineBuilder, Recompute, StepError,
    error::UnkeyedError,
    layer,
    nn::{DropPath, Dropout, GaussianNoise},
    run_plain,
};
use stovepipe_schedule::{GPipe, OneForwardOneBackward, Scheduler};

use crate::models::*;

/// All layers of `nn`, dropout twice.
#[derive(Module, Debug)]
struct Noisy {
    linear: Linear,
    dropout: Dropout,
    path: DropPath,
    noise: GaussianNoise,
}

impl Layer for Noisy {
    flow!(Tensor<2>);

    fn forward(
        &self,
        x: Tensor<2>,
        context: &mut Context<'_, Self>,
    ) -> Result<Tensor<2>, LayerError> {
        let draws = context.rng();
        let y = self.linear.forward(self.dropout.forward(x.clone(), draws));
        let y = self.dropout.forward(y.tanh(), draws);
        Ok(self.noise.forward(x, draws) + self.path.forward(y, draws))
    }
}

fn noisy(layers: usize) -> Vec<Noisy> {
    (0..layers)
        .map(|_| Noisy {
            linear: LinearConfig::new(6, 6).init(&cpu()),
            dropout: Dropout::new(0.3),
            path: DropPath::new(0.4),
            noise: GaussianNoise::new(0.1),
        })
        .collect()
}

type Bits = Vec<(String, Vec<u32>)>;

fn two_steps(mut pipeline: Pipeline<Noisy>) -> [Bits; 2] {
    let mut optimizer = SgdConfig::new().init();
    [(); 2].map(|()| {
        let loss = CrossEntropy::new();
        let step = pipeline.train_step((vectors(7, 6), labels(7, 6)), &loss);
        let step = step.unwrap();
        let bits = gradient_bits(&pipeline, &step.gradients);
        pipeline = optimizer.step(0.05, pipeline.clone(), step.gradients);
        let _ = pipeline.infer(vectors(3, 6)).unwrap();
        bits
    })
}

#[test]
fn no_cut_schedule_or_recomputation_changes_what_is_drawn() {
    for micro_batches in [1, 3] {
        let one = built(noisy(4), 1, GPipe, micro_batches, Recompute::Never);
        let expected = two_steps(one);
        assert_ne!(expected[0], expected[1], "each step draws anew");
        for rule in RULES {
            for workers in (1..=4).filter(|&workers| rule.stages(workers) <= 4) {
                for recompute in Recompute::ALL {
                    let pipeline = built(noisy(4), workers, rule, micro_batches, recompute);
                    let found = two_steps(pipeline);
                    assert_eq!(found, expected, "{workers} workers, {rule:?}, {recompute}");
                }
            }
        }
    }
}

/// Each sample has its own numbers, with any number of micro-batches.
#[test]
fn the_mini_batch_in_one_piece_draws_the_same() {
    for micro_batches in [1, 2, 3, 7] {
        let pipeline = built(
            noisy(3),
            3,
            OneForwardOneBackward,
            micro_batches,
            Recompute::Always,
        );
        pipeline.set_steps(12);
        let loss = CrossEntropy::new();
        let step = pipeline.train_step((vectors(7, 6), labels(7, 6)), &loss);
        let found = gradients_of(&pipeline, &step.unwrap().gradients);
        assert_eq!(pipeline.steps(), 13);

        let draws = |layer| KeyedRng::new(7, 12, layer, 0..7);
        let input = vectors(7, 6).autodiff();
        let plain = run_plain(pipeline.layers(), input, &(), draws).unwrap();
        let loss = loss
            .loss(plain.output, labels(7, 6).autodiff())
            .div_scalar(7);
        let gradients = GradientsParams::from_grads(loss.backward(), &pipeline);
        let expected = gradients_of(&pipeline, &gradients);
        for ((path, found), (_, expected)) in found.iter().zip(&expected) {
            let difference = relative_difference(found, expected);
            assert!(difference < 1e-5, "{path}: {difference}, {micro_batches}");
        }
    }
}

#[test]
fn another_seed_or_step_draws_other_numbers_and_a_failed_step_draws_them_again() {
    let gradients = |seed, steps, fail: bool| {
        // Parameters have values, so the seed only affects the draws.
        let layers = builder(noisy(2), 1, GPipe, 1, Recompute::Never).build();
        let layers = layers.unwrap().into_layers();
        let pipeline = builder(layers, 2, GPipe, 2, Recompute::Always).seed(seed);
        let pipeline = pipeline.build().unwrap();
        pipeline.set_steps(steps);
        if fail {
            let bad = MeanOf(|_: Tensor<2>, _: Tensor<2>| panic!("no loss today"));
            assert!(
                pipeline
                    .train_step((vectors(4, 6), vectors(4, 6)), &bad)
                    .is_err()
            );
        }
        let step = pipeline.train_step((vectors(4, 6), labels(4, 6)), &CrossEntropy::new());
        gradient_bits(&pipeline, &step.unwrap().gradients)
    };
    assert_eq!(gradients(1, 0, false), gradients(1, 0, false));
    assert_eq!(gradients(1, 0, true), gradients(1, 0, false));
    assert_ne!(gradients(2, 0, false), gradients(1, 0, false));
    assert_ne!(gradients(1, 3, false), gradients(1, 0, false));
}

#[test]
fn evaluation_and_frozen_layers_drop_nothing() {
    let pipeline = builder(noisy(2), 2, GPipe, 2, Recompute::Always).build();
    let pipeline = pipeline.unwrap();
    let output = || tensor_bits(pipeline.infer(vectors(4, 6)).unwrap());
    let expected = output();
    assert_eq!(output(), expected);
    pipeline.set_steps(5);
    assert_eq!(output(), expected);

    let loss = |pipeline: &Pipeline<Noisy>| {
        let step = pipeline.train_step((vectors(4, 6), labels(4, 6)), &CrossEntropy::new());
        step.unwrap().loss
    };
    let (frozen, trained) = (pipeline.clone().freeze(), loss(&pipeline));
    let logits = pipeline.infer(vectors(4, 6)).unwrap();
    let plain = CrossEntropy::new()
        .loss(logits, labels(4, 6))
        .into_scalar::<f32>()
        / 4.0;
    assert!((loss(&frozen) - f64::from(plain)).abs() < 1e-6);
    assert!((trained - f64::from(plain)).abs() > 1e-3);
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
    let linear = Burns::Linear(LinearConfig::new(4, 4).init(&cpu()));
    builder(vec![linear, layer], 2, GPipe, 2, recompute)
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
        assert!(
            build(layer.clone().valid(), false).is_err(),
            "it will train again"
        );
        let frozen = build(layer.freeze(), false).expect("what is frozen draws nothing");
        // Until it is thawed.
        let loss = CrossEntropy::new();
        let step =
            |pipeline: Pipeline<Burns>| pipeline.train_step((vectors(4, 4), labels(4, 4)), &loss);
        assert!(step(frozen.clone()).is_ok());
        assert!(matches!(
            step(frozen.unfreeze()),
            Err(StepError::Unkeyed(UnkeyedError::NotAllowed(_)))
        ));
    }
    let keyed = burns_own(
        Burns::Linear(LinearConfig::new(4, 4).init(&cpu())),
        Recompute::Always,
    );
    assert!(keyed.build().is_ok());
    // Ours has the same name, but is keyed.
    assert!(
        builder(noisy(2), 2, GPipe, 2, Recompute::Always)
            .build()
            .is_ok()
    );
}

#[test]
fn burns_own_dropout_trains_without_recomputation_and_with_a_warning() {
    for recompute in [Recompute::Always, Recompute::ExceptLast] {
        let builder = burns_own(dropout(0.5), recompute).allow_unkeyed(true);
        let error = builder.build().unwrap_err();
        assert!(matches!(
            error,
            BuildError::Unkeyed(UnkeyedError::Recomputed { .. })
        ));
        let text = error.to_string();
        let advice = "Use recompute `never`, or `stovepipe::nn::Dropout` instead";
        assert!(
            text.contains(&format!("mode is `{recompute}`")) && text.contains(advice),
            "{text}"
        );
    }
    // What is thawed later is checked before it trains.
    let frozen = dropout(0.5).freeze();
    let frozen = burns_own(frozen, Recompute::Always).allow_unkeyed(true);
    let thawed = frozen.build().unwrap().unfreeze();
    let batch = || (vectors(8, 4), labels(8, 4));
    let error = thawed.train_step(batch(), &CrossEntropy::new());
    assert!(matches!(
        error,
        Err(StepError::Unkeyed(UnkeyedError::Recomputed { .. }))
    ));

    let allowed = burns_own(dropout(0.5), Recompute::Never).allow_unkeyed(true);
    let pipeline = allowed.build().unwrap();
    let warnings: Vec<_> = pipeline.unkeyed().iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "layer 1 (Dropout) holds Burn's `Dropout`, which draws other numbers in each run: \
             training does not give the same bits again; `stovepipe::nn::Dropout` does"
        ]
    );
    // It drops: steps of one model differ.
    let step = || pipeline.train_step(batch(), &CrossEntropy::new()).unwrap();
    let steps: Vec<_> = (0..4).map(|_| step()).collect();
    assert!(steps.iter().all(|step| step.loss.is_finite()));
    assert!(steps.iter().any(|step| step.loss != steps[0].loss));
    let evaluate = || pipeline.evaluate(batch(), &CrossEntropy::new()).unwrap();
    assert_eq!(evaluate(), evaluate());
}
