//! Models in bf16 and f16: the number of stages changes no bit, and results equal those of f32 up to
//! rounding.

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{DType, Tensor},
};
use stovepipe_amoebanet::{AmoebaNetBConfig, AmoebaNetDConfig, Stem};
use stovepipe_pipeline::{
    Batch, CrossEntropy, Flow, Layer, LossScaler, Objective, Pipeline, Precision, Recompute,
};
use stovepipe_schedule::{Rule, Scheduler};
use stovepipe_transformer::{LmConfig, Positions, VitConfig};

use crate::palette::*;

/// Of fewer, the error of a rounding varies more.
const SAMPLES: usize = 10;

/// The loss of a step, and its gradients and the running statistics after it in one list.
struct Seen {
    loss: f64,
    numbers: Vec<f32>,
}

fn seen<L, T>(
    layers: &[L],
    batch: &Batch<L::Input, T, L::Side>,
    objective: &impl Objective<L::Output, T>,
    (workers, rule, recompute): (usize, Rule, Recompute),
    precision: Precision,
) -> Seen
where
    L: Layer,
    T: Flow,
{
    let layers = layers.iter().map(|layer| layer.valid().train()).collect();
    let schedule = rule.schedule(rule.stages(workers), 3).unwrap();
    let pipeline = Pipeline::builder(layers)
        .devices(vec![cpu(); workers])
        .schedule(schedule)
        .micro_batches(3)
        .recompute(recompute)
        .precision(precision)
        .build()
        .unwrap();
    // A scale at which nothing overflows.
    let mut scaler = LossScaler::default();
    (0..8).for_each(|_| scaler.update(true));
    pipeline.set_loss_scaler(scaler);
    let step = pipeline.train_step(batch.clone(), objective).unwrap();
    assert!(!step.overflowed);
    Seen {
        loss: step.loss,
        numbers: numbers(&pipeline, &step.gradients),
    }
}

fn numbers<M: Module>(module: &M, gradients: &GradientsParams) -> Vec<f32> {
    struct Numbers<'a>(&'a GradientsParams, Vec<f32>);

    impl ModuleVisitor for Numbers<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let shown = if param.is_require_grad() {
                self.0.get::<D>(param.id)
            } else {
                Some(param.val().inner())
            };
            let numbers = shown.map(|shown| shown.into_data().try_to_vec::<f32>().unwrap());
            self.1.extend(numbers.into_iter().flatten());
        }
    }

    let mut numbers = Numbers(gradients, Vec::new());
    module.visit(&mut numbers);
    numbers.1
}

fn difference(own: &[f32], exact: &[f32]) -> f64 {
    assert_eq!(own.len(), exact.len());
    let norm = |numbers: &mut dyn Iterator<Item = f32>| {
        let squares = numbers.map(|number| f64::from(number).powi(2));
        squares.sum::<f64>().sqrt()
    };
    let pairs = own.iter().zip(exact);
    norm(&mut pairs.map(|(own, exact)| own - exact)) / norm(&mut exact.iter().copied())
}

/// The same layers, with each parameter rounded once.
fn rounded<L: Layer>(layers: &[L], dtype: DType) -> Vec<L> {
    struct Round(DType);

    impl ModuleMapper for Round {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|tensor| tensor.cast(self.0).cast(DType::F32))
        }
    }

    let layers = layers.iter().map(Module::valid);
    layers.map(|layer| layer.map(&mut Round(dtype))).collect()
}

/// A step in f32 with parameters that were rounded once shows how much rounding changes the results. A step
/// in few bits rounds after each operation: some dozens of times in a row, and random errors grow with the
/// root of that.
fn check<L, T>(
    layers: Vec<L>,
    batch: Batch<L::Input, T, L::Side>,
    objective: impl Objective<L::Output, T>,
) where
    L: Layer,
    T: Flow,
{
    // Draws the parameters with a seed.
    let layers = Pipeline::builder(layers).devices([cpu()]).build();
    let layers = layers.unwrap().into_layers();
    let alone = (1, Rule::GPipe, Recompute::Never);
    let see = |how, precision| seen(&layers, &batch, &objective, how, precision);
    let exact = see(alone.clone(), Precision::F32);
    for (precision, dtype) in [(Precision::Bf16, DType::BF16), (Precision::F16, DType::F16)] {
        let expected = see(alone.clone(), precision);
        let of_rounded = rounded(&layers, dtype);
        let once = seen(
            &of_rounded,
            &batch,
            &objective,
            alone.clone(),
            Precision::F32,
        );
        let once = difference(&once.numbers, &exact.numbers);
        let error = difference(&expected.numbers, &exact.numbers);
        eprintln!("{precision}: {error:.5}, parameters rounded once: {once:.5}");
        assert!(error < 10.0 * once, "{precision}: {error}, {once}");
        assert!(error > 0.2 * once, "{precision}: nothing was rounded");
        let of_loss = (expected.loss / exact.loss - 1.0).abs();
        assert!(of_loss < 10.0 * once, "{precision}: {of_loss}, {once}");
        for how in [
            (2, Rule::OneForwardOneBackward, Recompute::ExceptLast),
            (3, Rule::GPipe, Recompute::Always),
            (2, Rule::ZeroBubbleH1, Recompute::Never),
            (2, Rule::ZeroBubbleV, Recompute::Always),
        ] {
            let found = see(how.clone(), precision);
            let bits = |seen: &Seen| seen.numbers.iter().map(|n| n.to_bits()).collect::<Vec<_>>();
            let losses = [&found, &expected].map(|seen| seen.loss.to_bits());
            assert_eq!(losses[0], losses[1], "{precision}, {how:?}");
            assert!(bits(&found) == bits(&expected), "{precision}, {how:?}");
        }
    }
}

fn images(samples: usize, size: usize) -> Batch<Tensor<4>, Tensor<1, burn::tensor::Int>> {
    Batch::from((pattern([samples, 3, size, size]), labels([samples], 3)))
}

#[test]
fn amoebanets() {
    let objective = || CrossEntropy::new().with_auxiliary_share(0.4);
    let d = AmoebaNetDConfig::new(3, 8, 3).with_stem(Stem::Small);
    let d = d.with_auxiliary(true);
    check(d.init(&cpu()).unwrap(), images(24, 16), objective());
    let b = AmoebaNetBConfig::new(3, 8, 3).with_stem(Stem::Small);
    let b = b.with_drop_path(0.2);
    check(b.init(&cpu()).unwrap(), images(24, 16), objective());
}

#[test]
fn language_models() {
    for positions in [Positions::Learned, Positions::Sinusoidal] {
        let config = LmConfig::new(7, 5, 2, 8, 2).with_dropout(0.2);
        let config = config.with_positions(positions);
        let batch = Batch::from((labels([SAMPLES, 5], 7), labels([SAMPLES, 5], 7)));
        check(config.init(&cpu()).unwrap(), batch, CrossEntropy::new());
    }
}

#[test]
fn a_vision_transformer() {
    let config = VitConfig::new(8, 4, 3, 12, 3, 3).with_drop_path(0.4);
    let layers = config.with_attention_dropout(0.2).init(&cpu()).unwrap();
    check(layers, images(SAMPLES, 8), CrossEntropy::new());
}

/// Skips, auxiliary heads, and every kind of randomness.
#[test]
fn skips_heads_and_noise() {
    check(long_skips(), vectors(SAMPLES, 6, 6), CrossEntropy::new());
    let objective = CrossEntropy::new().with_auxiliary_share(0.3);
    check(every_randomness(), vectors(SAMPLES, 6, 3), objective);
}

/// Only norms that are not frozen update their statistics. With drawn parameters, one model in six has a
/// variance so small that rounding changes its results by more than `check` allows.
#[test]
fn frozen_layers_and_norms() {
    let layers = vec![
        fixed(Part::Linear(linear(5, 6)), 21).freeze(),
        fixed(normed(6, 6), 22).freeze(),
        fixed(normed(6, 6), 23),
        fixed(Part::Linear(linear(6, 6)), 24).freeze(),
        fixed(Part::Linear(linear(6, 3)), 25),
    ];
    check(layers, vectors(SAMPLES, 5, 3), CrossEntropy::new());
}

/// The layer with weights and biases by a seed in place of those that were drawn.
fn fixed(layer: Part, seed: usize) -> Part {
    struct Fix(usize);

    impl ModuleMapper for Fix {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let drawn = param.val().into_data().try_to_vec::<f32>().unwrap();
            if drawn.iter().all(|number| *number == drawn[0]) {
                return param; // of a norm
            }
            let seed = self.0;
            param.map(|tensor| {
                let numbers = pattern([seed + 1, tensor.dims().iter().product()]);
                numbers.narrow(0, seed, 1).reshape(tensor.dims()) * 0.5
            })
        }
    }

    layer.map(&mut Fix(seed))
}
