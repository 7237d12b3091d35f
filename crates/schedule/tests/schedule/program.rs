//! Schedules with their communication.

use crate::common::{rows, schedulers};
use proptest::prelude::*;
use stovepipe_schedule::{Content, Instruction, Message, Program, RoundRobin, Scheduler, Wiring};

/// Letters of words, and some others.
fn letters() -> impl Strategy<Value = char> {
    proptest::sample::select("0123FBIWSENDRCVID_<>\n ,é".chars().collect::<Vec<_>>())
}

/// Worker 0 cannot send micro-batch 2 before worker 1 has come to the update, which waits for its own send.
#[test]
fn replicas_wait_for_each_other_at_updates() {
    let replicas = "0F0 0SEND_F0 0RECV_B0 0B0 0U1 0F2 0SEND_F2 0RECV_B2 0B2 0U3\n\
                    0F1 0SEND_F1 0RECV_B1 0B1 0U1 0F3 0SEND_F3 0RECV_B3 0B3 0U3";
    let check = |received: &str| {
        let last = format!(
            "1RECV_F0 1F0 1B0 1SEND_B0 {received} 1F1 1B1 1SEND_B1 1U1 1F2 1B2 1SEND_B2 \
             1RECV_F3 1F3 1B3 1SEND_B3 1U3"
        );
        let last = match received.contains("F2") {
            true => last,
            false => last.replace("1F2", "1RECV_F2 1F2"),
        };
        let program: Program = format!("{replicas}\n{last}").parse().unwrap();
        program
            .check(&Wiring::default())
            .map_err(|error| error.to_string())
    };
    assert_eq!(check("1RECV_F1"), Ok(()));
    let expected = "deadlock: worker 0 is stuck at 0U1; worker 1 waits for 1RECV_F1; \
                    worker 2 waits for 0SEND_F2";
    assert_eq!(check("1RECV_F2 1RECV_F1"), Err(expected.to_owned()));
}

proptest! {
    /// For all schedules and wirings: no deadlock, no input is absent, and the schedule is the same.
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

fn check(wiring: &Wiring, table: &str) {
    for (text, expected) in rows(table) {
        let error = text.parse::<Program>().unwrap().check(wiring);
        assert_eq!(error.unwrap_err().to_string(), expected, "{text}");
    }
}

fn wiring(skips: &[(usize, usize)], side: &[usize]) -> Wiring {
    let (skips, side) = (skips.to_vec(), side.to_vec());
    Wiring { skips, side }
}

/// The last of the first table receives in another order than it sends: only buffers would prevent the
/// deadlock.
#[test]
fn absent_messages_are_named() {
    let nothing = "but does not have this message to send";
    check(
        &Wiring::default(),
        &format!(
            "0F0 0SEND_F0 / 1F0 1RECV_F0 => worker 1 has 1F0 before 1RECV_F0
             0F0 / 1RECV_F0 1F0 => deadlock: worker 1 waits for 0SEND_F0
             0F0 0SEND_F0 / 1RECV_F0 1F0 1SEND_F0 => worker 1 has 1SEND_F0, {nothing}
             0SEND_F0 0F0 / 1RECV_F0 1F0 => worker 0 has 0SEND_F0, {nothing}
             0F0 0SEND_F0 0F1 0SEND_F1 / 1RECV_F1 1RECV_F0 1F0 1F1 => \
             deadlock: worker 0 waits for 1RECV_F0; worker 1 waits for 0SEND_F1"
        ),
    );
    let side = "0F0 0SEND_F0 / 1RECV_F0 1F0 => worker 1 has 1F0 before 1RECV_SIDE0";
    check(&wiring(&[], &[1]), side);
    check(
        &wiring(&[(0, 2)], &[]),
        "0F0 0SEND_F0 / 1RECV_F0 1F0 1SEND_F0 / 2RECV_F0 2F0 => worker 2 has 2F0 before 2RECV_F0<0
         0F0 0SEND_F0 0SEND_F0>2 0RECV_B0 0B0 / 1RECV_F0 1F0 1SEND_F0 1RECV_B0 1B0 1SEND_B0 / \
         2RECV_F0<0 2RECV_F0 2F0 2B0 2SEND_B0 => worker 0 has 0B0 before 0RECV_B0<2",
    );
}

#[test]
fn skips_lead_forward() {
    for (from, to) in [(1, 1), (1, 0), (0, 2)] {
        let text = "0F0 0SEND_F0 / 1RECV_F0 1F0";
        let reason = "does not lead to a later one of 2 stages";
        let row = format!("{text} => a skip from stage {from} to {to} {reason}");
        check(&wiring(&[(from, to)], &[]), &row);
    }
    let row = "0F0 / 1F0 => there is a side input for stage 2 of 2 stages";
    check(&wiring(&[], &[2]), row);
}

#[test]
fn words_are_read_or_refused() {
    use Content::{Gradient, Side, Skip, SkipGradient, Value};
    use Instruction::{Receive, Send};
    let message = |content, from, to| Message {
        content,
        from,
        to,
        micro_batch: 3,
    };
    for (word, instruction) in [
        ("2SEND_F3", Send(message(Value, 2, 3))),
        ("2RECV_F3", Receive(message(Value, 1, 2))),
        ("2SEND_B3", Send(message(Gradient, 2, 1))),
        ("2RECV_B3", Receive(message(Gradient, 3, 2))),
        ("2SEND_F3>9", Send(message(Skip, 2, 9))),
        ("9RECV_F3<2", Receive(message(Skip, 2, 9))),
        ("9SEND_B3>2", Send(message(SkipGradient, 9, 2))),
        ("2RECV_SIDE3", Receive(message(Side, 2, 2))),
    ] {
        assert_eq!(word.parse(), Ok(instruction), "{word}");
        assert_eq!(instruction.to_string(), word);
    }
    let bad = "SEND_F3 2SEND_F 2SEND_W3 0RECV_F3 0SEND_B3 2SEND_SIDE3 2SEND_F3<1 2_F3 2SEND_F+3 _";
    for bad in bad.split(' ') {
        assert!(bad.parse::<Instruction>().is_err(), "{bad}");
    }
}
