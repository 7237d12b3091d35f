//! Groups under the model checker, which runs ranks in random orders of their threads.
//!
//! A wait that never ends is found as a deadlock. The seed is fixed, so a check that fails fails again.
#![allow(clippy::unwrap_used)]

mod mpi;

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use shuttle::{
    Config, MaxSteps, Runner,
    scheduler::{PctScheduler, RandomScheduler},
    thread,
};
use stovepipe_comm::{CommError, local};

use crate::{CollectiveError, Group, Reduction, slice};

const SEED: u64 = 7;
/// Of the tensors of the bucket: several pieces a chunk, more than are under way at a time.
const LENGTHS: [usize; 3] = [13, 1, 7];
/// What each rank does.
const PROGRAM: [Step; 4] = [
    Step::AllReduce,
    Step::ReduceScatter,
    Step::AllGather,
    Step::Broadcast,
];

#[derive(Clone, Copy, Debug)]
enum Step {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
}

/// What a rank does instead of a step.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Leave,
    Panic,
    Abort,
    /// It reduces a bucket of another number.
    Differ,
}

/// What the steps of a rank returned.
type Seen = Vec<Result<(), CollectiveError>>;

fn in_many_orders(orders: usize, check: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = 0x4_0000; // panics need space
    config.silence_warnings = true;
    config.max_steps = MaxSteps::FailAfter(100_000);
    let check = Arc::new(check);
    let again = check.clone();
    let random = RandomScheduler::new_from_seed(SEED, orders);
    Runner::new(random, config.clone()).run(move || check());
    let few_changes = PctScheduler::new_from_seed(SEED, 4, orders);
    Runner::new(few_changes, config).run(move || again());
}

/// Runs the program on each rank, in a thread each, with faults by rank and step.
fn run(size: usize, limit: Option<Duration>, faults: &[(usize, usize, Fault)]) -> Vec<Seen> {
    let ranks = local(size, limit).unwrap().into_iter().map(|comm| {
        let own = |&&(rank, ..): &&(usize, usize, Fault)| rank == comm.rank();
        let fault = faults
            .iter()
            .find(own)
            .map(|(_, step, fault)| (*step, *fault));
        let all: Vec<_> = (0..size).collect();
        thread::spawn(move || {
            let comm = Arc::new(comm);
            let group = Group::new(comm.clone(), 1, &all).unwrap();
            run_rank(group, comm, fault)
        })
    });
    let ranks: Vec<_> = ranks.collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

fn run_rank(
    mut group: Group,
    comm: Arc<stovepipe_comm::Communicator>,
    fault: Option<(usize, Fault)>,
) -> Seen {
    let mut seen = Seen::new();
    for (index, step) in PROGRAM.into_iter().enumerate() {
        let mut bucket = index as u64;
        match fault.filter(|(at, _)| *at == index).map(|(_, fault)| fault) {
            Some(Fault::Leave) => return seen,
            Some(Fault::Panic) => {
                let held = AssertUnwindSafe((group, comm));
                let _ = catch_unwind(move || {
                    let _held = held;
                    resume_unwind(Box::new("on purpose"));
                });
                return seen;
            }
            Some(Fault::Abort) => comm.abort("on purpose"),
            Some(Fault::Differ) => bucket += 100,
            None => {}
        }
        seen.push(call(&mut group, step, bucket));
    }
    seen
}

/// Makes a call, and compares what it gives with a plain loop.
fn call(group: &mut Group, step: Step, bucket: u64) -> Result<(), CollectiveError> {
    let (own, size) = (group.rank(), group.size());
    let given = |rank: usize, tensor: usize, index: usize| {
        // Sums of such numbers depend on the order.
        1.0 / (1.0 + rank as f32 + (tensor * 20 + index) as f32 * 3.0)
    };
    let tensor = |tensor: usize| (0..LENGTHS[tensor]).map(move |index| given(own, tensor, index));
    let mut tensors = [0, 1, 2].map(|index| tensor(index).collect::<Vec<_>>());
    let [a, b, c] = &mut tensors;
    let bucket_of = &mut [&mut a[..], b, c];
    match step {
        Step::AllReduce => group.all_reduce(bucket, bucket_of, Reduction::Sum),
        Step::ReduceScatter => group.reduce_scatter(bucket, bucket_of, Reduction::Mean),
        Step::AllGather => group.all_gather(bucket, bucket_of),
        Step::Broadcast => group.broadcast(bucket, bucket_of, 1 % size),
    }?;
    for (tensor, length) in LENGTHS.into_iter().enumerate() {
        for owner in 0..size {
            for index in slice(length, owner, size) {
                let of = |rank| given(rank, tensor, index);
                let ring = (1..=size).map(|passed| of((owner + passed) % size));
                let sum = ring.reduce(|sum, own| sum + own).unwrap();
                let expected = match step {
                    Step::AllReduce => sum,
                    Step::ReduceScatter if owner == own => sum / size as f32,
                    Step::ReduceScatter => of(own),
                    Step::AllGather => of(owner),
                    Step::Broadcast => of(1 % size),
                };
                assert_eq!(tensors[tensor][index].to_bits(), expected.to_bits());
            }
        }
    }
    Ok(())
}

/// After a failure all calls fail.
fn check(seen: &Seen) {
    let failed: Vec<_> = seen.iter().skip_while(|call| call.is_ok()).collect();
    assert!(failed.iter().all(|call| call.is_err()), "{failed:?}");
}

fn errors(ranks: &[Seen]) -> impl Iterator<Item = &CollectiveError> {
    ranks
        .iter()
        .flatten()
        .filter_map(|call| call.as_ref().err())
}

#[test]
fn results_are_right_in_every_order() {
    for size in 1..5 {
        in_many_orders(300, move || {
            let ranks = run(size, None, &[]);
            assert_eq!(errors(&ranks).next(), None);
        });
    }
}

/// At every step, in every order, a rank can leave, die, abort or do something else: nobody waits, no result
/// is wrong, and the error says which rank it was.
#[test]
fn a_rank_can_fail_at_any_point() {
    let faults = [Fault::Leave, Fault::Panic, Fault::Abort, Fault::Differ];
    for (faulty, at) in every_step() {
        for fault in faults {
            in_many_orders(25, move || {
                let ranks = run(3, None, &[(faulty, at, fault)]);
                ranks.iter().for_each(check);
                let others = (0..3).filter(|rank| *rank != faulty);
                // Each call needs all ranks, but for the last one: there, a rank may be done before.
                let is_told = |rank: usize| {
                    at + 1 == PROGRAM.len() || ranks[rank].last().is_some_and(Result::is_err)
                };
                assert!(others.into_iter().all(is_told));
                if !matches!(fault, Fault::Differ) {
                    let name = format!("rank {faulty} on");
                    assert!(errors(&ranks).all(|error| error.to_string().contains(&name)));
                }
            });
        }
    }
}

/// In every pair of steps, in every order: the job ends.
#[test]
fn two_ranks_can_fail_at_any_points() {
    let faults = [Fault::Leave, Fault::Abort, Fault::Differ];
    for (one, first) in every_step() {
        for (other, second) in every_step().filter(|(other, _)| *other > one) {
            for (a, b) in faults.into_iter().flat_map(|a| faults.map(|b| (a, b))) {
                in_many_orders(2, move || {
                    let ranks = run(3, None, &[(one, first, a), (other, second, b)]);
                    ranks.iter().for_each(check);
                    let third = ranks[3 - one - other].last().unwrap();
                    assert!(third.is_err() || first.min(second) + 1 == PROGRAM.len());
                });
            }
        }
    }
}

/// At every step, in every order, a run can be cancelled: nobody waits, and the next run is right.
#[test]
fn nothing_is_left_of_a_cancelled_run() {
    for (faulty, at) in every_step() {
        in_many_orders(50, move || {
            let all = [0, 1, 2];
            let ranks = local(3, None).unwrap().into_iter().map(Arc::new);
            let ranks = ranks.map(|comm| (Group::new(comm.clone(), 1, &all).unwrap(), comm));
            let ranks: Vec<_> = ranks.collect();
            let cancel: Vec<_> = ranks
                .iter()
                .map(|(group, _)| group.cancel_handle())
                .collect();
            let ranks = ranks.into_iter().map(|(mut group, comm)| {
                let cancel = cancel.clone();
                thread::spawn(move || {
                    group.begin(0);
                    let steps = if comm.rank() == faulty {
                        at
                    } else {
                        PROGRAM.len()
                    };
                    let steps = PROGRAM[..steps].iter().enumerate();
                    let ended = steps.map(|(bucket, step)| call(&mut group, *step, bucket as u64));
                    let ended: Result<Vec<()>, _> = ended.collect();
                    assert!(matches!(ended, Ok(_) | Err(CollectiveError::Cancelled)));
                    if comm.rank() == faulty {
                        cancel.iter().for_each(|rank| rank.cancel(0));
                    }
                    comm.all_gather(Vec::new()).unwrap();
                    group.begin(1);
                    for (bucket, step) in PROGRAM.into_iter().enumerate() {
                        assert_eq!(call(&mut group, step, bucket as u64), Ok(()));
                    }
                })
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().for_each(|rank| rank.join().unwrap());
        });
    }
}

/// The limit may end at any moment, at several ranks at once: then the job ends everywhere.
#[test]
fn a_call_that_takes_too_long_ends_the_job_everywhere() {
    let (done, late) = (Count::default(), Count::default());
    let (dones, lates) = (done.clone(), late.clone());
    in_many_orders(500, move || {
        let ranks = run(3, Some(Duration::from_secs(1)), &[]);
        ranks.iter().for_each(check);
        if errors(&ranks).next().is_none() {
            return dones.add();
        }
        // A rank that had all it needs may leave while another one asks who waits.
        let is_late = |error: &CollectiveError| {
            matches!(
                error,
                CollectiveError::Comm(CommError::Missing { .. } | CommError::Gone(_))
            )
        };
        assert!(errors(&ranks).any(is_late), "{ranks:?}");
        lates.add();
    });
    assert!(done.get() > 0 && late.get() > 0);
}

fn every_step() -> impl Iterator<Item = (usize, usize)> {
    (0..3).flat_map(|rank| (0..PROGRAM.len()).map(move |step| (rank, step)))
}

/// Counts over all orders.
#[derive(Clone, Default)]
struct Count(Arc<AtomicUsize>);

impl Count {
    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
