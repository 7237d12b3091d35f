//! Pipelines over several processes, for which threads stand here: they share no memory but the messages.

use std::sync::atomic::{AtomicBool, Ordering};

use stovepipe_comm::{CommError, Communicator};
use stovepipe_pipeline::error::ProcessError;

use crate::{
    frozen::frozen,
    losses,
    models::*,
    ranks::*,
    skips::{Jumping, jumping},
    ties::{WORDS, Words, words},
};

#[test]
fn processes_leave_every_bit_alone() {
    for (samples, micro_batches) in [(7, 3), (3, 4)] {
        let steps = |pipeline| two_steps(pipeline, (images(samples), images(5)), 4);
        let one = built(conv_net(), 1, GPipe, micro_batches, Recompute::Never);
        let expected = joined(vec![steps(one)]);
        for (rule, workers, recompute) in cuts(7).filter(|(_, workers, _)| *workers > 1) {
            for processes in 2..=workers.min(4) {
                for of_workers in placements(workers, processes) {
                    let found = ranks(processes, |comm| {
                        let builder =
                            builder(conv_net(), workers, rule, micro_batches, recompute.clone());
                        let builder = builder.devices(devices(&of_workers)).communicator(comm);
                        steps(builder.build().unwrap())
                    });
                    let what = format!("workers in {of_workers:?}, {rule:?}, {recompute}");
                    assert_eq!(joined(found), expected, "{what}");
                }
            }
        }
    }
}

/// A layer that fails in one rank's stage, once.
#[derive(Module, Debug)]
pub struct Fails {
    linear: Linear,
    #[module(skip)]
    fails: std::sync::Arc<AtomicBool>,
}

impl Fails {
    pub fn new(fails: bool) -> Self {
        Self {
            linear: linear(4, 4),
            fails: std::sync::Arc::new(AtomicBool::new(fails)),
        }
    }
}

#[layer]
impl Fails {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        assert!(!self.fails.swap(false, Ordering::SeqCst), "a bad layer");
        self.linear.forward(x)
    }
}

#[test]
fn a_failure_of_one_rank_fails_the_step_in_all_and_the_next_step_works() {
    let net = |fails: bool| [false, false, fails, false].map(Fails::new).to_vec();
    let one = built(net(false), 4, GPipe, 3, Recompute::Always);
    let step = |pipeline: &Pipeline<Fails>| {
        let step = train(pipeline, vectors(6, 4), 4)?;
        Ok::<_, StepError>((step.loss, gradient_bits(pipeline, &step.gradients)))
    };
    let (expected, _) = step(&one).unwrap();
    let found = ranks(3, |comm| {
        let rank = comm.rank();
        let builder = builder(net(rank == 1), 4, GPipe, 3, Recompute::Always);
        let builder = builder.devices(devices(&[0, 1, 1, 2])).communicator(comm);
        let pipeline = builder.build().unwrap();
        let before = bits(&pipeline);
        let error = step(&pipeline).unwrap_err();
        assert!((bits(&pipeline), pipeline.steps()) == (before, 0));
        let (loss, _) = step(&pipeline).unwrap();
        assert_eq!((loss, pipeline.steps()), (expected, 1));
        error.to_string()
    });
    assert!(
        found[1].contains("layer 2 (Fails)") && found[1].contains("a bad layer"),
        "{found:?}"
    );
    for other in [&found[0], &found[2]] {
        assert!(other.contains("rank 1 on localhost failed: "), "{other}");
        assert!(other.contains("layer 2 (Fails)"), "{other}");
    }
}

/// Split into too few parts, if it is bad.
#[derive(Clone)]
struct Splits {
    x: Tensor<2>,
    is_bad: bool,
}

impl Flow for Splits {
    fn map<M: FlowMapper>(self, mapper: &mut M) -> Self {
        let x = Flow::map(self.x, mapper);
        Self { x, ..self }
    }

    fn batch_sizes(&self, sizes: &mut Vec<usize>) {
        self.x.batch_sizes(sizes);
    }

    fn split(self, sizes: &[usize]) -> Vec<Self> {
        let sizes = &sizes[usize::from(self.is_bad)..];
        let parts = Flow::split(self.x, sizes).into_iter();
        let is_bad = self.is_bad;
        parts.map(|x| Self { x, is_bad }).collect()
    }
}

#[derive(Module, Debug)]
struct Entry {
    dense: Dense,
}

impl Layer for Entry {
    type Input = Splits;
    type Flow = Tensor<2>;
    type Output = Tensor<2>;
    type Side = ();

    fn enter(input: Splits) -> Tensor<2> {
        input.x
    }

    fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Forward<Tensor<2>> {
        Ok(self.dense.forward(x))
    }

    fn leave(flow: Tensor<2>) -> Forward<Tensor<2>> {
        Ok(flow)
    }
}

/// That is found after the ranks have agreed.
#[test]
fn a_batch_that_one_rank_cannot_split_fails_in_all() {
    let errors = ranks(2, |comm| {
        let is_first = comm.rank() == 0;
        let layers = dense(&[3; 3])
            .into_iter()
            .map(|dense| Entry { dense })
            .collect();
        let builder = builder(layers, 2, GPipe, 2, Recompute::Never);
        let pipeline = builder.devices(devices(&[0, 1])).communicator(comm).build();
        let pipeline = pipeline.unwrap();
        let step = |is_bad| {
            let x = vectors(4, 3);
            train(&pipeline, Splits { x, is_bad }, 3)
        };
        let error = step(is_first).map(drop).unwrap_err().to_string();
        assert!(step(false).is_ok());
        error
    });
    let own = "the input was split into 1 part, not into 2 micro-batches";
    let other = format!("rank 0 on localhost failed: {own}");
    assert!(
        errors[0] == own && errors[1].ends_with(&other),
        "{errors:?}"
    );
}

#[test]
fn recalibrated_statistics_are_those_of_one_process() {
    let recalibrated = |pipeline: Pipeline<ConvNet>| {
        let batches = [images(6), images(5)].map(|x| Ok::<_, StepError>(x.into()));
        pipeline.recalibrate(4, batches).unwrap();
        vec![bits(&pipeline)]
    };
    let builder = || builder(conv_net(), 3, GPipe, 2, Recompute::Never);
    let expected = joined(vec![recalibrated(builder().build().unwrap())]);
    let found = ranks(2, |comm| {
        let builder = builder().devices(devices(&[0, 1, 1])).communicator(comm);
        recalibrated(builder.build().unwrap())
    });
    assert_eq!(joined(found), expected);
}

#[test]
fn what_differs_between_ranks_is_named() {
    let build = |change: fn(PipelineBuilder<Dense>) -> PipelineBuilder<Dense>| {
        let errors = ranks(2, |comm| {
            let rank = comm.rank();
            let mut builder = builder(dense(&[3; 4]), 2, GPipe, 2, Recompute::Never);
            if rank == 1 {
                builder = change(builder);
            }
            let built = builder.devices(devices(&[0, 1])).communicator(comm).build();
            built.map(drop).unwrap_err().to_string()
        });
        errors[0].clone()
    };
    let check = |error: String, start: &str| {
        assert!(error.starts_with(start), "{error}");
        assert!(
            error.ends_with("rank 1 on localhost: all processes need the same"),
            "{error}"
        );
    };
    check(
        build(|builder| builder.seed(8)),
        "the seed is 7 here, but 8 for ",
    );
    check(
        build(|builder| builder.micro_batches(3)),
        "the number of micro-batches is 2 here, but 3 for ",
    );
    check(
        build(|builder| builder.schedule(OneForwardOneBackward)),
        "the schedule is GPipe here, but OneForwardOneBackward for ",
    );
    check(
        build(|builder| builder.recompute(Recompute::Always)),
        "recomputation is Never here, but Always for ",
    );
    check(
        build(|builder| builder.all_reduce(AllReduce::Mpi)),
        "the all-reduce is Ring here, but Mpi for ",
    );
    // A batch, later.
    let found = ranks(2, |comm| {
        let samples = 4 + comm.rank();
        let builder = builder(dense(&[3; 4]), 2, GPipe, 2, Recompute::Never);
        let pipeline = builder.devices(devices(&[0, 1])).communicator(comm).build();
        let pipeline = pipeline.unwrap();
        let error = train(&pipeline, vectors(samples, 3), 3)
            .map(drop)
            .unwrap_err();
        assert!(train(&pipeline, vectors(4, 3), 3).is_ok());
        error.to_string()
    });
    check(
        found[0].clone(),
        "the samples of each micro-batch is [2, 2] here, but [3, 2] for ",
    );
}

#[test]
fn processes_that_cannot_work_are_errors() {
    let build = |comm: Option<Communicator>, of_workers: &[usize]| {
        let workers = of_workers.len();
        let builder = builder(dense(&[3; 4]), workers, GPipe, 2, Recompute::Never);
        let mut builder = builder.devices(devices(of_workers));
        if let Some(comm) = comm {
            builder = builder.communicator(comm);
        }
        builder.build().map(drop).unwrap_err().to_string()
    };
    let none = "worker 1 is on a device of process 1, but there is one process: give the builder a \
                communicator of more ranks, or take other devices";
    assert_eq!(build(None, &[0, 1]), none);
    let idle = "process 1 has no device: name one as 1/cpu, or start fewer processes";
    assert_eq!(ranks(2, |comm| build(Some(comm), &[0, 0])), [idle, idle]);
    let gone = ranks(2, |comm| {
        let builder = builder(dense(&[3; 4]), 2, GPipe, 2, Recompute::Never);
        let builder = builder.devices(devices(&[0, 1]));
        (comm.rank() == 0).then(|| builder.communicator(comm).build().map(drop).unwrap_err())
    });
    let Some(BuildError::Processes(ProcessError::Communication(CommError::Gone(peer)))) = &gone[0]
    else {
        panic!("{gone:?}");
    };
    assert_eq!(peer.rank, 1);
}

#[test]
fn a_process_initialises_its_own_layers_alone() {
    let initialised = ranks(2, |comm| {
        let builder = builder(dense(&[3; 5]), 2, GPipe, 2, Recompute::Never);
        let pipeline = builder.devices(devices(&[0, 1])).communicator(comm).build();
        let mut pipeline = pipeline.unwrap();
        let mut optimizer = AdamConfig::new().init();
        for _ in 0..2 {
            let step = train(&pipeline, vectors(4, 3), 3).unwrap();
            pipeline = optimizer.step(0.1, pipeline, step.gradients);
        }
        let states = pipeline.change_stages(vec![0, 0], |stage, layers, _| Ok((layers, stage + 1)));
        let is_there = |layer: &Dense| layer.linear.weight.is_initialized();
        let layers: Vec<_> = pipeline.layers().iter().map(is_there).collect();
        (states.unwrap(), layers)
    });
    assert_eq!(initialised[0], (vec![1, 0], vec![true, true, false, false]));
    assert_eq!(initialised[1], (vec![0, 2], vec![false, false, true, true]));
}

/// Tables in four places of three layers; with another tie, of the weights of the layers between them, but
/// not of their biases.
pub fn tied_words(is_mix_shared: bool, frozen: Option<usize>) -> Vec<Words> {
    let mut layers = words();
    if is_mix_shared {
        let (weight, mut last) = match (&layers[1], layers[3].clone()) {
            (Words::Mix(first), Words::Mix(last)) => (first.weight.clone(), last),
            _ => panic!("these layers mix"),
        };
        last.weight = weight;
        layers[3] = Words::Mix(last);
    }
    if let Some(frozen) = frozen {
        layers[frozen] = layers[frozen].clone().freeze();
    }
    layers
}

#[test]
fn parameters_that_processes_share_leave_every_bit_alone() {
    for (is_mix_shared, frozen, precision) in [
        (false, None, Precision::F32),
        (true, None, Precision::F32),
        (true, None, Precision::Bf16),
        (false, None, Precision::F16),
        (true, Some(0), Precision::F32),
        (true, Some(4), Precision::F32),
    ] {
        let build = |workers, rule, recompute| {
            let layers = tied_words(is_mix_shared, frozen);
            builder(layers, workers, rule, 3, recompute).precision(precision)
        };
        let inputs = || (labels(6, WORDS), labels(3, WORDS));
        assert_same_bits(5, build, |pipeline| two_steps(pipeline, inputs(), WORDS));
    }
}

/// Side inputs, auxiliary losses and padding.
#[test]
fn processes_leave_weighted_and_auxiliary_losses_alone() {
    let build = |workers, rule, recompute| builder(losses::tagger(), workers, rule, 3, recompute);
    assert_same_bits(4, build, |pipeline| {
        let other = losses::text(6);
        let other = (other.input, other.side);
        two_steps_on(pipeline, losses::text(8), other, &losses::objective())
    });
    let build = |workers, rule, recompute| builder(losses::headed(), workers, rule, 3, recompute);
    assert_same_bits(5, build, |pipeline| {
        let objective = CrossEntropy::new().with_auxiliary_share(0.3);
        let batch = Batch::new(vectors(7, 4), labels(7, 4));
        two_steps_on(pipeline, batch, (vectors(3, 4), ()), &objective)
    });
}

#[test]
fn processes_leave_mixed_precision_alone() {
    for precision in [Precision::Bf16, Precision::F16] {
        let build = |workers, rule, recompute| {
            builder(conv_net(), workers, rule, 3, recompute).precision(precision)
        };
        assert_same_bits(3, build, |pipeline| {
            two_steps(pipeline, (images(7), images(5)), 4)
        });
    }
}

#[test]
fn processes_leave_frozen_layers_alone() {
    for first in [2, 4] {
        let build =
            |workers, rule, recompute| builder(frozen(6, first), workers, rule, 3, recompute);
        let inputs = || (vectors(6, 4), vectors(3, 4));
        assert_same_bits(6, build, |pipeline| two_steps(pipeline, inputs(), 4));
    }
}

/// A pipeline of five layers in three processes.
fn tied_pipeline(comm: impl Into<std::sync::Arc<Communicator>>) -> Pipeline<Words> {
    let builder = builder(words(), 3, GPipe, 2, Recompute::Never);
    let builder = builder.devices(devices(&[0, 1, 2])).communicator(comm);
    builder.build().unwrap()
}

/// The bits of a table.
fn table(layer: &Words) -> Vec<u32> {
    match layer {
        Words::Embed(table) | Words::Softmax(table) => tensor_bits(table.weight.val()),
        _ => panic!("a layer without a table"),
    }
}

#[test]
fn a_change_of_the_owner_reaches_other_processes_with_the_next_run() {
    let found = ranks(3, |comm| {
        let is_last = comm.rank() == 2;
        let mut pipeline = tied_pipeline(comm);
        let infer = |pipeline: &Pipeline<Words>| pipeline.infer(labels(3, WORDS)).unwrap();
        let shown = |pipeline: &Pipeline<Words>| is_last.then(|| table(&pipeline.layers()[4]));
        let mut seen = vec![(shown(&pipeline), tensor_bits(infer(&pipeline)))];
        let double = |stage, layers: Vec<Words>, ()| {
            let change = |layer| match layer {
                Words::Embed(mut table) => {
                    let double = |weight: Tensor<2>| weight.inner().mul_scalar(2).autodiff();
                    table.weight = table.weight.map(|weight| double(weight).require_grad());
                    Words::Embed(table)
                }
                layer => layer,
            };
            assert!(stage < 3);
            Ok((layers.into_iter().map(change).collect(), ()))
        };
        pipeline.change_stages(vec![(); 3], double).unwrap();
        assert_eq!(shown(&pipeline), seen[0].0, "that of the last run");
        seen.push((shown(&pipeline.clone()), tensor_bits(infer(&pipeline))));
        seen[1].0 = shown(&pipeline);
        // A record has other ids.
        let pipeline = pipeline.clone().load_record(pipeline.into_record());
        seen.push((shown(&pipeline), tensor_bits(infer(&pipeline))));
        seen
    });
    let one = built(words(), 3, GPipe, 2, Recompute::Never);
    let before = table(&one.layers()[0]);
    let double = |bits: &u32| (2.0 * f32::from_bits(*bits)).to_bits();
    let after: Vec<_> = before.iter().map(double).collect();
    let shown: Vec<_> = found[2].iter().map(|(shown, _)| shown.clone()).collect();
    assert_eq!(shown, [Some(before), Some(after.clone()), Some(after)]);
    for rank in &found {
        assert_eq!(rank[0].1, tensor_bits(one.infer(labels(3, WORDS)).unwrap()));
        assert_ne!(rank[1].1, rank[0].1);
        assert_eq!(rank[2].1, rank[1].1);
    }
}

#[test]
fn a_process_that_alone_changes_layers_is_named() {
    let errors = ranks(3, |comm| {
        let rank = comm.rank();
        let pipeline = tied_pipeline(comm);
        let changed = if rank == 1 {
            pipeline.clone().train()
        } else {
            pipeline.clone()
        };
        let error = changed.infer(labels(3, WORDS)).map(drop).unwrap_err();
        pipeline.infer(labels(3, WORDS)).unwrap();
        error.to_string()
    });
    let expected = "whether layers have changed since the last run is false here, but true for \
                    rank 1 on localhost: all processes need the same";
    assert_eq!(errors[0], expected);
}

/// Two layers of 64 KiB share a weight, in the first and the last process.
#[test]
fn shared_parameters_go_where_they_are_needed_and_nowhere_else() {
    const WIDTH: usize = 128;
    let found = ranks(3, |comm| {
        let comm = std::sync::Arc::new(comm);
        let mut layers = dense(&[WIDTH; 4]);
        layers[2] = layers[0].clone();
        let builder = builder(layers, 3, GPipe, 2, Recompute::Never);
        let builder = builder.devices(devices(&[0, 1, 2]));
        let pipeline = builder.communicator(comm.clone()).build().unwrap();
        let mut sent = comm.bytes_sent();
        let mut sent_by = |work: &dyn Fn()| {
            work();
            let before = std::mem::replace(&mut sent, comm.bytes_sent());
            (sent - before) / (WIDTH * WIDTH * size_of::<f32>()) as u64
        };
        let run = || drop(train(&pipeline, vectors(2, WIDTH), WIDTH).unwrap());
        let of_step = sent_by(&run);
        let changed = pipeline.clone().train();
        let of_changed = sent_by(&|| drop(changed.infer(vectors(2, WIDTH)).unwrap()));
        let of_unchanged = sent_by(&|| drop(changed.infer(vectors(2, WIDTH)).unwrap()));
        let is_there = |layer: &Dense| layer.linear.weight.is_initialized();
        let layers: Vec<_> = changed.layers().iter().map(is_there).collect();
        ([of_step, of_changed, of_unchanged], layers)
    });
    let expected = [[0, 1, 0], [0, 0, 0], [1, 0, 0]];
    for (rank, (sent, layers)) in found.into_iter().enumerate() {
        assert_eq!(sent, expected[rank], "rank {rank}");
        assert_eq!(layers, [0, 1, 2].map(|layer| layer == rank), "rank {rank}");
    }
}

/// The bytes that all ranks send in a step of three micro-batches whose values have 1 MiB between layers.
fn sent_in_a_step(layers: impl Fn() -> Vec<Jumping> + Sync, of_workers: &[usize]) -> u64 {
    let processes = of_workers.iter().max().unwrap() + 1;
    let sent = ranks(processes, |comm| {
        let comm = std::sync::Arc::new(comm);
        let builder = builder(layers(), of_workers.len(), GPipe, 3, Recompute::Always);
        let builder = builder.devices(devices(of_workers));
        let pipeline = builder.communicator(comm.clone()).build().unwrap();
        let before = comm.bytes_sent();
        let batch = vectors(3 * MIB / (4 * size_of::<f32>()), 4);
        let step = pipeline.train_step((batch.clone(), batch), &SQUARED);
        assert!(step.is_ok());
        comm.bytes_sent() - before
    });
    sent.into_iter().sum()
}

const MIB: usize = 1 << 20;

#[test]
fn a_step_sends_activations_and_gradients_once_and_little_else() {
    // How often each micro-batch's value or skip enters another process; so does its gradient back.
    for (layers, of_workers, values) in [
        (&["", "", "", ""][..], &[0, 1][..], 1),
        (&["", "", "", ""], &[0, 1, 0, 1], 3),
        (&["", "", "", ""], &[0, 0, 1, 2], 2),
        (&["+a", "", "-a", ""], &[0, 1, 2, 2], 2 + 1),
        (&["+a", "-a", "-a", ""], &[0, 0, 1, 1], 1 + 1),
    ] {
        let sent = sent_in_a_step(|| jumping(layers), of_workers) as f64;
        let expected = (2 * 3 * values * MIB) as f64;
        let share = sent / expected;
        let what = format!("{layers:?} in {of_workers:?}: {share}");
        assert!((1.0..1.01).contains(&share), "{what}");
    }
}

#[test]
fn processes_cannot_share_running_statistics() {
    let errors = ranks(2, |comm| {
        let mut layers = conv_net();
        layers[5] = layers[1].clone();
        let builder = builder(layers, 2, GPipe, 2, Recompute::Never);
        let built = builder.devices(devices(&[0, 1])).communicator(comm).build();
        built.map(drop).unwrap_err().to_string()
    });
    assert_contains(&errors[0], "layer 1 (Block)");
    assert_contains(&errors[1], "layer 5 (Block)");
}
