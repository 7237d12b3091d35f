//! Failures in a stage.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use crate::{
    models::*,
    ranks::{devices, ranks},
};

/// What a layer does the `at`-th time that it runs (0: never).
#[derive(Clone, Debug)]
enum Mishap {
    Panic,
    Miswire,
    /// Is always slow.
    Slow,
    /// Waits until the other end is dropped.
    Hang(Arc<Mutex<Receiver<()>>>),
}

#[derive(Clone, Debug)]
struct Trap {
    mishap: Mishap,
    at: usize,
    runs: Arc<AtomicUsize>,
}

impl Trap {
    fn new(mishap: Mishap, at: usize) -> Self {
        let runs = Arc::default();
        Self { mishap, at, runs }
    }

    fn never() -> Self {
        Self::new(Mishap::Panic, 0)
    }

    fn spring(&self) -> Result<(), LayerError> {
        let run = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        if matches!(self.mishap, Mishap::Slow) {
            thread::sleep(Duration::from_millis(5));
        }
        if run != self.at {
            return Ok(());
        }
        match &self.mishap {
            Mishap::Panic => panic!("on purpose"),
            Mishap::Slow => Ok(()),
            Mishap::Miswire => Err(LayerError::new("a cat", "a dog")),
            Mishap::Hang(until) => {
                let _ = until.lock().unwrap().recv();
                Ok(())
            }
        }
    }
}

#[derive(Module, Debug)]
struct Trapped {
    norm: BatchNorm,
    #[module(skip)]
    trap: Trap,
}

impl Layer for Trapped {
    flow!(Tensor<2>);

    fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, LayerError> {
        let y = self.norm.forward(x);
        self.trap.spring()?;
        Ok(y)
    }
}

/// Before the first forward pass of its first step, a stage with batch norms runs twice to find their
/// momenta.
const PROBES: usize = 2;

/// Six layers, one of which is trapped.
fn trapped(layer: usize, trap: &Trap) -> Vec<Trapped> {
    let mut layers = Vec::from([(); 6].map(|()| Trapped {
        norm: norm(4),
        trap: Trap::never(),
    }));
    if let Some(layer) = layers.get_mut(layer) {
        layer.trap = trap.clone();
    }
    layers
}

/// Six layers without a fault.
fn sound() -> Vec<Trapped> {
    trapped(6, &Trap::never())
}

fn step(pipeline: &Pipeline<Trapped>) -> Result<(), StepError> {
    train(pipeline, vectors(8, 4), 4).map(|_| ())
}

#[test]
fn a_failure_names_its_place_and_leaves_the_model_as_it_was() {
    // Without recomputation a layer runs once per micro-batch: the third run is micro-batch 2.
    for mishap in [Mishap::Panic, Mishap::Miswire] {
        for (layer, stage) in [(0, 0), (3, 1), (5, 2)] {
            let trap = Trap::new(mishap.clone(), PROBES + 3);
            let pipeline = built(trapped(layer, &trap), 3, GPipe, 4, Recompute::Never);
            let before = bits(&pipeline);
            let failure = failure(step(&pipeline));
            assert_eq!(failure.stage, stage);
            assert_eq!(failure.layer, Some((layer, "Trapped".to_owned())));
            assert_eq!(failure.action.micro_batch, 2);
            assert_eq!(failure.action.pass, Pass::Forward);
            assert_eq!(failure.device, "cpu");
            let cause = match mishap {
                Mishap::Panic => "panicked: on purpose",
                _ => "expected a cat, found a dog",
            };
            assert_eq!(failure.cause.to_string(), cause);
            assert_eq!(failure.flight.workers.len(), 3);
            assert_eq!(failure.flight.workers[stage].finished.len(), 2);
            assert_eq!(bits(&pipeline), before);

            // The next step works, and is that of an untouched model.
            step(&pipeline).unwrap();
            let untouched = built(sound(), 3, GPipe, 4, Recompute::Never);
            step(&untouched).unwrap();
            assert_eq!(bits(&pipeline), bits(&untouched));
        }
    }
}

#[test]
fn a_failure_while_recomputing_is_a_failure_of_the_backward_pass() {
    // Four forward passes; the fifth run recomputes micro-batch 0.
    let trap = Trap::new(Mishap::Panic, PROBES + 5);
    let pipeline = built(trapped(0, &trap), 2, GPipe, 4, Recompute::Always);
    let failure = failure(step(&pipeline));
    assert_eq!(failure.action, Action::new(0, Pass::Backward, 0));
    let place = "stage 0 failed on cpu, in layer 0 (Trapped), backward of micro-batch 0";
    assert_contains(&failure, place);
    assert_contains(&failure, "worker 1:");
}

/// Every schedule, every layer, every run of it: nothing hangs, and every error is right.
#[test]
fn every_place_where_a_small_step_can_fail() {
    for rule in RULES {
        let workers = 3.min(6 / rule.stages(1));
        for layer in 0..6 {
            for at in 1..=PROBES + 6 {
                let trap = Trap::new(Mishap::Panic, at);
                let layers = trapped(layer, &trap);
                let pipeline = built(layers, workers, rule, 3, Recompute::Always);
                let before = bits(&pipeline);
                match step(&pipeline) {
                    Err(StepError::Failed(failure)) => {
                        assert_eq!(failure.layer, Some((layer, "Trapped".to_owned())));
                        let stages = pipeline.stages();
                        assert!(stages[failure.stage].layers.contains(&layer));
                        assert_eq!(failure.flight.workers.len(), workers);
                        assert_eq!(bits(&pipeline), before);
                    }
                    // Less is recomputed where backward directly follows forward.
                    Ok(()) => assert!(trap.runs.load(Ordering::SeqCst) < at),
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
}

const LIMIT: Option<Duration> = Some(Duration::from_secs(3));

/// A trap that hangs until the sender is dropped.
fn hang(at: usize) -> (Sender<()>, Trap) {
    let (release, until) = channel();
    let mishap = Mishap::Hang(Arc::new(Mutex::new(until)));
    (release, Trap::new(mishap, at))
}

fn stalling(layer: usize, trap: &Trap, rule: By, micro_batches: usize) -> Pipeline<Trapped> {
    let recompute = Recompute::Always;
    let builder = builder(trapped(layer, trap), 2, rule, micro_batches, recompute);
    builder.stall_timeout(LIMIT).build().unwrap()
}

/// Runs a step as soon as no worker is stuck. On a busy machine, the limit may also end a good step.
fn step_when_back(pipeline: &Pipeline<Trapped>) -> Result<(), StepError> {
    loop {
        match step(pipeline) {
            Err(StepError::Stuck { .. } | StepError::Stalled { .. }) => thread::yield_now(),
            other => return other,
        }
    }
}

/// The step stalls in this action of layer 3 on worker 1, and worker 0 waits for a stage. The model does
/// not change. The pipeline is stuck until the layer returns; then it works again.
fn stalls(pipeline: &Pipeline<Trapped>, release: Sender<()>, expected: &str, waits_for: usize) {
    let before = bits(pipeline);
    let Err(StepError::Stalled { flight, .. }) = step(pipeline) else {
        panic!("the step should stall");
    };
    let WorkerState::Running { action, layer } = &flight.workers[1].state else {
        panic!("worker 1 hangs");
    };
    assert_eq!(action.to_string(), expected);
    assert_eq!(layer, &Some((3, "Trapped".to_owned())));
    let WorkerState::Waiting { on_stage, .. } = flight.workers[0].state else {
        panic!("worker 0 waits");
    };
    assert_eq!(on_stage, waits_for);
    assert_eq!(bits(pipeline), before);
    let stuck = step(pipeline);
    assert!(matches!(stuck, Err(StepError::Stuck { worker: 1 })));
    drop(release);
    step_when_back(pipeline).unwrap();
}

#[test]
fn a_stall_ends_the_step_and_names_the_worker_that_hangs() {
    let (release, trap) = hang(PROBES + 2);
    let pipeline = stalling(3, &trap, By(Rule::OneForwardOneBackward, 1), 4);
    stalls(&pipeline, release, "1F1", 1);
    // Worker 1 has stages 1, 3 and 5, and hangs in stage 3; worker 0 has run stage 0 meanwhile.
    let (release, trap) = hang(1);
    let pipeline = stalling(3, &trap, By(Rule::Interleaved, 3), 2);
    stalls(&pipeline, release, "3F0", 3);
}

/// Processes that only wait say what the one with the layer says.
#[test]
fn a_layer_that_hangs_in_one_process_is_named_in_all() {
    let (release, trap) = hang(1);
    let said = ranks(3, |comm| {
        let rule = By(Rule::OneForwardOneBackward, 1);
        let builder = builder(trapped(3, &trap), 3, rule, 4, Recompute::Always);
        let builder = builder.devices(devices(&[0, 1, 2])).communicator(comm);
        let pipeline = builder.stall_timeout(LIMIT).build().unwrap();
        step(&pipeline).unwrap_err().to_string()
    });
    for (rank, said) in said.iter().enumerate() {
        let hangs = "worker 1: was in 1F0, layer 3 (Trapped)";
        let elsewhere = "worker 0: is in another process";
        for part in ["no worker finished an action for 3.0 s", hangs, elsewhere] {
            assert_contains(said, part);
        }
        assert_eq!(
            said.contains("rank 1 on localhost failed"),
            rank != 1,
            "{said}"
        );
    }
    drop(release);
}

#[test]
fn a_layer_that_hangs_while_it_is_measured_is_named() {
    let (release, trap) = hang(4);
    let profiler = Profiler::new(&cpu()).stall_timeout(LIMIT);
    let measured = profiler.measure(&trapped(3, &trap), vectors(8, 4));
    let expected = "layer 3 (Trapped) could not be measured: cpu did not answer for 3.0 s";
    assert_eq!(measured.unwrap_err().to_string(), expected);
    drop(release);
}

#[test]
fn a_pipeline_with_a_stuck_worker_can_be_dropped() {
    let (release, trap) = hang(1);
    let pipeline = stalling(0, &trap, By(Rule::GPipe, 1), 2);
    assert!(matches!(step(&pipeline), Err(StepError::Stalled { .. })));
    drop(pipeline);
    drop(release);
}

#[test]
fn a_stop_ends_the_step_and_a_reset_lets_it_go_on() {
    // Both have 16 actions.
    for (rule, micro_batches) in [(By(Rule::GPipe, 1), 4), (By(Rule::Interleaved, 2), 2)] {
        let stop = StopHandle::new();
        let inside = stop.clone();
        let pipeline = builder(sound(), 2, rule, micro_batches, Recompute::Never)
            .stop_handle(stop.clone())
            .on_progress(move |progress| {
                // Early in a step of 16 actions; an inference of two samples has 4 or 8.
                if progress.total == 16 && progress.done == 2 {
                    inside.stop();
                }
            })
            .build()
            .unwrap();
        // Workers check the handle between actions; a step may end before they see it.
        let is_stopped = || match step(&pipeline) {
            Err(StepError::Stopped) => true,
            other => other.map(|()| false).unwrap(),
        };
        assert!((0..100).any(|_| is_stopped()));
        assert!(is_stopped());
        let infer = || pipeline.infer(vectors(2, 4));
        assert!(matches!(infer(), Err(StepError::Stopped)));
        stop.reset();
        let _ = infer().unwrap();
    }
}

/// The callback gets a clone of the pipeline that calls it.
#[test]
fn a_callback_that_uses_its_own_pipeline_gets_an_error() {
    let own: Arc<Mutex<Option<Pipeline<Trapped>>>> = Arc::default();
    let (inside, refusals) = (own.clone(), Arc::new(AtomicUsize::new(0)));
    let count = refusals.clone();
    let pipeline = builder(sound(), 2, GPipe, 2, Recompute::Never)
        .on_progress(move |_| {
            if let Some(pipeline) = &*inside.lock().unwrap() {
                let result = pipeline.infer(vectors(2, 4));
                assert!(matches!(result, Err(StepError::InCallback)));
                count.fetch_add(1, Ordering::SeqCst);
            }
        })
        .build()
        .unwrap();
    *own.lock().unwrap() = Some(pipeline.clone());
    step(&pipeline).unwrap();
    assert_eq!(refusals.load(Ordering::SeqCst), 8);
    own.lock().unwrap().take();
}

#[test]
fn a_callback_or_an_objective_that_panics_is_an_error_and_the_next_step_works() {
    let once = AtomicUsize::new(0);
    let pipeline = builder(sound(), 2, GPipe, 2, Recompute::Never)
        .on_progress(move |_| assert_ne!(once.fetch_add(1, Ordering::SeqCst), 1, "no picture"))
        .build()
        .unwrap();
    let before = bits(&pipeline);
    let error = step(&pipeline).unwrap_err();
    assert_contains(&error, "progress callback panicked");
    assert_contains(&error, "no picture");
    assert_eq!(bits(&pipeline), before);
    step(&pipeline).unwrap();

    #[derive(Clone)]
    struct Weightless;
    impl Objective<Tensor<2>, Tensor<2>> for Weightless {
        fn loss(&self, output: Tensor<2>, _: Tensor<2>) -> Tensor<1> {
            output.sum()
        }
        fn weight(&self, _: &Tensor<2>) -> f64 {
            panic!("no scales")
        }
    }
    let error = pipeline.train_step((vectors(4, 4), vectors(4, 4)), &Weightless);
    assert_contains(error.unwrap_err(), "no scales");
    step(&pipeline).unwrap();
}

/// A stage that waits for nothing also sees a failure, before its next action.
#[test]
fn a_failure_ends_stages_that_wait_for_nothing() {
    let (trap, watched) = (Trap::new(Mishap::Panic, 1), Trap::new(Mishap::Slow, 0));
    let mut layers = trapped(3, &trap);
    layers[0].trap = watched.clone();
    let pipeline = built(layers, 2, GPipe, 64, Recompute::Never);
    assert!(train(&pipeline, vectors(128, 4), 4).is_err());
    assert!(watched.runs.load(Ordering::SeqCst) < 64);
}

#[test]
fn a_panic_in_the_objective_is_an_error_of_the_last_stage() {
    let pipeline = built(sound(), 2, GPipe, 2, Recompute::Always);
    let bad = MeanOf(|_: Tensor<2>, _: Tensor<2>| panic!("no loss today"));
    let failure = failure(pipeline.train_step((vectors(4, 4), vectors(4, 4)), &bad));
    assert_eq!((failure.stage, failure.layer), (1, None));
    assert_contains(failure.cause, "no loss today");
}

/// The number of threads of this process with this name prefix.
#[cfg(target_os = "linux")]
fn threads(prefix: &str) -> usize {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok())
        .filter(|name| name.starts_with(prefix))
        .count()
}

/// Threads that have ended are listed for a moment more.
#[cfg(target_os = "linux")]
fn check_no_workers() {
    let begin = std::time::Instant::now();
    while threads("worker-") > 0 {
        assert!(begin.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(1));
    }
}

/// In a separate process, because other tests start workers too.
#[test]
#[cfg(target_os = "linux")]
fn no_thread_outlives_its_pipeline() {
    const CHILD: &str = "STOVEPIPE_TEST_COUNTS_THREADS";
    if std::env::var_os(CHILD).is_none() {
        let this = std::env::current_exe().unwrap();
        let name = "failures::no_thread_outlives_its_pipeline";
        let mut child = std::process::Command::new(this);
        let status = child.args([name, "--exact"]).env(CHILD, "1").status();
        assert!(status.unwrap().success());
        return;
    }
    let rules = [By(Rule::GPipe, 1), By(Rule::Interleaved, 2)];
    for (rule, at) in rules.into_iter().flat_map(|rule| [(rule, 0), (rule, 3)]) {
        let trap = Trap::new(Mishap::Panic, at);
        let pipeline = builder(trapped(2, &trap), 3, rule, 4, Recompute::Always)
            .threads_per_stage(2)
            .build()
            .unwrap();
        assert_eq!(threads("worker-"), 6);
        assert_eq!(step(&pipeline).is_ok(), at == 0);
        drop(pipeline);
        check_no_workers();
    }

    // Nor after a stall that has resolved.
    let (release, trap) = hang(1);
    let pipeline = builder(trapped(2, &trap), 3, GPipe, 4, Recompute::Always)
        .stall_timeout(LIMIT)
        .build()
        .unwrap();
    assert!(matches!(step(&pipeline), Err(StepError::Stalled { .. })));
    drop(release);
    let _ = step_when_back(&pipeline);
    drop(pipeline);
    check_no_workers();
}
