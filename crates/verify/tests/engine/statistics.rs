//! Running statistics move once per mini-batch, as if it came in one piece.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig};
use stovepipe_kernels::{batch_norm, relu_convolve};

use crate::models::*;

/// Counts how often it runs.
#[derive(Clone, Debug, Default)]
struct Runs(Arc<AtomicUsize>);

/// A norm that counts.
#[derive(Module, Debug)]
struct Counting {
    norm: BatchNorm,
    is_used: bool,
    #[module(skip)]
    runs: Runs,
}

#[layer]
impl Counting {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.runs.0.fetch_add(1, Ordering::SeqCst);
        if self.is_used {
            self.norm.forward(x)
        } else {
            x
        }
    }
}

/// Two more passes each find the momentum. Where there is none to find, a step looks for it and the next ones
/// do not.
#[test]
fn a_momentum_that_cannot_be_found_is_looked_for_in_one_step() {
    for (momentum, is_used, first) in [(0.1, true, 4), (0.0, true, 6), (0.1, false, 6)] {
        let norm = BatchNormConfig::new(3).with_momentum(momentum);
        let runs = Runs::default();
        let layer = Counting {
            norm: norm.init(&cpu()),
            is_used,
            runs: runs.clone(),
        };
        let pipeline = built(vec![layer], 1, GPipe, 2, Recompute::Never);
        for expected in [first, 2, 2] {
            let _ = train(&pipeline, pattern([4, 3]), 3).unwrap();
            let found = runs.0.swap(0, Ordering::SeqCst);
            assert_eq!(found, expected, "momentum {momentum}, used: {is_used}");
        }
    }
}

/// A batch norm alone, Burn's or our kernel's.
#[derive(Module, Debug)]
enum Norm {
    Burns(BatchNorm),
    Kernel(BatchNorm),
    Pool(AdaptiveAvgPool2d),
}

impl Layer for Norm {
    type Input = Tensor<4>;
    type Flow = Tensor<4>;
    type Output = Tensor<2>;
    type Side = ();

    fn enter(input: Tensor<4>) -> Tensor<4> {
        input
    }

    fn forward(&self, x: Tensor<4>, _: &mut Context<'_, Self>) -> Result<Tensor<4>, LayerError> {
        Ok(match self {
            Self::Burns(norm) => norm.forward(x),
            Self::Kernel(norm) => batch_norm(norm, x),
            Self::Pool(pool) => pool.forward(x),
        })
    }

    fn leave(flow: Tensor<4>) -> Result<Tensor<2>, LayerError> {
        Ok(flow.flatten(1, 3))
    }
}

fn pool() -> Norm {
    Norm::Pool(AdaptiveAvgPool2dConfig::new([1, 1]).init())
}

/// Images whose mean and spread differ from sample to sample and from channel to channel.
fn uneven_images(samples: usize) -> Tensor<4> {
    let context = pattern([samples, 3, 1, 1]).mul_scalar(4) + 2;
    images(samples) * context.clone() + context
}

fn numbers(norm: &BatchNorm) -> [Vec<f32>; 2] {
    let norm = norm.valid();
    [&norm.running_mean, &norm.running_var].map(|state| floats(state.value()))
}

fn norms(pipeline: &Pipeline<Norm>) -> Vec<[Vec<f32>; 2]> {
    let layers = pipeline.layers().iter();
    let norms = layers.filter_map(|layer| match layer {
        Norm::Burns(norm) | Norm::Kernel(norm) => Some(numbers(norm)),
        Norm::Pool(_) => None,
    });
    norms.collect()
}

fn step(pipeline: &Pipeline<Norm>, samples: usize) {
    let _ = train(pipeline, uneven_images(samples), 3).unwrap();
}

/// Compares means and variances.
#[track_caller]
fn assert_near(found: &[Vec<f32>; 2], expected: &BatchNorm, what: &str) {
    for (found, expected) in found.iter().zip(numbers(expected)) {
        let difference = relative_difference(found, &expected);
        assert!(difference < 1e-4, "{what}: {difference}");
    }
}

/// Compares with Burn's batch norm on the whole mini-batch.
#[test]
fn they_are_those_of_the_whole_mini_batch() {
    for momentum in [0.0, 0.01, 0.1, 0.5, 1.0] {
        for (samples, micro_batches) in [(8, 4), (7, 3), (5, 8), (6, 1)] {
            for recompute in Recompute::MODES {
                let config = BatchNormConfig::new(3).with_momentum(momentum);
                let whole = config.init(&cpu().autodiff());
                let norm = || config.init(&cpu());
                let layers = vec![Norm::Burns(norm()), pool()];
                let ours = vec![Norm::Kernel(norm()), pool()];
                for layers in [layers, ours] {
                    let whole = whole.valid().train();
                    let pipeline = built(layers, 2, GPipe, micro_batches, recompute.clone());
                    for _ in 0..3 {
                        step(&pipeline, samples);
                        let _ = whole.forward(uneven_images(samples).autodiff());
                    }
                    let [found] = &norms(&pipeline)[..] else {
                        panic!("there is one norm");
                    };
                    let what = format!("momentum {momentum}, {samples} samples, {recompute}");
                    assert_near(found, &whole, &what);
                }
            }
        }
    }
}

/// The variance of the micro-batches' means counts too, and is large here.
#[test]
fn the_variance_of_means_counts() {
    let layers = vec![Norm::Burns(norm(3)), pool()];
    let pipeline = built(layers, 1, GPipe, 2, Recompute::Never);
    let images = Tensor::cat(vec![Tensor::ones([2, 3, 8, 8], &cpu()); 2], 0);
    let sign = Tensor::<1>::from_floats([1.0, 1.0, -1.0, -1.0], &cpu()).reshape([4, 1, 1, 1]);
    let _ = train(&pipeline, images * sign, 3).unwrap();
    // Each micro-batch has variance 0; together they have mean 0 and variance 1.
    let [mean, variance] = &norms(&pipeline)[0];
    assert!(mean.iter().all(|mean| mean.abs() < 1e-6), "{mean:?}");
    let is_expected = |variance: &f32| (variance - (0.9 + 0.1 * 1.0)).abs() < 1e-5;
    assert!(variance.iter().all(is_expected), "{variance:?}");
}

/// Exact statistics are those of Burn's norm with momentum 1 on all samples at once, whatever they were
/// before.
#[test]
fn recalibrated_ones_are_exact() {
    let sets = [[8, 5, 7].as_slice(), &[6]];
    let cases = sets.into_iter().flat_map(|sizes| {
        let precisions = [(Precision::F32, 1e-4), (Precision::Bf16, 2e-2)];
        precisions.map(|precision| (sizes, precision))
    });
    for (sizes, (precision, tolerance)) in cases {
        let mut seen = Vec::new();
        for (momentum, stages) in [(0.01, 1), (0.1, 1), (0.1, 3), (1.0, 2)] {
            let norm = || BatchNormConfig::new(3).with_momentum(momentum).init(&cpu());
            let layers = vec![Norm::Burns(norm()), Norm::Kernel(norm().freeze()), pool()];
            let builder = builder(layers, stages, GPipe, 3, Recompute::ExceptLast);
            let pipeline = builder.precision(precision).build().unwrap();
            assert!(pipeline.can_recalibrate());
            step(&pipeline, 4);
            let frozen = norms(&pipeline)[1].clone();
            let parts = sizes.iter().scan(0, |first, &size| {
                *first += size;
                Some(uneven_images(20).narrow(0, *first - size, size))
            });
            let parts: Vec<_> = parts.collect();
            let inputs = parts.iter().cloned().map(Inputs::from);
            pipeline
                .recalibrate(usize::MAX, inputs.map(Ok::<_, StepError>))
                .unwrap();
            let whole = BatchNormConfig::new(3).with_momentum(1.0);
            let whole = whole.init(&cpu().autodiff());
            let _ = whole.forward(Tensor::cat(parts, 0).autodiff());
            let found = norms(&pipeline);
            for (found, expected) in found[0].iter().zip(numbers(&whole)) {
                let difference = relative_difference(found, &expected);
                assert!(
                    difference < tolerance,
                    "{precision} {momentum}: {difference}"
                );
            }
            assert_eq!(found[1], frozen);
            assert_eq!(pipeline.steps(), 1);
            if momentum == 0.1 {
                seen.push(found);
            }
        }
        assert_eq!(seen[0], seen[1], "stages change no bit");
    }
    let layers = vec![Norm::Kernel(norm(3)).freeze(), pool()];
    let frozen = built(layers, 1, GPipe, 1, Recompute::Never);
    assert!(!frozen.can_recalibrate());
}

fn block_of(layer: &ConvNet) -> Option<&Block> {
    match layer {
        ConvNet::Block(block) | ConvNet::Tied(block) | ConvNet::HalfTied(block) => Some(block),
        _ => None,
    }
}

/// Collects the input of each norm of a network with plain Burn, micro-batch by micro-batch, and
/// gives all of it to a separate norm.
#[test]
fn deep_in_a_network_too() {
    let (samples, micro_batches) = (6, 3);
    for recompute in Recompute::MODES {
        for stages in [1, 3] {
            let rule = OneForwardOneBackward;
            let pipeline = built(conv_net(), stages, rule, micro_batches, recompute.clone());
            let layers = pipeline.layers().iter();
            let plain: Vec<ConvNet> = layers.map(|layer| layer.valid().train()).collect();
            let mut flows: Vec<_> = (0..micro_batches)
                .map(|part| ConvNet::enter(images(samples).narrow(0, 2 * part, 2).autodiff()))
                .collect();
            let mut expected = Vec::new();
            for layer in &plain {
                if let Some(block) = block_of(layer) {
                    let convolved = flows.iter().map(|flow| match flow.clone() {
                        Signal::Map(x) => relu_convolve(&block.conv, x),
                        Signal::Logits(_) => panic!("blocks see maps"),
                    });
                    let norm = block.norm.valid().train();
                    let _ = norm.forward(Tensor::cat(convolved.collect(), 0));
                    expected.push(norm);
                }
                flows = (flows.into_iter())
                    .map(|flow| layer.forward(flow, &mut Context::new(&(), true)).unwrap())
                    .collect();
            }
            let _ = train(&pipeline, images(samples), 4).unwrap();
            let blocks = pipeline.layers().iter().filter_map(block_of);
            let found: Vec<_> = blocks.map(|block| numbers(&block.norm)).collect();
            assert_eq!(found.len(), 5);
            for (found, expected) in found.iter().zip(&expected) {
                assert_near(found, expected, &recompute.to_string());
            }
        }
    }
}

#[test]
fn a_frozen_norm_stays_to_the_bit_and_evaluation_changes_nothing() {
    for rule in RULES {
        let layers = vec![
            Norm::Burns(norm(3)),
            Norm::Kernel(norm(3)).freeze(),
            Norm::Burns(norm(3)),
            Norm::Kernel(norm(3)),
            Norm::Burns(norm(3)),
            pool(),
        ];
        let workers = 6 / rule.stages(1);
        let pipeline = built(layers, workers, rule, 3, Recompute::ExceptLast);
        let before = norms(&pipeline);
        step(&pipeline, 6);
        let after = norms(&pipeline);
        for (index, (before, after)) in before.iter().zip(&after).enumerate() {
            assert_eq!(before == after, index == 1, "{rule:?}, norm {index}");
        }
        let _ = pipeline.infer(uneven_images(5)).unwrap();
        assert_eq!(norms(&pipeline), after);
    }
}

/// Frozen norms normalize by their statistics, which must not change, on any stage.
/// Thawed norms count again.
#[test]
fn norms_among_frozen_ones_and_thawed_ones() {
    let layers = || {
        let mut layers = Vec::from([(); 4].map(|()| Norm::Burns(norm(3)).freeze()));
        layers.extend([Norm::Burns(norm(3)), pool()]);
        layers
    };
    let plain = || BatchNormConfig::new(3).init(&cpu().autodiff());
    let images = uneven_images(6).autodiff();
    let frozen = [(); 4].map(|()| plain().freeze());
    let input = (frozen.iter()).fold(images.clone(), |x, norm| norm.forward(x));
    let last = plain();
    let _ = last.forward(input);
    let first = plain();
    let _ = first.forward(images);
    let mut seen = Vec::new();
    for stages in [1, 2, 6] {
        let pipeline = built(layers(), stages, GPipe, 3, Recompute::Always);
        step(&pipeline, 6);
        let found = norms(&pipeline);
        assert_near(&found[4], &last, &format!("{stages} stages"));
        let thawed = pipeline.unfreeze();
        step(&thawed, 6);
        let found_thawed = norms(&thawed);
        let what = format!("thawed, {stages} stages");
        assert_near(&found_thawed[0], &first, &what);
        seen.push((found, found_thawed));
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0], seen[2]);
}

#[test]
fn two_layers_cannot_count_in_one_norm() {
    let norm = norm(3);
    let layers = vec![Norm::Burns(norm.clone()), Norm::Kernel(norm), pool()];
    let error = builder(layers, 2, GPipe, 2, Recompute::Always).build();
    assert_eq!(
        error.unwrap_err().to_string(),
        "layer 0 (Burns) and layer 1 (Kernel) share running statistics: give each its own batch \
         norm; parameters may be shared"
    );
}
