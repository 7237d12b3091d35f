//! The number of stages, the schedule and recomputation never change the result.

use burn::nn::loss::CrossEntropyLossConfig;
use proptest::prelude::*;

use crate::models::*;

fn two_steps(pipeline: Pipeline<ConvNet>, samples: usize) -> Vec<ByPath<u32>> {
    crate::models::two_steps(pipeline, (images(samples), images(5)), 4)
}

/// The same in one stage, one micro-batch after another.
fn in_one_stage(samples: usize, micro_batches: usize) -> Vec<ByPath<u32>> {
    let one = built(conv_net(), 1, GPipe, micro_batches, Recompute::Never);
    let expected = two_steps(one, samples);
    assert!(expected.iter().all(|bits| !bits.is_empty()));
    expected
}

fn check(found: &[ByPath<u32>], expected: &[ByPath<u32>], what: &str) {
    for (part, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found, expected, "part {part}: {what}");
    }
}

#[test]
fn stages_schedules_and_recomputation_leave_every_bit_alone() {
    // Even and uneven batches, fewer samples than micro-batches, fewer micro-batches
    // than stages.
    for (samples, micro_batches) in [(8, 4), (7, 3), (2, 4), (3, 1)] {
        let expected = in_one_stage(samples, micro_batches);
        for (turn, rule) in RULES.into_iter().enumerate() {
            let workers = [1, 2, 3, 7].into_iter();
            for workers in workers.filter(|&workers| rule.stages(workers) <= 7) {
                for recompute in modes(7, turn + workers) {
                    let pipeline =
                        built(conv_net(), workers, rule, micro_batches, recompute.clone());
                    let what =
                        format!("{samples} samples, {workers} workers, {rule:?}, {recompute}");
                    check(&two_steps(pipeline, samples), &expected, &what);
                }
            }
        }
    }
}

/// Two stages per worker, one with whole backward passes and one with halves, placed in
/// any order.
#[test]
fn schedules_written_by_hand_give_the_same_bits() {
    let expected = in_one_stage(6, 2);
    for csv in [
        "0F0,0F1,2F0,2F1,,2B0,0B0,2B1,0B1\n1F0,1F1,3F0,3B0,1B0,3F1,3B1,1B1,\n",
        "0F0,0F1,2F0,2F1,2I0,0I0,2I1,2W0,2W1,0W0,0B1\n1F0,1F1,3F0,3B0,1B0,3F1,3I1,1I1,3W1,1W1,\n",
        "0F0,2F0,2B0,0F1,2F1,2I1,2W1,0I0,0W0,0B1\n1F0,1B0,1F1,1B1,,,,,,\n",
    ] {
        let schedule = Schedule::from_csv(csv).unwrap();
        assert!(schedule.is_ascending());
        let workers = schedule.workers().len();
        for recompute in modes(7, 3) {
            let by_hand = built(conv_net(), workers, schedule.clone(), 2, recompute.clone());
            let what = format!("{csv}{recompute}");
            check(&two_steps(by_hand, 6), &expected, &what);
        }
    }
}

/// What a stage can do next, given the finished micro-batches of each stage: forward, for
/// the gradient of the input, and for those of the weights.
fn possible(done: &[[usize; 3]], stage: usize, micro_batches: usize) -> Vec<Action> {
    let [forward, inputs, weights] = done[stage];
    let before = stage.checked_sub(1);
    let sent = before.map_or(micro_batches, |before| done[before][0]);
    let returned = done.get(stage + 1).map_or(forward, |after| after[1]);
    let is_backward = inputs < returned;
    let candidates = [
        (forward < sent, Pass::Forward, forward),
        (is_backward && weights == inputs, Pass::Backward, inputs),
        (is_backward, Pass::InputGradient, inputs),
        (weights < inputs, Pass::WeightGradient, weights),
    ];
    let action = |(is_possible, pass, micro_batch): (bool, _, _)| {
        is_possible.then(|| Action::new(stage, pass, micro_batch))
    };
    candidates.into_iter().filter_map(action).collect()
}

/// Random valid schedules: any action that is possible next, on any worker.
fn any_schedule(stages: usize, micro_batches: usize, choices: &[u32]) -> Schedule {
    let mut choices = choices.iter().cycle();
    let mut choose = |below: usize| *choices.next().unwrap() as usize % below;
    let workers = 1 + choose(stages.min(3));
    // Each worker has at least one stage.
    let mut owners: Vec<_> = (0..workers).collect();
    while owners.len() < stages {
        owners.insert(choose(owners.len() + 1), choose(workers));
    }
    let mut actions = vec![Vec::new(); workers];
    // By stage: finished forward passes, input gradients and weight gradients.
    let mut done = vec![[0_usize; 3]; stages];
    loop {
        let possible = (0..stages).flat_map(|stage| possible(&done, stage, micro_batches));
        let possible: Vec<_> = possible.collect();
        if possible.is_empty() {
            break;
        }
        let action = possible[choose(possible.len())];
        actions[owners[action.stage]].push(action);
        let steps: &[usize] = match action.pass {
            Pass::Forward => &[0],
            Pass::Backward => &[1, 2],
            Pass::InputGradient => &[1],
            _ => &[2],
        };
        (steps.iter()).for_each(|&step| done[action.stage][step] += 1);
    }
    Schedule::new(actions).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_ascending_schedule_gives_the_same_bits(
        stages in 1..=7_usize,
        micro_batches in 1..=4_usize,
        mode in 0..4_usize,
        choices in prop::collection::vec(any::<u32>(), 400),
    ) {
        let schedule = any_schedule(stages, micro_batches, &choices);
        prop_assert!(schedule.is_ascending());
        let what = schedule.to_string();
        let workers = schedule.workers().len();
        let samples = 2 * micro_batches + usize::from(micro_batches > 1);
        let by_layer = || some_segments(7, u64::from(choices[0]));
        let recompute = Recompute::MODES.into_iter().nth(mode).unwrap_or_else(by_layer);
        let any = built(conv_net(), workers, schedule, micro_batches, recompute);
        let found = two_steps(any, samples);
        check(&found, &in_one_stage(samples, micro_batches), &what);
    }
}

/// Sums in another order, so other bits.
#[test]
fn a_schedule_that_does_not_ascend_is_right_but_for_rounding() {
    let schedule = "\
        0F2,0F0,0F3,0F1,,,0I3,0I0,0W0,0B2,0W3,0B1\n\
        1F3,1F0,1F2,1F1,1B3,1B0,1I2,1I1,1W2,1W1,,\n";
    let schedule = Schedule::from_csv(schedule).unwrap();
    assert!(!schedule.is_ascending());
    let step = |builder: PipelineBuilder<ConvNet>| {
        let pipeline = builder.build().unwrap();
        let step = train(&pipeline, images(8), 4).unwrap();
        (step.loss, gradients_of(&pipeline, &step.gradients))
    };
    let expected = step(builder(conv_net(), 1, GPipe, 4, Recompute::Never));
    for recompute in Recompute::MODES {
        let found = step(builder(conv_net(), 2, schedule.clone(), 4, recompute));
        assert!((found.0 - expected.0).abs() < 1e-6 * expected.0);
        assert_close(&found.1, &expected.1, 1e-6);
    }
}

/// The whole mini-batch in plain Burn: its loss, its backward pass.
fn plain_mini_batch(layers: &[Dense], input: Tensor<2>, samples: usize) -> (f32, GradientsParams) {
    let mut x = input.autodiff();
    for layer in layers {
        x = layer.forward(x);
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
            let (layers, recompute) = (dense(&[5, 9, 9, 8, 3]), Recompute::Always);
            let rule = OneForwardOneBackward;
            let pipeline = built(layers, stages, rule, micro_batches, recompute);
            let input = vectors(samples, 5);
            let step = train(&pipeline, input.clone(), 3).unwrap();
            let layers = pipeline.layers().to_vec();
            let (loss, gradients) = plain_mini_batch(&layers, input, samples);
            assert!((step.loss - f64::from(loss)).abs() < 1e-6);
            let found = gradients_of(&layers, &step.gradients);
            assert_eq!(found.len(), 8);
            assert_close(&found, &gradients_of(&layers, &gradients), 1e-5);
        }
    }
}

#[test]
fn inference_equals_the_plain_forward_at_any_batch_size() {
    for rule in RULES {
        let workers = 6 / rule.stages(1);
        let pipeline = built(conv_net(), workers, rule, 4, Recompute::Always);
        let layers: Vec<ConvNet> = pipeline.layers().iter().map(Module::valid).collect();
        for samples in [1, 2, 4, 9, 32] {
            let plain = run_plain(&layers, images(samples), &(), |_| KeyedRng::none());
            let expected = floats(plain.unwrap().output);
            let found = floats(pipeline.infer(images(samples)).unwrap());
            let difference = relative_difference(&found, &expected);
            assert!(difference < 1e-6, "{samples}, {rule:?}");
        }
    }
}

#[test]
fn parameters_are_the_same_wherever_the_model_is_cut() {
    let at = |stages| {
        // Another model drew from the generator before.
        let _ = builder(dense(&[3, 2]), 1, GPipe, 2, Recompute::Always).build();
        let pipeline = built(conv_net(), stages, GPipe, 2, Recompute::Always);
        bits(&pipeline)
    };
    assert_eq!(at(1), at(2));
    assert_eq!(at(1), at(7));
    let other = builder(conv_net(), 2, GPipe, 2, Recompute::Always).seed(8);
    assert_ne!(at(2), bits(&other.build().unwrap()));
}

/// More threads may add large sums in another order; the result is close.
#[test]
fn threads_make_little_difference() {
    let run = |threads| {
        let builder = builder(conv_net(), 2, OneForwardOneBackward, 2, Recompute::Always);
        let pipeline = builder.threads_per_stage(threads).build().unwrap();
        let step = train(&pipeline, images(8), 4).unwrap();
        gradients_of(&pipeline, &step.gradients)
    };
    assert_close(&run(2), &run(1), 1e-4);
}

/// Clones share the workers and the statistics: steps that start at once run one
/// after another, and each starts with the statistics of the one before.
#[test]
fn steps_from_several_threads_do_not_lose_statistics() {
    let rule = OneForwardOneBackward;
    let build = || built(conv_net(), 2, rule, 2, Recompute::ExceptLast);
    let step = |pipeline: &Pipeline<ConvNet>| drop(train(pipeline, images(4), 4).unwrap());
    let (expected, found) = (build(), build());
    (0..9).for_each(|_| step(&expected));
    for _ in 0..3 {
        let clones = [(); 3].map(|()| found.clone());
        std::thread::scope(|scope| {
            for clone in clones {
                scope.spawn(move || step(&clone));
            }
        });
    }
    assert_eq!(bits(&found), bits(&expected));
}

#[test]
fn a_schedule_with_a_name_is_no_different_from_its_list() {
    let list = OneForwardOneBackward.schedule(2, 3).unwrap();
    let widths = [4, 4, 2];
    let rule = OneForwardOneBackward;
    let named = built(dense(&widths), 2, rule, 3, Recompute::Always);
    let listed = built(dense(&widths), 2, list, 3, Recompute::Always);
    let [named, listed] = [named, listed].map(|pipeline| {
        let step = pipeline.train_step((vectors(6, 4), vectors(6, 2)), &SQUARED);
        gradient_bits(&pipeline, &step.unwrap().gradients)
    });
    assert_eq!(named, listed);
}
