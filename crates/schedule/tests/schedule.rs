//! What can be asked of a schedule.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use stovepipe_schedule::{
    Action, GPipe, OneForwardOneBackward, Schedule, ScheduleError, Scheduler,
};

/// Four stages on two workers, each with two of them, as in an interleaved schedule.
const INTERLEAVED: &str = "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1\n\
                           1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1";

fn schedule(text: &str) -> Schedule {
    text.parse().unwrap()
}

#[test]
fn inference_has_forward_passes_only() {
    let inference = Schedule::inference(3, 2).unwrap();
    assert_eq!(inference.to_string(), "0F0 0F1\n1F0 1F1\n2F0 2F1");
    assert!(!inference.is_training());
    assert_eq!(inference.peak_in_flight(), [0, 0, 0]);
    assert!(!inference.follows_directly(0, 0));
    assert_eq!(Schedule::inference(0, 2), Err(ScheduleError::NoStages));
    assert_eq!(
        Schedule::inference(3, 0),
        Err(ScheduleError::NoMicroBatches)
    );
}

#[test]
fn a_worker_may_have_several_stages() {
    let interleaved = schedule(INTERLEAVED);
    assert_eq!((interleaved.stages(), interleaved.micro_batches()), (4, 2));
    let owners: Vec<_> = (0..4).map(|stage| interleaved.worker_of(stage)).collect();
    assert_eq!(owners, [0, 1, 0, 1]);
    assert_eq!(interleaved.peak_in_flight(), [2, 2, 2, 1]);
}

#[test]
fn a_worker_may_have_stages_in_a_row() {
    let alone = schedule("0F0 1F0 1B0 0B0");
    assert_eq!((alone.stages(), alone.workers().len()), (2, 1));
    assert!(alone.follows_directly(1, 0));
    assert!(!alone.follows_directly(0, 0));
}

#[test]
fn follows_directly_looks_at_the_worker() {
    let check = |text: &str, stage, expected: &[bool]| {
        let schedule = schedule(text);
        let found: Vec<_> = (0..schedule.micro_batches())
            .map(|micro_batch| schedule.follows_directly(stage, micro_batch))
            .collect();
        assert_eq!(found, expected, "stage {stage} of\n{text}");
    };
    check("0F0 0B0 0F1 0B1", 0, &[true, true]);
    check("0F0 0F1 0B0 0B1", 0, &[false, false]);
    check("0F0 0F1\n1F0 1F1", 1, &[false, false]);
    check(INTERLEAVED, 3, &[true, true]);
    check(INTERLEAVED, 2, &[false, false]);
    // The last forward pass of GPipe's last stage is followed by the first micro-batch's
    // backward pass, which is its own only if there is no other.
    check("0F0 0B0", 0, &[true]);
    assert!(!schedule("0F0 0B0").follows_directly(0, 1));
}

#[test]
fn text_and_serde_give_the_same_schedule_back() {
    for original in [
        schedule(INTERLEAVED),
        Schedule::inference(3, 4).unwrap(),
        GPipe.schedule(2, 3).unwrap(),
        OneForwardOneBackward.schedule(3, 2).unwrap(),
    ] {
        assert_eq!(schedule(&original.to_string()), original);
        let json = serde_json::to_string(&original).unwrap();
        assert_eq!(serde_json::from_str::<Schedule>(&json).unwrap(), original);
    }
}

#[test]
fn serde_checks_what_it_reads() {
    let error = serde_json::from_str::<Schedule>("[]").unwrap_err();
    assert!(error.to_string().contains("at least one worker"), "{error}");
    let backward = serde_json::to_string(&[[Action::backward(0, 0)]]).unwrap();
    let error = serde_json::from_str::<Schedule>(&backward).unwrap_err();
    assert!(error.to_string().contains("lacks 0F0"), "{error}");
}

#[test]
fn commas_and_spaces_separate_actions() {
    let expected = schedule("0F0 0F1\n1F0 1F1");
    for text in [
        "0F0,0F1\n1F0,1F1",
        " 0F0,  0F1\r\n1F0 ,1F1 \r\n",
        "0F0\t0F1,\n1F0 1F1",
    ] {
        assert_eq!(schedule(text), expected, "{text:?}");
    }
}

#[test]
fn a_fixed_schedule_serves_its_own_numbers_only() {
    let fixed = schedule(INTERLEAVED);
    assert_eq!(fixed.name(), "fixed");
    assert_eq!(fixed.schedule(4, 2).as_ref(), Ok(&fixed));
    assert_eq!(
        fixed.schedule(2, 4),
        Err(ScheduleError::Fixed {
            stages: 4,
            micro_batches: 2,
            asked_stages: 2,
            asked_micro_batches: 4,
        })
    );
}
