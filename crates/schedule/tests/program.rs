//! Schedules with their communication.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::schedulers;
use proptest::prelude::*;
use stovepipe_schedule::{Content, Message, Program, RoundRobin, Scheduler, Step, Wiring};

/// Letters of which words are made, and some that have no business there.
fn letters() -> impl Strategy<Value = char> {
    proptest::sample::select("0123FBIWSENDRCVID_<>\n ,é".chars().collect::<Vec<_>>())
}

proptest! {
    /// Whatever the schedule and the wiring: nothing waits for ever, nothing is absent, and the schedule
    /// is still the same.
    #[test]
    fn communication_fits_every_schedule(
        stages in 1..8_usize,
        micro_batches in 1..9_usize,
        skips in proptest::collection::vec((0..8_usize, 0..8_usize), 0..5),
        side in proptest::collection::vec(0..8_usize, 0..3),
    ) {
        let mut wiring = Wiring {
            skips: skips.into_iter().filter(|&(from, to)| from < to && to < stages).collect(),
            side: side.into_iter().filter(|&stage| stage < stages).collect(),
        };
        wiring.skips.sort_unstable();
        wiring.skips.dedup();
        for scheduler in schedulers() {
            let schedule = scheduler.schedule(stages, micro_batches).unwrap();
            let program = Program::new(&schedule, &wiring).unwrap();
            prop_assert_eq!(program.check(&wiring), Ok(()), "{:?}", scheduler);
            prop_assert_eq!(program.schedule().unwrap(), schedule);
            prop_assert_eq!(program.to_string().parse::<Program>(), Ok(program));
        }
    }

    #[test]
    fn communication_fits_replicas(
        replicas in proptest::collection::vec(1..4_usize, 1..4), micro_batches in 1..9_usize,
    ) {
        let scheduler = RoundRobin::new(replicas.clone());
        let schedule = scheduler.schedule(replicas.len(), micro_batches).unwrap();
        let program = Program::new(&schedule, &Wiring::default()).unwrap();
        prop_assert_eq!(program.check(&Wiring::default()), Ok(()));
    }

    #[test]
    fn any_text_is_a_program_or_an_error(text in proptest::collection::vec(letters(), 0..40)) {
        let text: String = text.into_iter().collect();
        if let Ok(program) = text.parse::<Program>() {
            let _ = program.check(&Wiring::default());
        }
    }
}

fn check(text: &str, wiring: &Wiring, expected: &str) {
    let program: Program = text.parse().unwrap();
    assert_eq!(
        program.check(wiring).unwrap_err().to_string(),
        expected,
        "{text}"
    );
}

#[test]
fn what_is_absent_is_named() {
    let plain = Wiring::default();
    check(
        "0F0 0SEND_F0\n1F0 1RECV_F0",
        &plain,
        "worker 1 has 1F0 before 1RECV_F0",
    );
    check(
        "0F0\n1RECV_F0 1F0",
        &plain,
        "deadlock: worker 1 waits for 0SEND_F0",
    );
    check(
        "0F0 0SEND_F0\n1RECV_F0 1F0 1SEND_F0",
        &plain,
        "worker 1 has 1SEND_F0, but has nothing of the kind to send",
    );
    check(
        "0SEND_F0 0F0\n1RECV_F0 1F0",
        &plain,
        "worker 0 has 0SEND_F0, but has nothing of the kind to send",
    );
    let side = Wiring {
        side: vec![1],
        ..Wiring::default()
    };
    check(
        "0F0 0SEND_F0\n1RECV_F0 1F0",
        &side,
        "worker 1 has 1F0 before 1RECV_SIDE0",
    );
    let skip = Wiring {
        skips: vec![(0, 2)],
        ..Wiring::default()
    };
    check(
        "0F0 0SEND_F0\n1RECV_F0 1F0 1SEND_F0\n2RECV_F0 2F0",
        &skip,
        "worker 2 has 2F0 before 2RECV_F0<0",
    );
    check(
        "0F0 0SEND_F0 0SEND_F0>2 0RECV_B0 0B0\n1RECV_F0 1F0 1SEND_F0 1RECV_B0 1B0 1SEND_B0\n\
         2RECV_F0<0 2RECV_F0 2F0 2B0 2SEND_B0",
        &skip,
        "worker 0 has 0B0 before 0RECV_B0<2",
    );
}

#[test]
fn skips_lead_forward() {
    for (skip, expected) in [
        (
            (1, 1),
            "a skip from stage 1 to 1 does not lead to a later one of 2 stages",
        ),
        (
            (1, 0),
            "a skip from stage 1 to 0 does not lead to a later one of 2 stages",
        ),
        (
            (0, 2),
            "a skip from stage 0 to 2 does not lead to a later one of 2 stages",
        ),
    ] {
        let wiring = Wiring {
            skips: vec![skip],
            side: vec![],
        };
        check("0F0 0SEND_F0\n1RECV_F0 1F0", &wiring, expected);
    }
    let wiring = Wiring {
        skips: vec![],
        side: vec![2],
    };
    check(
        "0F0\n1F0",
        &wiring,
        "there is a side input for stage 2, but there are 2 stages",
    );
}

#[test]
fn orders_that_only_buffers_would_save_are_found() {
    // Receipts in another order than sends.
    check(
        "0F0 0SEND_F0 0F1 0SEND_F1\n1RECV_F1 1RECV_F0 1F0 1F1",
        &Wiring::default(),
        "deadlock: worker 0 waits for 1RECV_F0; worker 1 waits for 0SEND_F1",
    );
}

#[test]
fn words_are_read_or_refused() {
    let message = |content, from, to| Message {
        content,
        from,
        to,
        micro_batch: 3,
    };
    for (word, step) in [
        ("2SEND_F3", Step::Send(message(Content::Value, 2, 3))),
        ("2RECV_F3", Step::Receive(message(Content::Value, 1, 2))),
        ("2SEND_B3", Step::Send(message(Content::Gradient, 2, 1))),
        ("2RECV_B3", Step::Receive(message(Content::Gradient, 3, 2))),
        ("2SEND_F3>9", Step::Send(message(Content::Skip, 2, 9))),
        ("9RECV_F3<2", Step::Receive(message(Content::Skip, 2, 9))),
        (
            "9SEND_B3>2",
            Step::Send(message(Content::SkipGradient, 9, 2)),
        ),
        ("2RECV_SIDE3", Step::Receive(message(Content::Side, 2, 2))),
    ] {
        assert_eq!(word.parse(), Ok(step), "{word}");
        assert_eq!(step.to_string(), word);
    }
    for bad in [
        "SEND_F3",
        "2SEND_F",
        "2SEND_W3",
        "0RECV_F3",
        "0SEND_B3",
        "2SEND_SIDE3",
        "2SEND_F3<1",
        "2_F3",
        "2SEND_F+3",
        "_",
    ] {
        assert!(bad.parse::<Step>().is_err(), "{bad}");
    }
}
