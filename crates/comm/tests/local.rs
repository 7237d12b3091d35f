//! `local`, with real threads.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{sync::mpsc::channel, thread, time::Duration};

use stovepipe_comm::{CommError, Communicator, Peer, local};

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
fn a_rank_that_does_not_answer_is_named() {
    let limit = Duration::from_secs(1);
    let [zero, one, two] = ranks(Some(limit));
    let error = thread::scope(|scope| {
        let _waits = scope.spawn(|| one.all_gather(Vec::new()));
        zero.all_gather(Vec::new()).unwrap_err()
    });
    let text = "rank 2 on localhost did not answer within 1s";
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
