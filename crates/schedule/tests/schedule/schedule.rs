//! Properties of schedules.

use crate::common::{any_draft, schedulers};
use proptest::prelude::*;
use stovepipe_schedule::{Action, Pass, PipeDream, RoundRobin, Schedule, ScheduleError, Scheduler};

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
    assert_eq!(inference.peak_activations(), [0.0, 0.0, 0.0]);
    assert_eq!(inference.follows_directly(0), [false, false]);
    assert_eq!(Schedule::inference(0, 2), Err(ScheduleError::NoStages));
    let nothing = Err(ScheduleError::NoMicroBatches);
    assert_eq!(Schedule::inference(3, 0), nothing);
}

#[test]
fn a_worker_may_have_several_stages() {
    let interleaved = schedule(INTERLEAVED);
    assert_eq!((interleaved.stages(), interleaved.micro_batches()), (4, 2));
    let owners = [0, 1, 2, 3].map(|stage| interleaved.worker_of(stage, 1));
    assert_eq!(owners, [0, 1, 0, 1]);
    assert_eq!(interleaved.peak_in_flight(), [2, 2, 2, 1]);
    assert_eq!(interleaved.peak_activations(), [2.0, 1.5]);
}

#[test]
fn a_worker_may_have_stages_in_a_row() {
    let alone = schedule("0F0 1F0 1B0 0B0");
    assert_eq!((alone.stages(), alone.workers().len()), (2, 1));
    assert_eq!(alone.follows_directly(1), [true]);
    assert_eq!(alone.follows_directly(0), [false]);
}

#[test]
fn follows_directly_looks_at_the_worker() {
    let check = |text: &str, stage, expected: &[bool]| {
        let found = schedule(text).follows_directly(stage);
        assert_eq!(found, expected, "stage {stage} of\n{text}");
    };
    check("0F0 0B0 0F1 0B1", 0, &[true, true]);
    check("0F0 0F1 0B0 0B1", 0, &[false, false]);
    check("0F0 0I0 0F1 0W0 0I1 0W1", 0, &[true, false]);
    check("0F0 0F1\n1F0 1F1", 1, &[false, false]);
    check(INTERLEAVED, 3, &[true, true]);
    check(INTERLEAVED, 2, &[false, false]);
    check("0F0 0B0\n0F1 0B1", 0, &[true, true]);
    // GPipe's last stage, with a single micro-batch.
    check("0F0 0B0", 0, &[true]);
}

#[test]
fn replicas_take_micro_batches_in_turn() {
    let replicated = schedule("0F1 0B1\n0F0 0F2 0B0 0B2\n1F0 1B0 1F1 1B1 1F2 1B2");
    assert_eq!(replicated.replicas(0), [1, 0]);
    assert_eq!([0, 1, 2].map(|i| replicated.worker_of(0, i)), [1, 0, 1]);
    assert_eq!(replicated.peak_in_flight(), [2, 1]);
    let round_robin = RoundRobin::new(vec![2, 1]).schedule(2, 4).unwrap();
    let owners = [0, 1, 2, 3].map(|i| round_robin.worker_of(0, i));
    assert_eq!(owners, [0, 1, 0, 1]);
}

/// Of one, no, and two micro-batches more than the period.
#[test]
fn replicas_may_have_unequal_shares() {
    for text in [
        "0F0 0F1 0F3 0F4\n0F2 0F5",
        "0F0 0F1\n0F2",
        "0F1\n0F0 0F2 0F3",
    ] {
        let unequal = schedule(text);
        for (worker, actions) in unequal.workers().iter().enumerate() {
            for action in actions {
                assert_eq!(unequal.worker_of(0, action.micro_batch), worker, "{text}");
            }
        }
        let first = unequal.worker_of(0, 0);
        assert_eq!(unequal.replicas(0), [first, 1 - first]);
    }
}

#[test]
fn ascending_is_a_matter_of_each_pass_and_replica() {
    let check =
        |text: &str, expected| assert_eq!(schedule(text).is_ascending(), expected, "{text}");
    check("0F0 0F1 0B0 0B1", true);
    check("0F1 0F0 0B0 0B1", false);
    check("0F0 0F1 0B1 0B0", false);
    check("0F0 0F1 0I0 0I1 0W0 0W1", true);
    check("0F0 0F1 0I1 0I0 0W0 0W1", false);
    check("0F0 0F1 0I0 0I1 0W1 0W0", false);
    check("0F0 0F1 0I0 0B1 0W0", false); // the weights see micro-batch 1 before 0
    check("0F1 0B1\n0F0 0B0", true);
    check("0F2 0F0 0B0 0B2\n0F1 0B1", false);
    for scheduler in schedulers() {
        let schedule = scheduler.schedule(4, 9).unwrap();
        assert!(schedule.is_ascending(), "{scheduler:?}");
    }
    let replicated = PipeDream::new(vec![3, 1]).schedule(2, 9).unwrap();
    assert!(replicated.is_ascending());
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
    for text in "0F0,0F1\n1F0,1F1| 0F0,  0F1\r\n1F0 ,1F1 \r\n|0F0\t0F1,\n1F0 1F1".split('|') {
        assert_eq!(schedule(text), expected, "{text:?}");
    }
}

#[test]
fn a_fixed_schedule_has_one_size() {
    let fixed = schedule(INTERLEAVED);
    assert_eq!(fixed.name(), "fixed");
    assert_eq!(fixed.schedule(4, 2).as_ref(), Ok(&fixed));
    let expected = "this schedule is for 4 stages and 2 micro-batches, not 2 and 4";
    assert_eq!(fixed.schedule(2, 4).unwrap_err().to_string(), expected);
}

/// What `action` receives, looked up in the lists alone.
fn sender(schedule: &Schedule, action: Action) -> Option<Action> {
    let is_listed = |a: &Action| schedule.workers().iter().flatten().any(|b| a == b);
    let (stage, micro_batch) = (action.stage, action.micro_batch);
    match action.pass {
        Pass::Forward => Some(Action::forward(stage.checked_sub(1)?, micro_batch)),
        Pass::Backward | Pass::InputGradient => [Pass::Backward, Pass::InputGradient]
            .map(|pass| Action::new(stage + 1, pass, micro_batch))
            .into_iter()
            .find(is_listed),
        _ => None,
    }
}

proptest! {
    #[test]
    fn input_and_output_are_inverse(draft in any_draft()) {
        let schedule = Schedule::new(draft.lists()).unwrap();
        for &action in schedule.workers().iter().flatten() {
            prop_assert_eq!(schedule.input(action), sender(&schedule, action));
            if let Some(input) = schedule.input(action) {
                prop_assert_eq!(schedule.output(input), Some(action));
            }
            if let Some(output) = schedule.output(action) {
                prop_assert_eq!(schedule.input(output), Some(action));
            }
        }
    }

    #[test]
    fn every_order_that_can_run_is_a_schedule(draft in any_draft()) {
        let schedule = Schedule::new(draft.lists()).unwrap();
        prop_assert_eq!(schedule.stages(), draft.placement.len());
        prop_assert_eq!(schedule.micro_batches(), draft.micro_batches);
        prop_assert_eq!(schedule.is_training(), draft.training);
        prop_assert_eq!(schedule.is_asynchronous(), draft.update_every.is_some());
        prop_assert_eq!(schedule.update_every(), draft.update_every);
        for (stage, workers) in draft.placement.iter().enumerate() {
            prop_assert_eq!(schedule.replicas(stage), &workers[..]);
        }
        let text: Schedule = schedule.to_string().parse().unwrap();
        prop_assert_eq!(&text, &schedule);
        prop_assert_eq!(&Schedule::from_csv(&schedule.to_csv()).unwrap(), &schedule);
        let json = serde_json::to_string(&schedule).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Schedule>(&json).unwrap(), &schedule);
    }
}
