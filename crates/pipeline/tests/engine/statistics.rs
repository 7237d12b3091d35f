//! Running statistics move once per mini-batch, as if it came in one piece.

use burn::{
    module::Module,
    nn::{
        BatchNorm, BatchNormConfig,
        pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig},
    },
    tensor::Tensor,
};
use stovepipe_kernels::batch_norm;
use stovepipe_pipeline::{Context, CrossEntropy, Layer, LayerError, Pipeline, Recompute};
use stovepipe_schedule::{GPipe, OneForwardOneBackward, Scheduler};

use crate::models::*;

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

/// Compares with Burn's batch norm on the whole mini-batch.
#[test]
fn they_are_those_of_the_whole_mini_batch() {
    for momentum in [0.0, 0.01, 0.1, 0.5, 1.0] {
        for (samples, micro_batches) in [(8, 4), (7, 3), (5, 8), (6, 1)] {
            for recompute in Recompute::ALL {
                let config = BatchNormConfig::new(3).with_momentum(momentum);
                let whole = config.init(&cpu().autodiff());
                let norm = || config.init(&cpu());
                let layers = vec![Norm::Burns(norm()), pool()];
                let ours = vec![Norm::Kernel(norm()), pool()];
                for layers in [layers, ours] {
                    let whole = whole.valid().train();
                    let pipeline = built(layers, 2, GPipe, micro_batches, recompute);
                    for _ in 0..3 {
                        let images = uneven_images(samples);
                        let loss = CrossEntropy::new();
                        let step = pipeline.train_step((images, labels(samples, 3)), &loss);
                        let _ = step.unwrap();
                        let _ = whole.forward(uneven_images(samples).autodiff());
                    }
                    let [found] = &norms(&pipeline)[..] else {
                        panic!("there is one norm");
                    };
                    for (found, expected) in found.iter().zip(numbers(&whole)) {
                        let difference = relative_difference(found, &expected);
                        let what = format!("momentum {momentum}, {samples} samples, {recompute}");
                        assert!(difference < 1e-4, "{what}: {difference}");
                    }
                }
            }
        }
    }
}

/// The variance of the micro-batches' means counts too, and is large here.
#[test]
fn the_variance_of_means_counts() {
    let norm = BatchNormConfig::new(3).init(&cpu());
    let layers = vec![Norm::Burns(norm), pool()];
    let pipeline = built(layers, 1, GPipe, 2, Recompute::Never);
    let images = Tensor::cat(vec![Tensor::ones([2, 3, 8, 8], &cpu()); 2], 0);
    let sign = Tensor::<1>::from_floats([1.0, 1.0, -1.0, -1.0], &cpu()).reshape([4, 1, 1, 1]);
    let step = pipeline.train_step((images * sign, labels(4, 3)), &CrossEntropy::new());
    let _ = step.unwrap();
    // Each micro-batch has variance 0; together they have mean 0 and variance 1.
    let [mean, variance] = &norms(&pipeline)[0];
    assert!(mean.iter().all(|mean| mean.abs() < 1e-6), "{mean:?}");
    let expected = 0.9 + 0.1 * 1.0;
    assert!(
        variance.iter().all(|v| (v - expected).abs() < 1e-5),
        "{variance:?}"
    );
}

/// Collects the input of each norm of a network with plain Burn, micro-batch by micro-batch, and
/// gives all of it to a separate norm.
#[test]
fn deep_in_a_network_too() {
    let (samples, micro_batches) = (6, 3);
    for recompute in Recompute::ALL {
        for stages in [1, 3] {
            let pipeline = built(
                conv_net(),
                stages,
                OneForwardOneBackward,
                micro_batches,
                recompute,
            );
            let plain: Vec<ConvNet> = (pipeline.layers().iter())
                .map(|layer| layer.valid().train())
                .collect();
            let mut flows: Vec<_> = (0..micro_batches)
                .map(|part| ConvNet::enter(images(samples).narrow(0, 2 * part, 2).autodiff()))
                .collect();
            let mut expected = Vec::new();
            for layer in &plain {
                if let ConvNet::Block(block) | ConvNet::Tied(block) | ConvNet::HalfTied(block) =
                    layer
                {
                    let convolved = flows.iter().map(|flow| match flow.clone() {
                        Signal::Map(x) => stovepipe_kernels::relu_convolve(&block.conv, x),
                        Signal::Logits(_) => panic!("blocks see maps"),
                    });
                    let norm = block.norm.valid().train();
                    let _ = norm.forward(Tensor::cat(convolved.collect(), 0));
                    expected.push(numbers(&norm));
                }
                flows = (flows.into_iter())
                    .map(|flow| layer.forward(flow, &mut Context::new(&(), true)).unwrap())
                    .collect();
            }
            let step =
                pipeline.train_step((images(samples), labels(samples, 4)), &CrossEntropy::new());
            let _ = step.unwrap();
            let norms = pipeline.layers().iter().filter_map(|layer| match layer {
                ConvNet::Block(block) | ConvNet::Tied(block) | ConvNet::HalfTied(block) => {
                    Some(numbers(&block.norm))
                }
                _ => None,
            });
            let found: Vec<_> = norms.collect();
            assert_eq!(found.len(), 5);
            for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                assert!(relative_difference(found, expected) < 1e-4, "{recompute}");
            }
        }
    }
}

#[test]
fn a_frozen_norm_stays_to_the_bit_and_evaluation_changes_nothing() {
    for rule in RULES {
        let norm = || BatchNormConfig::new(3).init(&cpu());
        let layers = vec![
            Norm::Burns(norm()),
            Norm::Kernel(norm()).freeze(),
            Norm::Burns(norm()),
            Norm::Kernel(norm()),
            Norm::Burns(norm()),
            pool(),
        ];
        let workers = 6 / rule.stages(1);
        let pipeline = built(layers, workers, rule, 3, Recompute::ExceptLast);
        let before = norms(&pipeline);
        let _ = pipeline
            .train_step((uneven_images(6), labels(6, 3)), &CrossEntropy::new())
            .unwrap();
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
    let config = BatchNormConfig::new(3);
    let norm = || config.init(&cpu());
    let layers = || {
        let mut layers: Vec<_> = (0..4).map(|_| Norm::Burns(norm()).freeze()).collect();
        layers.extend([Norm::Burns(norm()), pool()]);
        layers
    };
    let step = |pipeline: &Pipeline<Norm>| {
        let loss = CrossEntropy::new();
        let _ = pipeline
            .train_step((uneven_images(6), labels(6, 3)), &loss)
            .unwrap();
    };
    let whole = config.init(&cpu().autodiff());
    let frozen: Vec<_> = (0..4)
        .map(|_| config.init(&cpu().autodiff()).freeze())
        .collect();
    let input = frozen
        .iter()
        .fold(uneven_images(6).autodiff(), |x, norm| norm.forward(x));
    let _ = whole.forward(input);
    let mut seen = Vec::new();
    for stages in [1, 2, 6] {
        let pipeline = built(layers(), stages, GPipe, 3, Recompute::Always);
        step(&pipeline);
        let found = norms(&pipeline);
        for (found, expected) in found[4].iter().zip(numbers(&whole)) {
            let difference = relative_difference(found, &expected);
            assert!(difference < 1e-4, "{stages} stages: {difference}");
        }
        let thawed = pipeline.unfreeze();
        let plain = config.init(&cpu().autodiff());
        let _ = plain.forward(uneven_images(6).autodiff());
        step(&thawed);
        for (found, expected) in norms(&thawed)[0].iter().zip(numbers(&plain)) {
            let difference = relative_difference(found, &expected);
            assert!(difference < 1e-4, "thawed, {stages} stages: {difference}");
        }
        seen.push((found, norms(&thawed)));
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0], seen[2]);
}

#[test]
fn two_layers_cannot_count_in_one_norm() {
    let norm = BatchNormConfig::new(3).init(&cpu());
    let layers = vec![Norm::Burns(norm.clone()), Norm::Kernel(norm), pool()];
    let error = builder(layers, 2, GPipe, 2, Recompute::Always).build();
    assert_eq!(
        error.unwrap_err().to_string(),
        "layer 0 (Burns) and layer 1 (Kernel) share running statistics: give each its own batch \
         norm; parameters may be shared"
    );
}
