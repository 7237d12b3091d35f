//! The number of stages, the schedule and recomputation never change the result.

use burn::{
    module::Module,
    nn::loss::CrossEntropyLossConfig,
    optim::{GradientsParams, SgdConfig, momentum::MomentumConfig},
    tensor::Tensor,
};
use stovepipe_pipeline::{Context, CrossEntropy, Layer, MeanOf, Pipeline, Recompute};
use stovepipe_schedule::{GPipe, OneForwardOneBackward, Schedule, Scheduler};

use crate::models::*;

const MODES: [Recompute; 3] = [Recompute::Always, Recompute::ExceptLast, Recompute::Never];

type Bits = Vec<(String, Vec<u32>)>;

/// Loss, gradients and running statistics of a step, then of a second one after an evaluation at
/// another batch size.
fn two_steps(pipeline: Pipeline<ConvNet>, samples: usize) -> Vec<Bits> {
    let mut optimizer = SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new().with_momentum(0.9)))
        .init();
    let mut pipeline = pipeline;
    let mut seen = Vec::new();
    for _ in 0..2 {
        let step = pipeline
            .train_step(images(samples), labels(samples, 4), &CrossEntropy::new())
            .unwrap();
        let loss = (step.loss as f32).to_bits();
        seen.push(vec![("loss".to_owned(), vec![loss])]);
        seen.push(gradient_bits(&pipeline, &step.gradients));
        seen.push(bits(&pipeline));
        pipeline = optimizer.step(0.05, pipeline, step.gradients);
        let output = pipeline.infer(images(5)).unwrap();
        seen.push(vec![("output".to_owned(), tensor_bits(output))]);
    }
    seen.push(bits(&pipeline));
    seen
}

#[test]
fn stages_schedules_and_recomputation_leave_every_bit_alone() {
    for (samples, micro_batches) in [(8, 4), (7, 3), (2, 4), (3, 1)] {
        let run = |stages, gpipe, recompute| {
            let layers = conv_net();
            let builder = match gpipe {
                true => builder(layers, stages, GPipe, micro_batches, recompute),
                false => builder(
                    layers,
                    stages,
                    OneForwardOneBackward,
                    micro_batches,
                    recompute,
                ),
            };
            two_steps(builder.build().unwrap(), samples)
        };
        let expected = run(1, true, Recompute::Never);
        assert!(expected.iter().all(|bits| !bits.is_empty()));
        for stages in [1, 2, 3, 7] {
            for gpipe in [true, false] {
                for recompute in MODES {
                    let found = run(stages, gpipe, recompute);
                    for (part, (found, expected)) in found.iter().zip(&expected).enumerate() {
                        assert_eq!(
                            found, expected,
                            "part {part}: {samples} samples, {stages} stages, \
                             gpipe {gpipe}, {recompute}"
                        );
                    }
                }
            }
        }
    }
}

/// Two chunks a worker: worker 0 has stages 0 and 2, worker 1 has 1 and 3.
#[test]
fn an_interleaved_schedule_written_by_hand_gives_the_same_bits() {
    let schedule: Schedule = "\
        0F0 0F1 2F0 2F1 2B0 0B0 2B1 0B1\n\
        1F0 1F1 3F0 3B0 1B0 3F1 3B1 1B1"
        .parse()
        .unwrap();
    let expected = builder(conv_net(), 1, GPipe, 2, Recompute::Never);
    let expected = two_steps(expected.build().unwrap(), 6);
    for recompute in MODES {
        let interleaved = builder(conv_net(), 4, schedule.clone(), 2, recompute);
        assert_eq!(
            two_steps(interleaved.build().unwrap(), 6),
            expected,
            "{recompute}"
        );
    }
}

/// The mini-batch in one piece, through Burn alone: its own loss, its own backward pass.
fn plain_mini_batch(layers: &[Dense], input: Tensor<2>, samples: usize) -> (f32, GradientsParams) {
    let mut x = input.autodiff();
    for layer in layers {
        x = layer.forward(x, &mut Context::new(&(), true)).unwrap();
    }
    let loss = CrossEntropyLossConfig::new()
        .init(&cpu())
        .forward(x, labels(samples, 3).autodiff());
    let gradients = GradientsParams::from_grads(loss.backward(), &layers.to_vec());
    (loss.into_scalar::<f32>(), gradients)
}

#[test]
fn micro_batches_add_up_to_the_mini_batch() {
    for (samples, micro_batches) in [(12, 4), (11, 4), (5, 8), (6, 1)] {
        for stages in [1, 3] {
            let layers = dense(&[5, 9, 9, 8, 3]);
            let pipeline = builder(
                layers,
                stages,
                OneForwardOneBackward,
                micro_batches,
                Recompute::Always,
            )
            .build()
            .unwrap();
            let input = vectors(samples, 5);
            let step = pipeline
                .train_step(input.clone(), labels(samples, 3), &CrossEntropy::new())
                .unwrap();
            let layers = pipeline.layers().to_vec();
            let (loss, gradients) = plain_mini_batch(&layers, input, samples);
            assert!((step.loss - f64::from(loss)).abs() < 1e-6);
            let found = gradients_of(&layers, &step.gradients);
            let expected = gradients_of(&layers, &gradients);
            assert_eq!(found.len(), 8);
            for ((path, found), (_, expected)) in found.iter().zip(&expected) {
                let difference = relative_difference(found, expected);
                assert!(difference < 1e-5, "{path}: {difference}");
            }
        }
    }
}

/// Batch norm by hand: micro-batch after micro-batch through plain Burn, statistics and all.
#[test]
fn running_statistics_are_those_of_the_micro_batches_each_counted_once() {
    let (samples, micro_batches) = (6, 3);
    for recompute in MODES {
        for stages in [1, 3] {
            let pipeline = builder(conv_net(), stages, GPipe, micro_batches, recompute)
                .build()
                .unwrap();
            // A copy that shares nothing with the pipeline.
            let reference: Vec<ConvNet> = (pipeline.layers().iter())
                .map(|layer| layer.valid().train())
                .collect();
            let _ = pipeline
                .train_step(images(samples), labels(samples, 4), &CrossEntropy::new())
                .unwrap();
            for micro_batch in 0..micro_batches {
                let input = images(samples).narrow(0, micro_batch * 2, 2).autodiff();
                let mut flow = ConvNet::enter(input);
                for layer in &reference {
                    flow = layer.forward(flow, &mut Context::new(&(), true)).unwrap();
                }
            }
            assert_eq!(
                bits(&pipeline.layers().to_vec()),
                bits(&reference),
                "{recompute}"
            );
        }
    }
}

#[test]
fn inference_equals_the_plain_forward_at_any_batch_size() {
    let pipeline = builder(conv_net(), 3, OneForwardOneBackward, 4, Recompute::Always)
        .build()
        .unwrap();
    let layers: Vec<ConvNet> = pipeline.layers().iter().map(Module::valid).collect();
    for samples in [1, 2, 4, 9, 32] {
        let mut flow = ConvNet::enter(images(samples));
        for layer in &layers {
            flow = layer.forward(flow, &mut Context::new(&(), false)).unwrap();
        }
        let expected = floats(ConvNet::leave(flow).unwrap());
        let found = floats(pipeline.infer(images(samples)).unwrap());
        assert!(relative_difference(&found, &expected) < 1e-6, "{samples}");
    }
}

#[test]
fn parameters_are_the_same_wherever_the_model_is_cut() {
    let at = |stages| {
        // Another model drew from the generator before.
        let _ = builder(dense(&[3, 2]), 1, GPipe, 2, Recompute::Always).build();
        let pipeline = builder(conv_net(), stages, GPipe, 2, Recompute::Always);
        bits(&pipeline.build().unwrap())
    };
    assert_eq!(at(1), at(2));
    assert_eq!(at(1), at(7));
    let other = builder(conv_net(), 2, GPipe, 2, Recompute::Always).seed(8);
    assert_ne!(at(2), bits(&other.build().unwrap()));
}

/// More threads may add up large sums in another order; the result is close.
#[test]
fn threads_make_little_difference() {
    let run = |threads| {
        let builder = builder(conv_net(), 2, OneForwardOneBackward, 2, Recompute::Always);
        let pipeline = builder.threads_per_stage(threads).build().unwrap();
        let step = pipeline.train_step(images(8), labels(8, 4), &CrossEntropy::new());
        gradients_of(&pipeline, &step.unwrap().gradients)
    };
    for ((path, found), (_, expected)) in run(2).iter().zip(&run(1)) {
        assert!(relative_difference(found, expected) < 1e-4, "{path}");
    }
}

/// Clones share the workers and the statistics: steps that are asked for at once are taken one
/// after the other, and each begins with the statistics that the one before left.
#[test]
fn steps_from_several_threads_do_not_lose_statistics() {
    let build = || {
        let builder = builder(
            conv_net(),
            2,
            OneForwardOneBackward,
            2,
            Recompute::ExceptLast,
        );
        builder.build().unwrap()
    };
    let step = |pipeline: &Pipeline<ConvNet>| {
        pipeline
            .train_step(images(4), labels(4, 4), &CrossEntropy::new())
            .map(|_| ())
            .unwrap();
    };
    let (expected, found) = (build(), build());
    (0..9).for_each(|_| step(&expected));
    for _ in 0..3 {
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let clone = found.clone();
                std::thread::spawn(move || step(&clone))
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    }
    assert_eq!(bits(&found), bits(&expected));
}

#[test]
fn a_schedule_with_a_name_is_no_different_from_its_list() {
    let named = builder(
        dense(&[4, 4, 2]),
        2,
        OneForwardOneBackward,
        3,
        Recompute::Always,
    );
    let listed = OneForwardOneBackward.schedule(2, 3).unwrap();
    let listed = builder(dense(&[4, 4, 2]), 2, listed, 3, Recompute::Always);
    let squared = MeanOf(|y: Tensor<2>, t: Tensor<2>| (y - t).powi_scalar(2).mean());
    let [named, listed] = [named, listed].map(|builder| {
        let pipeline = builder.build().unwrap();
        let step = pipeline
            .train_step(vectors(6, 4), vectors(6, 2), &squared)
            .unwrap();
        gradient_bits(&pipeline, &step.gradients)
    });
    assert_eq!(named, listed);
}
