//! `local`, with real threads.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    sync::mpsc::channel,
    thread,
    time::{Duration, Instant},
};

use stovepipe_comm::{CommError, Communicator, Peer, local, local_throttled};

mod conformance;

fn ranks<const SIZE: usize>(limit: Option<Duration>) -> [Communicator; SIZE] {
    local(SIZE, limit).unwrap().try_into().ok().unwrap()
}

#[test]
fn ranks_in_threads_conform() {
    for size in [1, 2, 4] {
        thread::scope(|scope| {
            for comm in local(size, None).unwrap() {
                scope.spawn(move || conformance::run(&comm));
            }
        });
    }
}

#[test]
fn throttled_ranks_conform() {
    thread::scope(|scope| {
        for comm in local_throttled(2, 1 << 30, None).unwrap() {
            scope.spawn(move || conformance::run(&comm));
        }
    });
}

/// Each message waits for those before it on its link, and for no other. The sender waits for none.
#[test]
fn a_link_takes_its_time_alone() {
    let ranks = local_throttled(3, 10_000, None).unwrap();
    let (sender, events) = channel();
    for (rank, comm) in ranks.iter().enumerate() {
        let sender = sender.clone();
        let seen = move |bytes| (rank, bytes, Instant::now());
        comm.set_sink(0, move |message| {
            let bytes = message.unwrap().parts[0].len();
            sender.send(seen(bytes)).unwrap();
        });
    }
    let began = Instant::now();
    for (from, to, bytes) in [
        (0, 1, 10_000),
        (0, 1, 5000),
        (2, 1, 10),
        (0, 2, 20),
        (0, 0, 50_000),
    ] {
        ranks[from].send(to, 0, 0, vec![vec![0; bytes]]).unwrap();
    }
    assert_eq!(ranks[0].bytes_sent(), 15_020);
    let seen: Vec<_> = events.iter().take(5).collect();
    let at = |rank, bytes| {
        let place = seen
            .iter()
            .position(|event| (event.0, event.1) == (rank, bytes));
        place.unwrap()
    };
    // A second before the second message, which arrives 1.5 s after the beginning at the earliest.
    assert_eq!([at(1, 10_000), at(1, 5000)], [3, 4], "{seen:?}");
    assert!(at(1, 10) < 3 && at(2, 20) < 3 && at(0, 50_000) < 3);
    assert!(seen[3].2 - began >= Duration::from_millis(1000));
    assert!(seen[4].2 - began >= Duration::from_millis(1500));
}

#[test]
fn what_a_throttled_rank_sent_arrives_before_it_leaves() {
    let [zero, one]: [Communicator; 2] = local_throttled(2, 10_000, None)
        .unwrap()
        .try_into()
        .ok()
        .unwrap();
    let (sender, events) = channel();
    one.set_sink(0, move |event| drop(sender.send(event)));
    zero.send(1, 0, 7, vec![vec![0; 500]]).unwrap();
    drop(zero);
    assert_eq!(events.recv().unwrap().unwrap().tag, 7);
    assert!(matches!(events.recv().unwrap(), Err(CommError::Gone(_))));
}

#[test]
fn a_rank_that_does_not_answer_is_named() {
    let limit = Duration::from_secs(5);
    let [zero, one, two] = ranks(Some(limit));
    let error = thread::scope(|scope| {
        let _waits = scope.spawn(|| one.all_gather(Vec::new()));
        zero.all_gather(Vec::new()).unwrap_err()
    });
    let text = "rank 2 on localhost did not answer within 5s";
    assert!(error.to_string().ends_with(text), "{error}");
    // All get to know it.
    let (sender, events) = channel();
    two.set_sink(0, move |event| drop(sender.send(event)));
    assert!(events.recv().unwrap().is_err());
    assert!(
        two.all_gather(Vec::new())
            .unwrap_err()
            .to_string()
            .ends_with(text)
    );
    assert!(
        two.send(0, 0, 0, Vec::new())
            .unwrap_err()
            .to_string()
            .ends_with(text)
    );
}

#[test]
fn a_failure_reaches_the_sink() {
    let [zero, one] = ranks(None);
    let (sender, events) = channel();
    zero.set_sink(0, move |event| drop(sender.send(event)));
    one.abort("on purpose");
    let (rank, host) = (1, "localhost".to_owned());
    let aborted = CommError::Aborted {
        peer: Peer { rank, host },
        reason: "on purpose".to_owned(),
    };
    assert_eq!(events.recv().unwrap(), Err(aborted.clone()));
    assert_eq!(zero.all_gather(Vec::new()), Err(aborted));
}

#[test]
fn a_rank_that_does_not_exist_is_an_error_that_harms_nothing() {
    let [zero] = ranks(None);
    let error = zero.send(1, 0, 0, Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "there is no rank 1: the job has 1");
    assert_eq!(
        (zero.host(0), zero.host(1)),
        (Some("localhost".into()), None)
    );
    assert_eq!(zero.all_gather(vec![3]), Ok(vec![vec![3]]));
}
