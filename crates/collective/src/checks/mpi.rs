//! Groups whose sums are a transport's.

use std::{sync::Arc, time::Duration};

use shuttle::{sync::Mutex, thread};
use stovepipe_comm::{
    Communicator,
    transport::{GroupId, Numbers, Packet, Port, TakeSums, Transport},
};

use super::{Count, Fault, Seen, check, errors, in_many_orders};
use crate::{AllReduce, CollectiveError, Group, Reduction};

/// Calls of each rank: by the transport, and between them in the ring.
const CALLS: usize = 5;

/// What a rank has asked for.
type Asked = (Vec<f32>, TakeSums);

/// Ranks that add up when the last one asks for it.
struct Adds {
    rank: usize,
    ports: Arc<Vec<Port>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Transport for Adds {
    fn send(&self, to: usize, packet: Packet) {
        self.ports[to].deliver(self.rank, packet);
    }

    fn can_all_reduce(&self) -> bool {
        true
    }

    fn all_reduce(&self, _: GroupId, numbers: Numbers, take: TakeSums) {
        let Numbers::F32(numbers) = numbers else {
            panic!("they are f32");
        };
        let mut asked = self.asked.lock().unwrap();
        asked.push((numbers, take));
        if asked.len() == self.ports.len() {
            let all: Vec<_> = asked.drain(..).collect();
            drop(asked);
            let sum = |index: usize| all.iter().map(|(own, _)| own[index]).sum::<f32>();
            let sums: Vec<_> = (0..all[0].0.len()).map(sum).collect();
            for (_, take) in all {
                take(Numbers::F32(sums.clone()));
            }
        }
    }
}

fn groups(size: usize, limit: Option<Duration>) -> Vec<(Group, Arc<Communicator>)> {
    let hosts = vec!["localhost".to_owned(); size];
    let ports = (0..size).map(|rank| Port::new(rank, hosts.clone(), limit));
    let ports: Arc<Vec<_>> = Arc::new(ports.collect());
    let asked = Arc::default();
    let all: Vec<_> = (0..size).collect();
    let group = |rank: usize| {
        let transport = Adds {
            rank,
            ports: ports.clone(),
            asked: Arc::clone(&asked),
        };
        let comm = Communicator::new(ports[rank].clone(), Box::new(transport));
        let comm = Arc::new(comm);
        let mut group = Group::new(comm.clone(), 1, &all).unwrap();
        group.set_all_reduce(AllReduce::Mpi).unwrap();
        (group, comm)
    };
    (0..size).map(group).collect()
}

/// Makes a call, and checks what it gives.
fn call(group: &mut Group, index: usize, bucket: u64) -> Result<(), CollectiveError> {
    let size = group.size();
    let own = |rank: usize| (rank + index) as f32;
    let mut tensor = [own(group.rank()); 3];
    let expected = if index.is_multiple_of(2) {
        group.all_reduce(bucket, &mut [&mut tensor], Reduction::Sum)?;
        (0..size).map(own).sum()
    } else {
        group.broadcast(bucket, &mut [&mut tensor], 1 % size)?;
        own(1 % size)
    };
    assert_eq!(tensor, [expected; 3]);
    Ok(())
}

fn run(size: usize, limit: Option<Duration>, fault: Option<(usize, usize, Fault)>) -> Vec<Seen> {
    let ranks = groups(size, limit).into_iter().map(|(group, comm)| {
        let fault = fault.filter(|(rank, ..)| *rank == comm.rank());
        thread::spawn(move || run_rank(group, comm, fault))
    });
    let ranks: Vec<_> = ranks.collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

fn run_rank(
    mut group: Group,
    comm: Arc<Communicator>,
    fault: Option<(usize, usize, Fault)>,
) -> Seen {
    let mut seen = Seen::new();
    for index in 0..CALLS {
        let mut bucket = index as u64;
        match fault.filter(|(_, at, _)| *at == index) {
            Some((_, _, Fault::Leave | Fault::Panic)) => return seen,
            Some((_, _, Fault::Abort)) => comm.abort("on purpose"),
            Some((_, _, Fault::Differ)) => bucket += 100,
            None => {}
        }
        seen.push(call(&mut group, index, bucket));
    }
    seen
}

#[test]
fn sums_are_right_in_every_order() {
    for size in 2..5 {
        in_many_orders(200, move || {
            let ranks = run(size, None, None);
            assert_eq!(errors(&ranks).next(), None);
        });
    }
}

#[test]
fn a_rank_can_fail_at_any_point() {
    for (faulty, at) in (0..3).flat_map(|rank| (0..CALLS).map(move |at| (rank, at))) {
        for fault in [Fault::Leave, Fault::Abort, Fault::Differ] {
            in_many_orders(25, move || {
                let ranks = run(3, None, Some((faulty, at, fault)));
                ranks.iter().for_each(check);
                let mut others = (0..3).filter(|rank| *rank != faulty);
                // All calls but the last one need all ranks.
                assert!(others.all(|rank| ranks[rank].last().is_some_and(Result::is_err)));
                if !matches!(fault, Fault::Differ) {
                    let name = format!("rank {faulty} on");
                    assert!(errors(&ranks).all(|error| error.to_string().contains(&name)));
                }
            });
        }
    }
}

/// None adds up without the rank that takes no part. One that still waits for sums of the call before cannot
/// be cancelled: then the job ends everywhere. Otherwise the next run is right.
#[test]
fn nothing_is_left_of_a_cancelled_run() {
    let (cancelled, aborted) = (Count::default(), Count::default());
    for (faulty, at) in (0..3).flat_map(|rank| (0..CALLS).map(move |at| (rank, at))) {
        let (cancelled, aborted) = (cancelled.clone(), aborted.clone());
        in_many_orders(50, move || {
            let ranks = groups(3, None);
            let cancel = ranks.iter().map(|(group, _)| group.cancel_handle());
            let cancel: Vec<_> = cancel.collect();
            let ranks = ranks.into_iter().map(|(mut group, comm)| {
                let (cancel, cancelled) = (cancel.clone(), cancelled.clone());
                let aborted = aborted.clone();
                thread::spawn(move || {
                    group.begin(0);
                    let calls = if comm.rank() == faulty { at } else { CALLS };
                    let mut calls = 0..calls;
                    let ended = calls.try_for_each(|index| call(&mut group, index, index as u64));
                    match ended {
                        Ok(()) => {}
                        Err(CollectiveError::Cancelled) => cancelled.add(),
                        Err(CollectiveError::CancelledInMpi) => aborted.add(),
                        Err(error) => {
                            assert!(error.to_string().contains("cannot be cancelled"), "{error}");
                        }
                    }
                    if comm.rank() == faulty {
                        cancel.iter().for_each(|rank| rank.cancel(0));
                    }
                    if let Err(error) = comm.all_gather(Vec::new()) {
                        assert!(error.to_string().contains("cannot be cancelled"), "{error}");
                        return;
                    }
                    group.begin(1);
                    for index in 0..CALLS {
                        assert_eq!(call(&mut group, index, index as u64), Ok(()));
                    }
                })
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().for_each(|rank| rank.join().unwrap());
        });
    }
    assert!(cancelled.get() > 0 && aborted.get() > 0);
}

/// The limit may end at any moment, while ranks agree: then the job ends everywhere.
#[test]
fn a_call_that_takes_too_long_ends_the_job_everywhere() {
    in_many_orders(300, move || {
        let ranks = run(3, Some(Duration::from_secs(1)), None);
        ranks.iter().for_each(check);
    });
}
