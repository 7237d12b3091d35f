//! The orders that the two schedulers make, against hand-written ones and closed forms.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use proptest::prelude::*;
use stovepipe_schedule::{
    Action, GPipe, OneForwardOneBackward, Pass, Schedule, ScheduleError, Scheduler,
};

const SECOND: Duration = Duration::from_secs(1);

fn check(scheduler: &dyn Scheduler, stages: usize, micro_batches: usize, expected: &str) {
    let schedule = scheduler.schedule(stages, micro_batches).unwrap();
    assert_eq!(schedule.to_string(), expected, "{scheduler:?}");
}

#[test]
fn gpipe_runs_forward_then_backward() {
    check(&GPipe, 1, 1, "0F0 0B0");
    check(&GPipe, 1, 3, "0F0 0F1 0F2 0B0 0B1 0B2");
    check(&GPipe, 3, 1, "0F0 0B0\n1F0 1B0\n2F0 2B0");
    check(&GPipe, 2, 2, "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1");
}

/// The non-interleaved schedule of the Megatron-LM paper's Figure 4, counted from 0.
#[test]
fn one_forward_one_backward_is_as_published() {
    check(
        &OneForwardOneBackward,
        4,
        8,
        "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0F6 0B3 0F7 0B4 0B5 0B6 0B7\n\
         1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1F5 1B3 1F6 1B4 1F7 1B5 1B6 1B7\n\
         2F0 2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2F5 2B4 2F6 2B5 2F7 2B6 2B7\n\
         3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7",
    );
}

#[test]
fn one_forward_one_backward_with_few_micro_batches() {
    check(&OneForwardOneBackward, 1, 2, "0F0 0B0 0F1 0B1");
    check(&OneForwardOneBackward, 3, 1, "0F0 0B0\n1F0 1B0\n2F0 2B0");
    check(
        &OneForwardOneBackward,
        4,
        2,
        "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1\n2F0 2F1 2B0 2B1\n3F0 3B0 3F1 3B1",
    );
}

/// The rows of a schedule on a grid of clock cycles, as in the documentation.
fn picture(schedule: &Schedule) -> Vec<String> {
    let timeline = schedule.timeline(SECOND, SECOND);
    let cycles = timeline.length().as_secs();
    let row = |spans: &Vec<stovepipe_schedule::Span>| {
        let cell = |cycle| {
            let span = spans.iter().find(|span| span.start.as_secs() == cycle);
            span.and_then(|span| span.action)
                .map_or(" ·".to_owned(), cell_text)
        };
        (0..cycles).map(cell).collect::<Vec<_>>().join(" ")
    };
    timeline.workers.iter().map(row).collect()
}

fn cell_text(action: Action) -> String {
    let letter = if action.pass == Pass::Forward {
        'F'
    } else {
        'B'
    };
    format!("{letter}{}", action.micro_batch)
}

#[test]
fn the_pictures_in_the_documentation_are_right() {
    assert_eq!(
        picture(&GPipe.schedule(3, 4).unwrap()),
        [
            "F0 F1 F2 F3  ·  ·  ·  · B0 B1 B2 B3",
            " · F0 F1 F2 F3  ·  · B0 B1 B2 B3  ·",
            " ·  · F0 F1 F2 F3 B0 B1 B2 B3  ·  ·",
        ]
    );
    assert_eq!(
        picture(&OneForwardOneBackward.schedule(3, 4).unwrap()),
        [
            "F0 F1 F2  ·  · B0 F3 B1  · B2  · B3",
            " · F0 F1  · B0 F2 B1 F3 B2  · B3  ·",
            " ·  · F0 B0 F1 B1 F2 B2 F3 B3  ·  ·",
        ]
    );
}

#[test]
fn zero_is_an_error() {
    for scheduler in [&GPipe as &dyn Scheduler, &OneForwardOneBackward] {
        assert_eq!(scheduler.schedule(0, 4), Err(ScheduleError::NoStages));
        assert_eq!(scheduler.schedule(4, 0), Err(ScheduleError::NoMicroBatches));
    }
}

#[test]
fn names() {
    assert_eq!(
        [GPipe.name(), OneForwardOneBackward.name()],
        ["GPipe", "1F1B"]
    );
}

#[test]
fn large_schedules_are_checked_quickly() {
    for scheduler in [&GPipe as &dyn Scheduler, &OneForwardOneBackward] {
        let schedule = scheduler.schedule(64, 1024).unwrap();
        assert_eq!(schedule.workers().iter().flatten().count(), 64 * 1024 * 2);
    }
}

/// Equal stages leave a worker idle for `p − 1` of `m + p − 1` turns.
fn bubble(stages: usize, micro_batches: usize) -> f64 {
    (stages - 1) as f64 / (micro_batches + stages - 1) as f64
}

proptest! {
    #[test]
    fn closed_forms_hold(stages in 1..=12_usize, micro_batches in 1..=24_usize) {
        let gpipe = GPipe.schedule(stages, micro_batches).unwrap();
        prop_assert_eq!(gpipe.peak_in_flight(), vec![micro_batches; stages]);

        let alternating = OneForwardOneBackward.schedule(stages, micro_batches).unwrap();
        let peaks: Vec<_> = (0..stages).map(|stage| micro_batches.min(stages - stage)).collect();
        prop_assert_eq!(alternating.peak_in_flight(), peaks);

        for schedule in [gpipe, alternating] {
            prop_assert_eq!((schedule.stages(), schedule.micro_batches()), (stages, micro_batches));
            prop_assert!(schedule.is_training());
            let timeline = schedule.timeline(SECOND, 2 * SECOND);
            prop_assert_eq!(timeline.length().as_secs() as usize, 3 * (micro_batches + stages - 1));
            prop_assert!((timeline.bubble() - bubble(stages, micro_batches)).abs() < 1e-12);
        }
    }

    #[test]
    fn inference_has_the_same_bubble(stages in 1..=12_usize, micro_batches in 1..=24_usize) {
        let timeline = Schedule::inference(stages, micro_batches).unwrap().timeline(SECOND, SECOND);
        prop_assert!((timeline.bubble() - bubble(stages, micro_batches)).abs() < 1e-12);
    }

    #[test]
    fn every_schedule_survives_its_text(stages in 1..=12_usize, micro_batches in 1..=24_usize) {
        for scheduler in [&GPipe as &dyn Scheduler, &OneForwardOneBackward] {
            let schedule = scheduler.schedule(stages, micro_batches).unwrap();
            prop_assert_eq!(schedule.to_string().parse(), Ok(schedule));
        }
    }

    #[test]
    fn a_dropped_or_doubled_action_is_noticed(at in 0..48_usize, double: bool) {
        let schedule = OneForwardOneBackward.schedule(4, 6).unwrap();
        let mut workers = schedule.workers().to_vec();
        let actions = &mut workers[at / 12];
        let action = actions.remove(at % 12);
        if double {
            actions.splice(at % 12..at % 12, [action, action]);
        }
        prop_assert!(Schedule::new(workers).is_err());
    }
}
