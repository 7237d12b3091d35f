//! Transfers between devices. All CPUs are one device to Burn; these tests treat each worker's as different.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc::{Sender, channel},
    },
    time::Duration,
};

use stovepipe_pipeline::error::{Transfer, TransferKind};

use crate::{models::*, skips::jumping};

fn step(pipeline: &Pipeline<ConvNet>) -> Result<ByPath<u32>, StepError> {
    let step = train(pipeline, images(8), 4)?;
    let mut seen = gradient_bits(pipeline, &step.gradients);
    seen.push(("loss".to_owned(), vec![(step.loss as f32).to_bits()]));
    seen.extend(bits(pipeline));
    Ok(seen)
}

/// Counts transfers by kind, sender and receiver.
type Counts = Arc<Mutex<BTreeMap<String, usize>>>;

fn counted<L: Layer>(builder: PipelineBuilder<L>) -> (PipelineBuilder<L>, Counts) {
    let counts = Counts::default();
    let own = counts.clone();
    let builder = builder.on_transfer(move |transfer| {
        let [from, to] = transfer.stages;
        let what = format!("{:?} {from}->{to}", transfer.kind);
        *own.lock().unwrap().entry(what).or_default() += 1;
    });
    (builder, counts)
}

#[test]
fn what_is_carried_is_what_was_sent() {
    for rule in RULES {
        for recompute in Recompute::MODES {
            let builder = || builder(conv_net(), 2, rule, 4, recompute.clone());
            let (carried, counts) = counted(builder());
            let direct = step(&builder().build().unwrap()).unwrap();
            let carried = step(&carried.build().unwrap()).unwrap();
            assert!(carried == direct, "{rule:?}");
            // Each boundary between workers, each micro-batch, once forward and once back. In a V,
            // the middle stages are on one worker.
            let counts = counts.lock().unwrap().clone();
            let crossings = match rule.0 {
                Rule::ZeroBubbleV | Rule::VMin | Rule::VHalf | Rule::VOneForwardOneBackward => {
                    rule.stages(2) - 2
                }
                _ => rule.stages(2) - 1,
            };
            assert_eq!(counts.len(), 2 * crossings, "{rule:?} {counts:?}");
            assert!(counts.values().all(|&count| count == 4), "{counts:?}");
        }
    }
}

#[test]
fn skips_are_carried_straight_and_their_gradients_back() {
    let layers = || jumping(&["+a", "", "-a +b", "-b"]);
    let builder = || builder(layers(), 4, OneForwardOneBackward, 2, Recompute::Always);
    let train = |pipeline| {
        let step = train(&pipeline, vectors(6, 4), 4).unwrap();
        gradient_bits(&pipeline, &step.gradients)
    };
    let (carried, counts) = counted(builder());
    let carried = train(carried.build().unwrap());
    assert_eq!(carried, train(builder().build().unwrap()));
    let counts = counts.lock().unwrap();
    let of_skips: Vec<_> = counts.keys().filter(|key| key.contains("Skip")).collect();
    let gradients = ["SkipGradients 2->0", "SkipGradients 3->2"];
    assert_eq!(of_skips, [gradients, ["Skips 0->2", "Skips 2->3"]].concat());
}

/// The first copy lasts until the first stage has run all its forward passes. If the stage itself
/// copied, that would never happen.
#[test]
fn a_stage_goes_on_while_what_it_sent_travels() {
    let gate = Arc::new(OnceLock::new());
    let (waits, opens) = (gate.clone(), gate);
    let pipeline = builder(conv_net(), 2, GPipe, 4, Recompute::Never)
        .stall_timeout(Some(Duration::from_secs(60)))
        .on_transfer(move |transfer| {
            if (transfer.kind, transfer.micro_batch) == (TransferKind::Values, 0) {
                waits.wait();
            }
        })
        .on_progress(move |progress| {
            let action = progress.action;
            if (action.pass, action.stage, action.micro_batch) == (Pass::Forward, 0, 3) {
                let _ = opens.set(());
            }
        })
        .build()
        .unwrap();
    step(&pipeline).unwrap();
}

#[test]
fn a_transfer_that_panics_fails_the_step_and_says_what_did_not_arrive() {
    let named = |name: &str| NamedDevice {
        name: name.to_owned(),
        ..cpu().into()
    };
    for (kind, stages, told) in [
        (
            TransferKind::Values,
            [0, 1],
            "values of micro-batch 2 from stage 0 on left",
        ),
        (
            TransferKind::Gradients,
            [2, 1],
            "gradients of micro-batch 2 from stage 2 on right",
        ),
    ] {
        let told = format!("the {told} to stage 1 on middle");
        let fails = Arc::new(AtomicBool::new(true));
        let fails_now = fails.clone();
        let rule = OneForwardOneBackward;
        let pipeline = builder(conv_net(), 3, rule, 4, Recompute::ExceptLast)
            .devices(["left", "middle", "right"].map(named))
            .on_transfer(move |transfer| {
                let found = (transfer.kind, transfer.stages, transfer.micro_batch);
                let fails = found == (kind, stages, 2) && fails_now.load(Ordering::SeqCst);
                assert!(!fails, "the device is lost");
            })
            .build()
            .unwrap();
        let before = bits(&pipeline);
        let failure = failure(step(&pipeline));
        assert_contains(&failure, "stage 1 failed on middle");
        assert_contains(&failure, &told);
        assert_contains(&failure, "did not arrive: panicked: the device is lost");
        assert_eq!(bits(&pipeline), before);
        fails.store(false, Ordering::SeqCst);
        step(&pipeline).unwrap();
    }
}

/// A pipeline that copies the gradients of micro-batch 1 until the sender is dropped.
fn never_answering() -> (Pipeline<ConvNet>, Sender<()>) {
    let (release, until) = channel();
    let until = Mutex::new(until);
    let pipeline = builder(conv_net(), 2, GPipe, 3, Recompute::Never)
        .stall_timeout(Some(Duration::from_secs(3)))
        .on_transfer(move |transfer: &Transfer| {
            if (transfer.kind, transfer.micro_batch) == (TransferKind::Gradients, 1) {
                let _ = until.lock().unwrap().recv();
            }
        })
        .build()
        .unwrap();
    (pipeline, release)
}

#[test]
fn a_transfer_that_does_not_come_back_stalls_the_step_and_is_named() {
    let (pipeline, release) = never_answering();
    let before = bits(&pipeline);
    let Err(error) = step(&pipeline) else {
        panic!("the step should stall");
    };
    let StepError::Stalled { flight, .. } = &error else {
        panic!("{error}");
    };
    let [transfer] = &flight.transfers[..] else {
        panic!("{:?} are on their way", flight.transfers);
    };
    let found = (transfer.kind, transfer.stages, transfer.micro_batch);
    assert_eq!(found, (TransferKind::Gradients, [1, 0], 1));
    let state = &flight.workers[0].state;
    let waits = matches!(state, WorkerState::Waiting { on_stage: 1, .. });
    assert!(waits, "{state:?}");
    let told = "being copied: the gradients of micro-batch 1 from stage 1 on cpu to stage 0 on cpu";
    assert_contains(&error, told);
    assert_eq!(bits(&pipeline), before);

    assert!(matches!(step(&pipeline), Err(StepError::StuckTransfer(stuck)) if stuck == *transfer));
    drop(release);
    while matches!(step(&pipeline), Err(StepError::StuckTransfer(_))) {
        std::thread::yield_now();
    }
    step(&pipeline).unwrap();
}

#[test]
fn a_pipeline_with_a_transfer_under_way_can_be_dropped() {
    let (pipeline, release) = never_answering();
    assert!(matches!(step(&pipeline), Err(StepError::Stalled { .. })));
    drop(pipeline);
    drop(release);
}

/// The step fails during a slow transfer: it waits for it, and copies nothing else.
#[test]
fn nothing_of_a_step_that_failed_is_copied_after_it() {
    let copied = Arc::new(Mutex::new(0));
    let counts = copied.clone();
    let stop = StopHandle::new();
    let stops = stop.clone();
    let pipeline = builder(conv_net(), 2, GPipe, 8, Recompute::Never)
        .stop_handle(stop.clone())
        .on_transfer(move |_| {
            stops.stop();
            std::thread::sleep(Duration::from_millis(50));
            *counts.lock().unwrap() += 1;
        })
        .build()
        .unwrap();
    assert!(matches!(step(&pipeline), Err(StepError::Stopped)));
    let at_end = *copied.lock().unwrap();
    assert!(at_end >= 1);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(*copied.lock().unwrap(), at_end);
}
