//! What the ranks of the jobs do.

use std::{
    env, process,
    sync::{Arc, mpsc::channel},
    thread,
    time::{Duration, Instant},
};

use stovepipe_collective::{AllReduce, CollectiveError, Group, Reduction};
use stovepipe_comm::{CommError, Communicator};

use super::{job::PROGRAM, sums};
use crate::{collective_conformance, conformance};

/// How long a rank may keep others waiting, in the tests of faults.
const LIMIT: Duration = Duration::from_secs(5);

/// Not a test: what `Job` starts.
#[test]
fn rank() {
    let Ok(program) = env::var(PROGRAM) else {
        return;
    };
    let limit = (!program.contains("conform")).then_some(LIMIT);
    let comm = stovepipe_comm_mpi::init(limit).unwrap();
    assert!(comm.host(0).is_some_and(|host| !host.is_empty()));
    println!("\nprocess {} {}", comm.rank(), process::id());
    match (program.as_str(), comm.rank()) {
        ("conforms", _) => conformance::run(&comm),
        ("groups conform", _) => collective_conformance::run(&Arc::new(comm)),
        ("groups conform by MPI", _) => sums::run(&Arc::new(comm)),
        ("reduces by MPI", _) => fail(sums::reduce(comm)),
        ("leaves before MPI", 1) => {
            let _ = comm.make_group(&(0..comm.size()).collect::<Vec<_>>());
        }
        ("leaves before MPI", _) => fail(sums::reduce(comm)),
        ("reduces something else by MPI", _) => {
            fail(sums::differ(comm, |group| {
                let tensors: &mut [&mut [f32]] = &mut [&mut [1.0; 10], &mut [1.0; 5]];
                group.all_reduce(3, tensors, Reduction::Sum)
            }));
        }
        ("reduces another type by MPI", _) => {
            fail(sums::differ(comm, |group| {
                let tensors: &mut [&mut [f64]] = &mut [&mut [1.0; 10], &mut [1.0; 4]];
                group.all_reduce(3, tensors, Reduction::Sum)
            }));
        }
        ("reduces in the ring beside MPI", _) => {
            fail(sums::differ(comm, |group| {
                group.set_all_reduce(AllReduce::Ring)?;
                let tensors: &mut [&mut [f32]] = &mut [&mut [1.0; 10], &mut [1.0; 4]];
                group.all_reduce(3, tensors, Reduction::Sum)
            }));
        }
        ("is cancelled in MPI", 0) => fail(sums::cancel(comm)),
        ("is cancelled in MPI", _) => {
            // Says that it does the same as the other one.
            let _ = comm.make_group(&[0, 1]);
            let (sender, headers) = channel();
            comm.set_sink(1, move |header| drop(sender.send(header)));
            let header = headers.recv().unwrap().unwrap();
            comm.send(0, 1, header.tag, header.parts).unwrap();
            wait_for_failure(comm);
        }
        ("reduces", _) => end_group(comm, |group| reduce(group, usize::MAX)),
        ("leaves between the halves", 1) => {
            let mut group = group(Arc::new(comm));
            let _ = group.reduce_scatter(0, &mut [&mut [0.0_f32; 1000]], Reduction::Sum);
        }
        ("leaves between the halves", _) => end_group(comm, |group| {
            let mut tensor = [0.0_f32; 1000];
            let scattered = group.reduce_scatter(0, &mut [&mut tensor], Reduction::Sum);
            let gathered = scattered.and_then(|()| group.all_gather(0, &mut [&mut tensor]));
            gathered.unwrap_err()
        }),
        ("reduces something else", 1) => end_group(comm, |group| reduce(group, 3)),
        ("reduces something else", _) => end_group(comm, |group| reduce(group, 4)),
        ("leaves at the end", 0) => thread::sleep(Duration::from_secs(1)),
        ("leaves at the end", _) => {}
        ("talks", _) => end(comm, talk),
        ("gathers", _) => end(comm, gather),
        ("waits for all that live", 0) => end(comm, |comm| {
            // Longer than the limit.
            thread::sleep(2 * LIMIT);
            gather_without_limit(comm)
        }),
        ("waits for all that live", _) => end(comm, gather_without_limit),
        ("sends", 0) => send_to_one(comm),
        ("aborts", 1) => comm.abort("the disk is full"),
        ("panics", 1) => panic!("on purpose"),
        ("exits", 1) => process::exit(0),
        ("leaves", 1) => {}
        ("leaves and is waited for", 1) => thread::sleep(Duration::from_secs(600)),
        ("leaves and is waited for", _) => {}
        ("hangs after a failure", 0) => {
            let error = gather(&comm);
            println!("\n{error}");
            thread::sleep(Duration::from_secs(600));
        }
        ("hangs after a failure", _) => {
            let (sender, events) = channel();
            comm.set_sink(0, move |event| drop(sender.send(event)));
            if comm.rank() == 1 {
                thread::sleep(Duration::from_secs(600)); // one that never answers
            }
            let _ = comm.all_gather(Vec::new());
            println!("\ntold: {:?}", events.recv());
        }
        _ => wait_for_failure(comm),
    }
}

/// Says the error of a rank, drops its communicator, and fails as a program would.
fn end(comm: Communicator, run: impl FnOnce(&Communicator) -> CommError) {
    let error = run(&comm);
    println!("\nrank {} failed: {error}", comm.rank());
    drop(comm);
    process::exit(1);
}

fn group(comm: Arc<Communicator>) -> Group {
    let all: Vec<_> = (0..comm.size()).collect();
    Group::new(comm, 1, &all).unwrap()
}

/// As `end`, for a group of all ranks.
fn end_group(comm: Communicator, run: impl FnOnce(&mut Group) -> CollectiveError) {
    let mut group = group(Arc::new(comm));
    let error = run(&mut group);
    fail((group, error));
}

/// Says the error of a group, drops it, and fails as a program would.
fn fail((group, error): (Group, CollectiveError)) {
    println!("\nrank {} failed: {error}", group.rank());
    drop(group);
    process::exit(1);
}

/// Reduces buckets of several pieces, and of other lengths from some bucket on.
fn reduce(group: &mut Group, different: usize) -> CollectiveError {
    for number in 0.. {
        let length = [1 << 20, 100, 300_000][number % 3] + usize::from(number >= different);
        let mut tensor = vec![1.0_f32; length];
        let reduced = group.all_reduce(number as u64, &mut [&mut tensor], Reduction::Sum);
        if let Err(error) = reduced {
            return error;
        }
        assert!(tensor.iter().all(|number| *number == group.size() as f32));
    }
    unreachable!()
}

/// Sends to all and gathers, without an end.
fn talk(comm: &Communicator) -> CommError {
    comm.set_sink(0, |_| {});
    for tag in 0.. {
        let length = 1 << (tag % 22);
        let sent = (0..comm.size()).try_for_each(|to| comm.send(to, 0, tag, vec![vec![0; length]]));
        if let Err(error) = sent.and_then(|()| comm.all_gather(vec![1; 100]).map(|_| ())) {
            return error;
        }
    }
    unreachable!()
}

fn gather(comm: &Communicator) -> CommError {
    loop {
        if let Err(error) = comm.all_gather(vec![1; 100]) {
            return error;
        }
    }
}

fn gather_without_limit(comm: &Communicator) -> CommError {
    let first = comm.all_gather_within(Vec::new(), None);
    if let Err(error) = first {
        return error;
    }
    println!("\nrank {} met all", comm.rank());
    loop {
        if let Err(error) = comm.all_to_all(vec![Vec::new(); comm.size()]) {
            return error;
        }
    }
}

fn wait_for_failure(comm: Communicator) {
    end(comm, |comm| {
        let (sender, failures) = channel();
        comm.set_sink(0, move |event| {
            if let Err(error) = event {
                let _ = sender.send(error);
            }
        });
        failures.recv().unwrap()
    });
}

/// Sends more to rank 1 than fits anywhere, without an end.
fn send_to_one(comm: Communicator) {
    end(comm, |comm| {
        let began = Instant::now();
        loop {
            if let Err(error) = comm.send(1, 0, 0, vec![vec![0; 1 << 20]]) {
                return error;
            }
            // As a worker would: not all at once.
            thread::sleep(Duration::from_millis(5));
            assert!(began.elapsed() < Duration::from_secs(100));
        }
    });
}
