//! Replicas of stages, compared with one pipeline and with a loop over plain Burn.

use stovepipe_schedule::{DataParallel, RoundRobin};

use crate::models::*;

/// Samples and micro-batches: even, uneven, and fewer samples than replicas.
const SIZES: [(usize, usize); 4] = [(12, 6), (11, 4), (7, 5), (2, 4)];

/// The sums of a plain loop over the micro-batches: of each replica in ascending order, then of all in the
/// order of a ring. `replicas` are those of each layer.
fn plain_loop(
    layers: &[ConvNet],
    (samples, micro_batches): (usize, usize),
    replicas: impl Fn(usize) -> usize,
) -> ByPath<u32> {
    // A copy, whose running statistics are its own.
    let layers = layers.to_vec().valid().train();
    let (input, labels) = (images(samples), labels(samples, 4));
    let count = micro_batches.min(samples);
    let mut first = 0;
    let of_micro_batch = |index: usize| {
        let size = samples / count + usize::from(index < samples % count);
        let own = first..first + size;
        first += size;
        let output = run_plain(&layers, input.clone().slice([own.clone()]), &(), |_| {
            KeyedRng::none()
        });
        let labels = labels.clone().slice([own]).autodiff();
        let loss = CrossEntropy::new().loss(output.unwrap().output, labels);
        let loss = loss.div_scalar(samples as f64);
        gradients_of(
            &layers,
            &GradientsParams::from_grads(loss.backward(), &layers),
        )
    };
    let all: Vec<_> = (0..count).map(of_micro_batch).collect();
    let mut sums = Vec::new();
    for (place, (path, _)) in all[0].iter().enumerate() {
        let layer: usize = path.split('.').find_map(|part| part.parse().ok()).unwrap();
        let ranks = replicas(layer).min(count);
        let of_replica = |replica: usize| {
            let own = all.iter().skip(replica).step_by(ranks);
            let own = own.map(|own| own[place].1.clone());
            own.reduce(|sum, next| sum.iter().zip(next).map(|(a, b)| a + b).collect())
                .unwrap()
        };
        let of_replicas: Vec<Vec<f32>> = (0..ranks).map(of_replica).collect();
        let length = of_replicas[0].len();
        let sum = |index: usize| {
            // Slices that differ by at most one number, the longer ones first.
            let end =
                |slice: usize| (slice + 1) * (length / ranks) + (slice + 1).min(length % ranks);
            let slice = (0..ranks).find(|&slice| index < end(slice)).unwrap();
            let order = (1..=ranks).map(|step| of_replicas[(slice + step) % ranks][index]);
            order.reduce(|sum, next| sum + next).unwrap().to_bits()
        };
        sums.push((path.clone(), (0..length).map(sum).collect()));
    }
    sums
}

/// What a step computes: loss, outputs and gradients, and the model with its statistics.
fn step(pipeline: &Pipeline<ConvNet>, samples: usize) -> (u64, Vec<u32>, ByPath<u32>, ByPath<u32>) {
    let batch = Batch::new(images(samples), labels(samples, 4)).keep_outputs();
    let step = pipeline.train_step(batch, &CrossEntropy::new()).unwrap();
    let outputs = tensor_bits(step.outputs.unwrap());
    let gradients = gradient_bits(&pipeline.layers().to_vec(), &step.gradients);
    (step.loss.to_bits(), outputs, gradients, bits(pipeline))
}

fn check(
    pipeline: &Pipeline<ConvNet>,
    (samples, micro_batches): (usize, usize),
    replicas: impl Fn(usize) -> usize,
    what: &str,
) {
    let alone = built(conv_net(), 1, GPipe, micro_batches, Recompute::Never);
    let sums = plain_loop(pipeline.layers(), (samples, micro_batches), replicas);
    let (loss, outputs, gradients, model) = step(&alone, samples);
    let found = step(pipeline, samples);
    assert_eq!(found.0, loss, "{what}");
    assert_eq!(found.1, outputs, "{what}");
    assert_eq!(found.2.len(), gradients.len(), "{what}");
    let mut sums = sums;
    sums.sort();
    let mut of_step = found.2.clone();
    of_step.sort();
    for (found, expected) in of_step.iter().zip(&sums) {
        assert_eq!(found, expected, "{what}");
    }
    assert_eq!(found.3, model, "{what}");
    let evaluated = |pipeline: &Pipeline<ConvNet>| {
        let batch = (images(5), labels(5, 4));
        let evaluation = pipeline.evaluate(batch, &CrossEntropy::new()).unwrap();
        let output = pipeline.infer(images(3)).unwrap();
        (evaluation.loss.to_bits(), tensor_bits(output))
    };
    assert_eq!(evaluated(pipeline), evaluated(&alone), "{what}");
}

#[test]
fn replicas_of_whole_pipelines_add_in_the_order_of_a_ring() {
    for (size, replicas) in SIZES.into_iter().flat_map(|size| [(size, 2), (size, 3)]) {
        for (rule, workers) in [
            (By(Rule::GPipe, 1), 1),
            (By(Rule::OneForwardOneBackward, 1), 3),
            (By(Rule::Interleaved, 2), 2),
            (By(Rule::ZeroBubbleH1, 1), 2),
            (By(Rule::ZeroBubbleV, 1), 2),
        ] {
            for recompute in Recompute::ALL {
                let scheduler = DataParallel::equal(rule, replicas);
                let workers = workers * replicas;
                let pipeline = built(conv_net(), workers, scheduler, size.1, recompute);
                let what = format!("{size:?}, {replicas} replicas, {rule:?}, {recompute}");
                check(&pipeline, size, |_| replicas, &what);
            }
        }
    }
}

#[test]
fn stages_have_replicas_of_their_own() {
    for replicas in [vec![3, 1], vec![1, 2], vec![2, 3], vec![1, 4, 2]] {
        for size in [(12, 6), (11, 4)] {
            let workers = replicas.iter().sum();
            let scheduler = RoundRobin::new(replicas.clone());
            let pipeline = built(
                conv_net(),
                workers,
                scheduler,
                size.1,
                Recompute::ExceptLast,
            );
            let stages = pipeline.stages();
            let found: Vec<_> = stages.iter().map(|stage| stage.replicas.len()).collect();
            assert_eq!(found, replicas);
            let of_layer = |layer: usize| {
                let stage = stages
                    .iter()
                    .position(|stage| stage.layers.contains(&layer));
                replicas[stage.unwrap()]
            };
            check(
                &pipeline,
                size,
                of_layer,
                &format!("{replicas:?}, {size:?}"),
            );
        }
    }
}

/// Two steps, with an optimizer between: threads that share parameters are updated once.
#[test]
fn training_goes_on_with_the_same_bits_in_every_run() {
    let two = |workers, stages: usize| {
        let scheduler = DataParallel::equal(OneForwardOneBackward, 3);
        assert_eq!(workers, 3 * stages);
        let pipeline = built(conv_net(), workers, scheduler, 6, Recompute::ExceptLast);
        two_steps(pipeline, (images(11), images(5)), 4)
    };
    let expected = two(3, 1);
    for _ in 0..3 {
        assert_eq!(two(6, 2), expected);
        assert_eq!(two(9, 3), expected);
    }
    // And close to a run without replicas.
    let alone = built(conv_net(), 1, GPipe, 6, Recompute::Never);
    let alone = two_steps(alone, (images(11), images(5)), 4);
    assert_ne!(alone, expected);
    for (found, alone) in expected.iter().zip(&alone).skip(1) {
        let floats = |own: &ByPath<u32>| -> ByPath<f32> {
            let float = |(path, bits): &(String, Vec<u32>)| {
                (
                    path.clone(),
                    bits.iter().copied().map(f32::from_bits).collect(),
                )
            };
            own.iter().map(float).collect()
        };
        assert_close(&floats(found), &floats(alone), 1e-5);
    }
}

/// A replica that fails ends the step of all, and nothing changes.
#[test]
fn a_replica_that_fails_is_named() {
    let scheduler = RoundRobin::new(vec![1, 3]);
    let pipeline = built(conv_net(), 4, scheduler, 6, Recompute::Never);
    let before = bits(&pipeline);
    let mut pixels = floats(images(12));
    pixels[4 * 3 * 64] = f32::NAN; // of sample 4, in micro-batch 2
    let input = Tensor::<1>::from_floats(pixels.as_slice(), &cpu()).reshape([12, 3, 8, 8]);
    let error = train(&pipeline, input, 4).err().unwrap();
    assert_contains(error, "the loss of micro-batch 2 is not finite");
    assert_eq!((bits(&pipeline), pipeline.steps()), (before, 0));
    check(
        &pipeline,
        (12, 6),
        |layer| if layer < 4 { 1 } else { 3 },
        "after a failure",
    );
}

#[test]
fn replicas_need_micro_batches() {
    let replicated = |micro_batches| {
        let scheduler = DataParallel::equal(GPipe, 3);
        builder(conv_net(), 6, scheduler, micro_batches, Recompute::Always).build()
    };
    assert!(replicated(3).is_ok());
    assert_contains(
        replicated(2).err().unwrap(),
        "the schedule has 4 workers, but the number of devices is 6: give one for each, and no fewer \
         micro-batches than replicas",
    );
}
