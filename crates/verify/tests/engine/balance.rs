//! Profiles, and cuts by them.

use std::{
    collections::HashSet,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, ThreadId},
    time::Duration,
};

use stovepipe_pipeline::measure::{LayerProfile, Profile};

use crate::{models::*, skips::jumping};

/// The number of parameters that have a value.
fn initialised<M: Module>(module: &M) -> usize {
    struct Count(usize);

    impl ModuleVisitor for Count {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0 += usize::from(param.is_initialized());
        }
    }

    let mut count = Count(0);
    module.visit(&mut count);
    count.0
}

/// Running statistics count as initialised from the start.
#[test]
fn measuring_leaves_a_lazy_model_as_it_was() {
    let layers = conv_net();
    let before = initialised(&layers);
    let profiler = Profiler::new(&cpu()).side_by_side(2);
    let profile = profiler.measure(&layers, images(4)).unwrap();
    assert_eq!(profile.layers.len(), layers.len());
    assert_eq!(initialised(&layers), before, "a parameter was allocated");

    // Profiling does not change the values that parameters get.
    let build = |layers| {
        let pipeline = Pipeline::builder(layers).devices([cpu()]).seed(7).build();
        bits(&pipeline.unwrap().into_layers())
    };
    assert_eq!(build(layers), build(conv_net()));
}

#[test]
fn measuring_leaves_a_trained_model_as_it_was() {
    let pipeline = Pipeline::builder(conv_net()).devices([cpu()]).build();
    let layers = pipeline.unwrap().into_layers();
    let before = bits(&layers);
    let profiler = Profiler::new(&cpu()).side_by_side(2);
    profiler.measure(&layers, images(4)).unwrap();
    assert_eq!(bits(&layers), before);
}

/// Sleeps, forward.
#[derive(Module, Debug)]
struct Slow {
    milliseconds: u64,
}

#[layer]
impl Slow {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        std::thread::sleep(Duration::from_millis(self.milliseconds));
        x
    }
}

#[test]
fn a_slow_layer_gets_a_stage_for_itself() {
    // Far enough apart that a busy machine does not matter.
    let layers = [0, 0, 80, 0, 0].map(|milliseconds| Slow { milliseconds });
    let builder = Pipeline::auto(layers.into(), [cpu(), cpu(), cpu()], vectors(2, 3)).unwrap();
    let stages = (builder.recompute(Recompute::Never).build().unwrap()).stages();
    let is_alone = stages.iter().any(|stage| stage.layers == (2..3));
    assert!(is_alone, "{stages:?}");
}

/// Runs of layers of each kind.
static RUNS: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

/// Counts its runs, and repeats its output.
#[derive(Module, Debug)]
struct Counted {
    kind: usize,
    copies: usize,
    dense: Dense,
}

#[layer]
impl Counted {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        RUNS[self.kind].fetch_add(1, Ordering::SeqCst);
        self.dense.linear.forward(x).repeat_dim(1, self.copies)
    }
}

#[test]
fn of_layers_that_are_alike_one_is_measured() {
    let layer = |kind, copies, sizes: &[usize; 2]| Counted {
        kind,
        copies,
        dense: dense(sizes).remove(0),
    };
    // The second kind has another setting, the third and fourth have other shapes of parameters.
    let layers = [
        vec![layer(0, 1, &[4, 4]); 7],
        vec![layer(1, 2, &[4, 4]); 1],
        vec![layer(2, 1, &[8, 4]); 1],
        vec![layer(3, 1, &[4, 5]); 1],
    ]
    .concat();
    let profile = Profiler::new(&cpu()).measure(&layers, vectors(3, 4));
    let layers = profile.unwrap().layers;
    let outputs: Vec<_> = layers.iter().map(|layer| layer.output / (4 * 3)).collect();
    assert_eq!(outputs, [4, 4, 4, 4, 4, 4, 4, 8, 4, 5]);
    assert!(layers[..7].iter().all(|layer| *layer == layers[0]));
    let runs = RUNS.each_ref().map(|runs| runs.load(Ordering::SeqCst));
    // At most 2 warm-up runs, 25 timed ones, 6 without a tape and 6 in halves.
    assert!(runs.iter().all(|runs| (1..=39).contains(runs)), "{runs:?}");
}

/// Only times differ from those of layers that are measured alone.
#[test]
fn layers_are_measured_side_by_side() {
    let layers = jumping(&["", "+a", "+b", "-a", "", "-b"]);
    let measure = |workers| {
        let profiler = Profiler::new(&cpu()).side_by_side(workers);
        profiler.measure(&layers, vectors(5, 4)).unwrap()
    };
    let alone = measure(0);
    for workers in [1, 3] {
        let beside = measure(workers);
        for (mut found, expected) in beside.layers.into_iter().zip(&alone.layers) {
            let times = [found.forward, found.backward, found.quiet.unwrap()];
            assert!(
                times.iter().all(|time| time.is_finite() && *time > 0.0),
                "{times:?}"
            );
            assert!(found.weight.unwrap() <= found.backward);
            (found.forward, found.backward) = (expected.forward, expected.backward);
            (found.quiet, found.weight) = (expected.quiet, expected.weight);
            assert_eq!(found, *expected);
        }
    }
}

/// Remembers the threads that run it.
#[derive(Module, Debug)]
struct Watched;

static THREADS: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());

#[layer]
impl Watched {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        THREADS.lock().unwrap().push(thread::current().id());
        x
    }
}

#[test]
fn side_by_side_each_worker_runs_each_layer() {
    let threads = |workers| {
        let profiler = Profiler::new(&cpu()).side_by_side(workers);
        profiler
            .measure(&[Watched, Watched], vectors(5, 4))
            .unwrap();
        let runs = std::mem::take(&mut *THREADS.lock().unwrap());
        let threads: HashSet<_> = runs.iter().collect();
        let of = |thread: &&ThreadId| runs.iter().filter(|run| run == thread).count();
        // Two layers, two micro-batches, three rounds.
        assert!(threads.iter().all(|thread| of(thread) >= 12), "{runs:?}");
        threads.len()
    };
    assert_eq!([threads(1), threads(3)], [1, 3]);
}

#[test]
fn sizes_are_counted() {
    let layers = dense(&[3, 5, 2]);
    let profile = Profiler::new(&cpu()).measure(&layers, vectors(7, 3));
    let profile = profile.unwrap();
    let bytes = |layer: &LayerProfile| (layer.parameters, layer.output);
    let counted: Vec<_> = profile.layers.iter().map(bytes).collect();
    let expected = [(4 * (3 * 5 + 5), 4 * 7 * 5), (4 * (5 * 2 + 2), 4 * 7 * 2)];
    assert_eq!(counted, expected);
    assert_eq!(profile.sizes()[0], 4.0 * 80.0 + 140.0);
    assert_eq!(Balance::by_size(&profile), Balance::Costs(profile.sizes()));
    let seconds = profile.times();
    assert!(seconds.iter().all(|&time| time > 0.0), "{seconds:?}");
}

#[test]
fn a_sample_that_does_not_pass_names_the_layer() {
    let layers = dense(&[3, 5, 2]);
    let profiler = || Profiler::new(&cpu());
    let error = profiler().measure(&layers, vectors(7, 4)).unwrap_err();
    assert!(matches!(error, BuildError::Profile(_)), "{error}");
    assert_contains(error, "layer 0 (Dense)");
    let error = profiler().threads(0).measure(&layers, vectors(7, 3));
    assert!(matches!(error, Err(BuildError::Threads(0))));
    let none = Pipeline::auto(layers, Vec::<NamedDevice>::new(), vectors(7, 3));
    assert!(matches!(none.map(|_| ()), Err(BuildError::NoStages)));
}

#[test]
fn costs_that_are_no_numbers_are_errors() {
    let layers = dense(&[2; 5]);
    let build = |costs| {
        let builder = Pipeline::builder(layers.clone()).devices([cpu(), cpu()]);
        let error = builder.balance(Balance::Costs(costs)).build();
        error.unwrap_err().to_string()
    };
    for bad in [f64::NAN, f64::NEG_INFINITY, -1.0] {
        let cost = |index, _: &Dense| if index == 2 { bad } else { 1.0 };
        let error = Balance::by_cost(&layers, cost).unwrap_err().to_string();
        for error in [error, build(vec![1.0, 1.0, bad, 1.0])] {
            assert!(error.starts_with("layer 2 (Dense) costs"), "{error}");
        }
    }
    assert_eq!(
        build(vec![1.0; 3]),
        "the number of costs is 3, not that of the layers, 4"
    );
}

fn profile_of(layers: Vec<LayerProfile>) -> Profile {
    let (samples, input) = (1, 0);
    Profile {
        samples,
        input,
        layers,
        skips: vec![],
    }
}

/// 1F1B's last stage recomputes nothing, the first one nearly all.
#[test]
fn what_is_computed_again_counts() {
    let layer = LayerProfile {
        forward: 0.01,
        backward: 0.01,
        ..LayerProfile::default()
    };
    let measured = Measured::from(profile_of(vec![layer; 10]));
    for balance in [
        Balance::by_time(measured.clone()),
        Balance::Planned(measured),
    ] {
        let stages = |recompute| {
            let builder = Pipeline::builder(dense(&[2; 11])).devices([cpu(), cpu()]);
            let builder = builder.balance(balance.clone()).micro_batches(50);
            builder.recompute(recompute).cut().unwrap()
        };
        assert_eq!(stages(Recompute::Never), [5, 5]);
        // 4 layers at 30 ms (but for one micro-batch in 50), 6 at 20 ms.
        assert_eq!(stages(Recompute::Always), [4, 6]);
        assert_eq!(stages(Recompute::ExceptLast), [4, 6]);
    }
}

/// A device that is slow at the last layer does not get it, or gets it alone.
#[test]
fn unlike_devices_are_cut_for_their_own_times() {
    let profile = |seconds: [f64; 4]| {
        let layer = |forward| LayerProfile {
            forward,
            backward: 2.0 * forward,
            ..LayerProfile::default()
        };
        profile_of(seconds.map(layer).into())
    };
    let one: NamedDevice = "cpu".parse().unwrap();
    let two: NamedDevice = "cpu:threads=2".parse().unwrap();
    for (devices, expected) in [
        ([&one, &two], [3, 1]), // 9 s and 15 s
        ([&two, &one], [2, 2]), // 6 s and 6 s
        ([&one, &one], [2, 2]),
        ([&two, &two], [3, 1]), // 9 s and 15 s
    ] {
        let devices: Vec<_> = devices.into_iter().cloned().collect();
        let mut asked = 0;
        let measured = Measured::on(&devices, |device| {
            asked += 1;
            Ok::<_, BuildError>(match device.threads {
                None => profile([1.0, 1.0, 1.0, 1.0]),
                _ => profile([1.0, 1.0, 1.0, 5.0]),
            })
        });
        let measured = measured.unwrap();
        assert_eq!(asked, if devices[0] == devices[1] { 1 } else { 2 });
        for balance in [
            Balance::by_time(measured.clone()),
            Balance::Planned(measured),
        ] {
            let builder = Pipeline::builder(dense(&[2; 5])).devices(devices.clone());
            let builder = builder.balance(balance).recompute(Recompute::Never);
            assert_eq!(builder.micro_batches(50).cut().unwrap(), expected);
        }
    }
}

#[test]
fn the_costs_make_the_cut() {
    let layers = dense(&[2; 7]);
    let balance = Balance::by_cost(&layers, |index, _| (index + 1) as f64).unwrap();
    let builder = Pipeline::builder(layers).devices([cpu(), cpu()]);
    let stages = builder.balance(balance).build().unwrap().stages();
    let cut: Vec<_> = stages.into_iter().map(|stage| stage.layers).collect();
    assert_eq!(cut, [0..4, 4..6]);
}
