//! Replicas of stages, compared with one pipeline and with a loop over plain Burn.

use burn::module::ModuleMapper;
use stovepipe_schedule::{DataParallel, RoundRobin};

use crate::{
    frozen::frozen,
    losses,
    models::*,
    processes::{Fails, tied_words},
    ranks::*,
    skips::jumping,
    ties::WORDS,
};

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
            for recompute in modes(7, 1) {
                let scheduler = DataParallel::equal(rule, replicas);
                let workers = workers * replicas;
                let pipeline = built(conv_net(), workers, scheduler, size.1, recompute.clone());
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

/// Losses, outputs and statistics are those of a pipeline without replicas; a small mini-batch may leave
/// replicas with nothing to do.
#[test]
fn replicas_have_shares() {
    for shares in [vec![3, 1], vec![1, 2], vec![1, 3, 2]] {
        let workers = 2 * shares.len();
        let scheduler = DataParallel {
            scheduler: OneForwardOneBackward,
            shares: shares.clone(),
        };
        let alone = built(conv_net(), 1, GPipe, 6, Recompute::Never);
        let pipeline = built(conv_net(), workers, scheduler, 6, Recompute::ExceptLast);
        for samples in [12, 11, 2, 1] {
            let (loss, outputs, gradients, model) = step(&alone, samples);
            let found = step(&pipeline, samples);
            let what = format!("{shares:?}, {samples}");
            assert_eq!((found.0, found.1), (loss, outputs), "{what}");
            assert_eq!(found.3, model, "{what}");
            assert_close(&to_floats(&found.2), &to_floats(&gradients), 1e-5);
        }
    }
}

fn to_floats(bits: &ByPath<u32>) -> ByPath<f32> {
    let float = |(path, bits): &(String, Vec<u32>)| {
        let floats = bits.iter().copied().map(f32::from_bits);
        (path.clone(), floats.collect())
    };
    bits.iter().map(float).collect()
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
        assert_close(&to_floats(found), &to_floats(alone), 1e-5);
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

/// Which stages have replicas.
#[derive(Clone, Debug)]
enum Copied {
    /// All, as often, under a rule.
    Pipelines(Rule, usize),
    /// All, with shares of the micro-batches.
    Shares(Vec<usize>),
    /// Each as often as it says.
    Stages(Vec<usize>),
}

impl Copied {
    fn scheduler(&self) -> Box<dyn Scheduler> {
        match self {
            &Self::Pipelines(rule, replicas) => {
                Box::new(DataParallel::equal(By(rule, 2), replicas))
            }
            Self::Shares(shares) => Box::new(DataParallel {
                scheduler: GPipe,
                shares: shares.clone(),
            }),
            Self::Stages(replicas) => Box::new(RoundRobin::new(replicas.clone())),
        }
    }
}

/// Replicas, and the process of each worker.
fn placed() -> Vec<(Copied, Vec<usize>)> {
    use Copied::{Pipelines, Shares, Stages};

    let rule = Rule::OneForwardOneBackward;
    [
        (Pipelines(rule, 2), &[0, 1][..]),   // data parallel
        (Pipelines(rule, 2), &[0, 0, 1, 1]), // a pipeline in each process
        (Pipelines(rule, 2), &[0, 1, 0, 1]), // a stage in each process
        (Pipelines(rule, 2), &[0, 1, 2, 3]), // a worker in each
        (Pipelines(rule, 3), &[0, 0, 1]),    // two replicas in one process
        (Pipelines(rule, 3), &[0, 1, 1, 0, 1, 2]),
        (Pipelines(Rule::GPipe, 3), &[0, 1, 2]),
        (Pipelines(Rule::Interleaved, 2), &[0, 1, 1, 0]),
        (Pipelines(Rule::ZeroBubbleH1, 2), &[0, 0, 1, 1]),
        (Pipelines(Rule::ZeroBubbleV, 2), &[0, 1, 1, 0]),
        (Shares(vec![2, 1]), &[0, 1]),
        (Shares(vec![1, 2]), &[0, 1, 1, 0]),
        (Stages(vec![3, 1]), &[0, 0, 0, 1]),
        (Stages(vec![3, 1]), &[0, 1, 2, 0]),
        (Stages(vec![1, 3]), &[1, 0, 1, 0]),
        (Stages(vec![2, 3]), &[0, 1, 1, 2, 0]),
        (Stages(vec![2, 2]), &[0, 0, 1, 2]),
        (Stages(vec![3, 2]), &[0, 0, 1, 2, 3]),
    ]
    .map(|(copied, processes)| (copied, processes.to_vec()))
    .to_vec()
}

/// Compares replicas in several processes with those of one, in every placement.
fn assert_processes_do_not_show<L: Layer>(
    build: impl Fn(usize, Box<dyn Scheduler>) -> PipelineBuilder<L> + Sync,
    steps: impl Fn(Pipeline<L>) -> Vec<ByPath<u32>> + Sync,
) {
    for (copied, of_workers) in placed() {
        let build = || build(of_workers.len(), copied.scheduler());
        let expected = joined(vec![steps(build().build().unwrap())]);
        let processes = of_workers.iter().max().unwrap() + 1;
        for bucket in [1, 1 << 20] {
            let found = ranks(processes, |comm| {
                let limit = Some(std::time::Duration::from_secs(20));
                let builder = build()
                    .bucket(bucket)
                    .communicator(comm)
                    .stall_timeout(limit);
                steps(builder.devices(devices(&of_workers)).build().unwrap())
            });
            let what = format!("{copied:?} in {of_workers:?}, buckets of {bucket} bytes");
            assert_same(&joined(found), &expected, &what);
        }
    }
}

#[test]
fn processes_leave_replicas_alone() {
    for (samples, micro_batches) in [(7, 3), (11, 6), (2, 4)] {
        for recompute in [Recompute::Never, Recompute::ExceptLast] {
            assert_processes_do_not_show(
                |workers, scheduler| {
                    builder(
                        conv_net(),
                        workers,
                        scheduler,
                        micro_batches,
                        recompute.clone(),
                    )
                },
                |pipeline| two_steps(pipeline, (images(samples), images(5)), 4),
            );
        }
    }
}

#[test]
fn processes_leave_replicas_of_other_models_alone() {
    let recompute = Recompute::ExceptLast;
    assert_processes_do_not_show(
        |workers, scheduler| {
            builder(
                jumping(&[
                    "+input",
                    "+output +far",
                    "-output +c",
                    "-c",
                    "-input",
                    "-far",
                ]),
                workers,
                scheduler,
                5,
                recompute.clone(),
            )
        },
        |pipeline| two_steps(pipeline, (vectors(7, 4), vectors(3, 4)), 4),
    );
    for (is_mix_shared, is_frozen, precision) in [
        (false, None, Precision::F32),
        (true, None, Precision::Bf16),
        (true, Some(0), Precision::F32),
    ] {
        assert_processes_do_not_show(
            |workers, scheduler| {
                let layers = tied_words(is_mix_shared, is_frozen);
                builder(layers, workers, scheduler, 3, recompute.clone()).precision(precision)
            },
            |pipeline| two_steps(pipeline, (labels(6, WORDS), labels(3, WORDS)), WORDS),
        );
    }
    for precision in [Precision::Bf16, Precision::F16] {
        assert_processes_do_not_show(
            |workers, scheduler| {
                builder(conv_net(), workers, scheduler, 4, recompute.clone()).precision(precision)
            },
            |pipeline| two_steps(pipeline, (images(7), images(5)), 4),
        );
    }
    assert_processes_do_not_show(
        |workers, scheduler| builder(frozen(6, 2), workers, scheduler, 3, recompute.clone()),
        |pipeline| two_steps(pipeline, (vectors(6, 4), vectors(3, 4)), 4),
    );
    assert_processes_do_not_show(
        |workers, scheduler| builder(losses::headed(), workers, scheduler, 3, recompute.clone()),
        |pipeline| {
            let objective = CrossEntropy::new().with_auxiliary_share(0.3);
            let batch = Batch::new(vectors(7, 4), labels(7, 4));
            two_steps_on(pipeline, batch, (vectors(3, 4), ()), &objective)
        },
    );
    assert_processes_do_not_show(
        |workers, scheduler| builder(losses::tagger(), workers, scheduler, 3, recompute.clone()),
        |pipeline| {
            let other = losses::text(6);
            let other = (other.input, other.side);
            two_steps_on(pipeline, losses::text(8), other, &losses::objective())
        },
    );
}

/// Outputs of all micro-batches, recalibrated statistics, and an evaluation.
#[test]
fn processes_leave_the_rest_of_replicas_alone() {
    assert_processes_do_not_show(
        |workers, scheduler| builder(conv_net(), workers, scheduler, 5, Recompute::Never),
        |pipeline| {
            let batch = Batch::new(images(11), labels(11, 4)).keep_outputs();
            let step = pipeline.train_step(batch, &CrossEntropy::new()).unwrap();
            let outputs = step
                .outputs
                .map(|outputs| ("outputs".to_owned(), tensor_bits(outputs)));
            let batches = [images(6), images(5)].map(|x| Ok::<_, StepError>(x.into()));
            pipeline.recalibrate(4, batches).unwrap();
            let batch = (images(5), labels(5, 4));
            let evaluation = pipeline
                .evaluate(batch, &CrossEntropy::new().counting())
                .unwrap();
            let numbers = [evaluation.loss as f32, evaluation.scores[0] as f32].map(f32::to_bits);
            let evaluated = ("evaluation".to_owned(), numbers.to_vec());
            vec![
                outputs.into_iter().collect(),
                Vec::new(),
                bits(&pipeline),
                vec![evaluated],
            ]
        },
    );
}

/// Wherever a replica fails, the step fails in all processes and changes nothing; the next one works.
#[test]
fn a_replica_that_fails_in_one_process_fails_the_step_in_all() {
    let net = |fails: Option<usize>| {
        let layer = |index| Fails::new(fails == Some(index));
        (0..4).map(layer).collect::<Vec<_>>()
    };
    let step = |pipeline: &Pipeline<Fails>| {
        let step = train(pipeline, vectors(7, 4), 4)?;
        Ok::<_, StepError>((step.loss, gradient_bits(pipeline, &step.gradients)))
    };
    let scheduler = || DataParallel::equal(OneForwardOneBackward, 2);
    let one = built(net(None), 4, scheduler(), 4, Recompute::Never);
    let expected = step(&one).unwrap();
    for (faulty, layer) in [(0, 0), (1, 0), (0, 3), (1, 2)] {
        let found = ranks(2, |comm| {
            let fails = (comm.rank() == faulty).then_some(layer);
            let builder = builder(net(fails), 4, scheduler(), 4, Recompute::Never).bucket(1);
            let builder = builder.devices(devices(&[0, 0, 1, 1])).communicator(comm);
            let pipeline = builder.build().unwrap();
            let before = bits(&pipeline);
            let error = step(&pipeline).unwrap_err();
            assert!((bits(&pipeline), pipeline.steps()) == (before, 0));
            for _ in 0..2 {
                assert!(step(&pipeline).unwrap() == expected);
            }
            error.to_string()
        });
        let place = format!("layer {layer} (Fails)");
        assert!(
            found.iter().all(|error| error.contains(&place)),
            "{found:?}"
        );
    }
}

#[test]
fn a_replica_that_drifts_is_named() {
    let found = ranks(2, |comm| {
        let rank = comm.rank();
        let scheduler = DataParallel::equal(GPipe, 2);
        let builder = builder(dense(&[3; 4]), 4, scheduler, 2, Recompute::Never);
        let builder = builder.devices(devices(&[0, 0, 1, 1])).communicator(comm);
        let mut pipeline = builder.build().unwrap();
        pipeline.check_replicas().unwrap();
        let states = vec![(); 2];
        let drift = move |stage, layers: Vec<Dense>, ()| {
            let nudge = |mut layer: Dense| {
                let nudged = |bias: Tensor<1>| (bias.inner() + 1e-7).autodiff().require_grad();
                layer.linear.bias = layer.linear.bias.map(|bias| bias.map(nudged));
                layer
            };
            Ok(match (rank, stage) {
                (1, 1) => (layers.into_iter().map(nudge).collect(), ()),
                _ => (layers, ()),
            })
        };
        pipeline.change_stages(states, drift).unwrap();
        pipeline.check_replicas().unwrap_err().to_string()
    });
    let expected = "the replicas of stage 1 have become different: layers.2.linear.bias of rank 1 on \
                    localhost is not that of rank 0 on localhost";
    assert!(
        found.iter().all(|error| error.starts_with(expected)),
        "{found:?}"
    );
}

/// What a few updates give if one replica of each stage updates, and others would drift apart.
fn updates<L>(mut pipeline: Pipeline<L>, input: L::Input, drifts: bool) -> Vec<ByPath<u32>>
where
    L: Layer<Output = Tensor<2>, Side = ()>,
{
    struct Drift;

    impl ModuleMapper for Drift {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            match param.is_require_grad() {
                true => param.map(|value| (value.inner() + 0.01).autodiff().require_grad()),
                false => param,
            }
        }
    }

    let mut optimizer = AdamConfig::new().init();
    let mut losses = Vec::new();
    for _ in 0..3 {
        let step = train(&pipeline, input.clone(), WORDS).unwrap();
        losses.push((step.loss as f32).to_bits());
        pipeline = optimizer.step(0.01, pipeline, step.gradients);
        if drifts {
            pipeline = pipeline.map(&mut Drift);
        }
        pipeline.check_replicas().unwrap();
    }
    pipeline.share_parameters().unwrap();
    vec![vec![("losses".to_owned(), losses)], bits(&pipeline)]
}

fn assert_unlike_replicas_do_not_show<L>(layers: impl Fn() -> Vec<L> + Sync, input: L::Input)
where
    L: Layer<Output = Tensor<2>, Side = ()>,
    L::Input: Sync,
{
    let build = || {
        let scheduler = DataParallel::equal(GPipe, 2);
        builder(layers(), 4, scheduler, 3, Recompute::Never)
    };
    let expected = updates(build().build().unwrap(), input.clone(), false);
    let expected = joined(vec![expected]);
    for of_workers in [[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 2, 3], [0, 1, 2, 1]] {
        let processes = of_workers.iter().max().unwrap() + 1;
        // Workers 0 and 1 have the first replica of each stage.
        let devices = [0, 1, 2, 3].map(|worker| NamedDevice {
            name: if worker < 2 { "cpu" } else { "other" }.to_owned(),
            process: of_workers[worker],
            ..cpu().into()
        });
        let found = ranks(processes, |comm| {
            let drifts = !of_workers[..2].contains(&comm.rank());
            let builder = build().devices(devices.clone()).communicator(comm);
            updates(builder.build().unwrap(), input.clone(), drifts)
        });
        assert_same(&joined(found), &expected, &format!("{of_workers:?}"));
    }
}

#[test]
fn one_of_unlike_replicas_updates() {
    assert_unlike_replicas_do_not_show(conv_net, images(7));
    assert_unlike_replicas_do_not_show(|| tied_words(true, None), labels(6, WORDS));
}

#[test]
fn mpi_adds_up_for_processes_alone() {
    let errors = ranks(2, |comm| {
        let scheduler = DataParallel::equal(GPipe, 2);
        let builder = builder(dense(&[3; 4]), 2, scheduler, 2, Recompute::Never);
        let builder = builder.devices(devices(&[0, 1])).communicator(comm);
        let built = builder.all_reduce(AllReduce::Mpi).build();
        built.map(drop).unwrap_err().to_string()
    });
    let expected = "MPI cannot add up the gradients of stage 0's replicas: MPI does not connect";
    assert!(
        errors.iter().all(|error| error.starts_with(expected)),
        "{errors:?}"
    );
}
