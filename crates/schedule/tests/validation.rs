//! Every rule of a schedule, broken by hand.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use stovepipe_schedule::{Action, Schedule, ScheduleError, Waiting};

fn check(text: &str, expected: ScheduleError) {
    assert_eq!(text.parse::<Schedule>(), Err(expected), "{text}");
}

fn action(text: &str) -> Action {
    text.parse().unwrap()
}

#[test]
fn every_worker_has_something_to_do() {
    check("", ScheduleError::NoWorkers);
    check("0F0\n\n1F0", ScheduleError::IdleWorker { worker: 1 });
    assert_eq!(Schedule::new(vec![]), Err(ScheduleError::NoWorkers));
}

#[test]
fn stages_are_numbered_without_a_gap() {
    check("1F0", ScheduleError::MissingStage { stage: 0 });
    check("0F0\n2F0", ScheduleError::MissingStage { stage: 1 });
    let enormous = Action::forward(usize::MAX, 0);
    let missing = Err(ScheduleError::MissingStage { stage: 0 });
    assert_eq!(Schedule::new(vec![vec![enormous]]), missing);
}

#[test]
fn a_stage_has_one_worker() {
    check(
        "0F0 1F0\n1F1 0F1",
        ScheduleError::SharedStage {
            worker: 1,
            action: action("1F1"),
            owner: 0,
        },
    );
}

#[test]
fn nothing_is_listed_twice() {
    let repeated = |worker, text| ScheduleError::Repeated {
        worker,
        action: action(text),
    };
    check("0F0 0F0", repeated(0, "0F0"));
    check("0F0 0B0\n1F0 1B0 1B0", repeated(1, "1B0"));
}

#[test]
fn nothing_is_missing() {
    let missing = |worker, text| ScheduleError::Missing {
        worker,
        action: action(text),
    };
    check("0F0 0F2", missing(0, "0F1"));
    check("0F0 0F1\n1F0", missing(1, "1F1"));
    check("0F0 0F1 0B0", missing(0, "0B1"));
    check("0F0 0B0\n1F0", missing(1, "1B0"));
    check("0B0", missing(0, "0F0"));
    let enormous = Action::forward(0, usize::MAX);
    assert_eq!(Schedule::new(vec![vec![enormous]]), Err(missing(0, "0F0")));
}

#[test]
fn micro_batches_ascend() {
    let out_of_order = |worker, found, expected| ScheduleError::OutOfOrder {
        worker,
        action: action(found),
        expected: action(expected),
    };
    check("0F1 0F0", out_of_order(0, "0F1", "0F0"));
    check("0F0 0F1 0B1 0B0", out_of_order(0, "0B1", "0B0"));
    check("0F0 0F1\n1F1 1F0", out_of_order(1, "1F1", "1F0"));
}

#[test]
fn forward_comes_first() {
    let backward_first = |text| ScheduleError::BackwardFirst {
        worker: 0,
        action: action(text),
    };
    check("0B0 0F0", backward_first("0B0"));
    check("0F0 0B0 0B1 0F1", backward_first("0B1"));
}

fn waiting(worker: usize, at: &str, needs: &str) -> Waiting {
    Waiting {
        worker,
        action: action(at),
        needs: action(needs),
    }
}

#[test]
fn two_workers_that_wait_for_each_other() {
    check(
        "0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1",
        ScheduleError::Deadlock {
            waiting: vec![waiting(0, "0B0", "1B0"), waiting(1, "1F1", "0F1")],
        },
    );
}

#[test]
fn a_worker_that_waits_for_itself() {
    check(
        "1F0 0F0",
        ScheduleError::Deadlock {
            waiting: vec![waiting(0, "1F0", "0F0")],
        },
    );
}

#[test]
fn a_worker_that_finishes_is_not_stuck() {
    check(
        "0F0\n2F0 1F0",
        ScheduleError::Deadlock {
            waiting: vec![waiting(1, "2F0", "1F0")],
        },
    );
}

#[test]
fn words_are_actions() {
    let parse_error = "0X0".parse::<Action>().unwrap_err();
    check("0F0 0X0", ScheduleError::Parse(parse_error));
}

#[test]
fn messages_name_worker_action_and_reason() {
    let message = |text: &str| text.parse::<Schedule>().unwrap_err().to_string();
    assert_eq!(
        message("0F0 1F0\n1F1 0F1"),
        "worker 1 has 1F1, but stage 1 belongs to worker 0"
    );
    assert_eq!(
        message("0F1 0F0"),
        "worker 0 has 0F1 where 0F0 is due: micro-batches must ascend"
    );
    assert_eq!(message("0B0 0F0"), "worker 0 has 0B0 before 0F0");
    assert_eq!(
        message("0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1"),
        "deadlock: worker 0 at 0B0 waits for 1B0; worker 1 at 1F1 waits for 0F1"
    );
}
