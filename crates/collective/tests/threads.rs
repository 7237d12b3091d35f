//! Groups of threads.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    thread,
    time::Duration,
};

use half::{bf16, f16};
use proptest::prelude::*;
use stovepipe_collective::{CollectiveError, Group, Reduction};
use stovepipe_comm::{Communicator, local};

use conformance::{Call, Case};

mod conformance;

/// Runs each rank in a thread; the results in rank order.
fn ranks<R: Send>(
    size: usize,
    limit: Option<Duration>,
    run: impl Fn(Arc<Communicator>) -> R + Sync,
) -> Vec<R> {
    let ranks = local(size, limit).unwrap();
    thread::scope(|scope| {
        let run = &run;
        let ranks = ranks.into_iter().map(Arc::new);
        let ranks: Vec<_> = ranks.map(|comm| scope.spawn(move || run(comm))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn everyone(comm: Arc<Communicator>) -> Group {
    let all: Vec<_> = (0..comm.size()).collect();
    Group::new(comm, 1, &all).unwrap()
}

#[test]
fn threads_conform() {
    for size in [1, 2, 3, 4] {
        ranks(size, None, |comm| conformance::run(&comm));
    }
}

fn call() -> impl Strategy<Value = Call> {
    let reduction = prop_oneof![Just(Reduction::Sum), Just(Reduction::Mean)];
    (0..5, reduction, 0_usize..9).prop_map(|(call, reduction, root)| match call {
        0 => Call::AllReduce(reduction),
        1 => Call::Halves(reduction),
        2 => Call::ReduceScatter(reduction),
        3 => Call::AllGather,
        _ => Call::Broadcast(root),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn results_have_the_bits_of_a_plain_loop(
        size in 1_usize..=9,
        call in call(),
        lengths in prop::collection::vec(prop_oneof![0_usize..20, 0_usize..=10_000], 0..5),
        per_bucket in 1_usize..5,
        number in 0_usize..4,
        seed in any::<u32>(),
    ) {
        let case = Case { call, lengths, per_bucket, seed: seed.into() };
        ranks(size, None, |comm| {
            let mut group = everyone(comm.clone());
            let check: [fn(&Communicator, &mut Group, &Case); 4] = [
                conformance::check::<f32>,
                conformance::check::<f64>,
                conformance::check::<bf16>,
                conformance::check::<f16>,
            ];
            check[number](&comm, &mut group, &case);
        });
    }
}

/// Rows and columns of ranks, in rings of any order, on one communicator.
#[test]
fn a_rank_can_be_in_several_groups() {
    let seen = ranks(6, None, |comm| {
        let rank = comm.rank();
        let (row, column) = (
            [[4, 0, 2], [1, 3, 5]][rank % 2],
            [rank / 2 * 2, rank / 2 * 2 + 1],
        );
        let mut row = Group::new(comm.clone(), 1, &row).unwrap();
        let mut column = Group::new(comm, 2, &column).unwrap();
        let mut all = Vec::new();
        for _ in 0..50 {
            let (mut first, mut second) = ([rank as f64; 4], [rank as f64; 1]);
            column
                .all_reduce(7, &mut [&mut second], Reduction::Sum)
                .unwrap();
            row.all_reduce(8, &mut [&mut first], Reduction::Mean)
                .unwrap();
            row.all_reduce(9, &mut [&mut second], Reduction::Sum)
                .unwrap();
            all.push((first, second));
        }
        all
    });
    for (rank, all) in seen.into_iter().enumerate() {
        let mean = [2.0, 3.0][rank % 2];
        assert_eq!(all, vec![([mean; 4], [15.0]); 50]);
    }
}

/// Sums have the bits of as many ranks with a place each.
#[test]
fn a_rank_can_have_several_places() {
    let places = [0, 0, 1, 0, 1];
    let numbers = |place: usize| [1.0 / (1.0 + place as f32), place as f32, 7.0, 0.1, 1e-8];
    let sum = |mut group: Group| {
        let mut tensor = numbers(group.rank());
        for bucket in 0..20 {
            tensor = numbers(group.rank());
            let reduced = group.all_reduce(bucket, &mut [&mut tensor], Reduction::Sum);
            assert_eq!(reduced, Ok(()));
        }
        tensor.map(f32::to_bits)
    };
    let alone = ranks(places.len(), None, |comm| sum(everyone(comm)));
    let shared = ranks(2, None, |comm| {
        let own = (0..places.len()).filter(|place| places[*place] == comm.rank());
        thread::scope(|scope| {
            let own = own.map(|place| {
                let group = Group::with_place(comm.clone(), 1, &places, place).unwrap();
                scope.spawn(move || sum(group))
            });
            let own: Vec<_> = own.collect();
            own.into_iter()
                .map(|place| place.join().unwrap())
                .collect::<Vec<_>>()
        })
    });
    assert!(shared.concat().into_iter().eq(alone));
}

#[test]
fn groups_of_wrong_ranks_are_errors_that_harm_nothing() {
    ranks(3, None, |comm| {
        for wrong in [
            &[][..],
            &[0, 1, 2, 3],
            &[0, 1, 1, 2],
            &[(comm.rank() + 1) % 3],
        ] {
            let error = Group::new(comm.clone(), 1, wrong).err().unwrap();
            let ranks = format!("{wrong:?} at rank {} of 3", comm.rank());
            assert!(error.to_string().ends_with(&ranks), "{error}");
        }
        let mut group = everyone(comm);
        let error = group.broadcast(0, &mut [&mut [1.0_f32]], 3);
        assert_eq!(error, Err(CollectiveError::Root(3)));
        group
            .all_reduce(0, &mut [&mut [1.0_f32]], Reduction::Sum)
            .unwrap();
    });
}

type Different = fn(&mut Group) -> Result<(), CollectiveError>;

/// Whoever does something else, all get an error, and one of them says what it is.
#[test]
fn ranks_that_do_different_things_are_named() {
    let usual: Different =
        |group| group.all_reduce(3, &mut [&mut [1.0_f32; 10], &mut [0.0; 4]], Reduction::Sum);
    let cases: [(Different, [&str; 3]); 9] = [
        (
            |group| group.all_reduce(3, &mut [&mut [1.0_f32; 10], &mut [0.0; 5]], Reduction::Sum),
            ["the length of tensor 1", "5", "4"],
        ),
        (
            |group| group.all_reduce::<f32>(3, &mut [], Reduction::Sum),
            ["the number of tensors", "0", "2"],
        ),
        (
            |group| {
                group.all_reduce(
                    3,
                    &mut [&mut [1.0_f32; 10], &mut [0.0; 4], &mut []],
                    Reduction::Sum,
                )
            },
            ["the number of tensors", "3", "2"],
        ),
        (
            |group| {
                let (mut a, mut b) = ([f16::ONE; 10], [f16::ONE; 4]);
                group.all_reduce(3, &mut [&mut a, &mut b], Reduction::Sum)
            },
            ["the type", "f16", "f32"],
        ),
        (
            |group| {
                let (mut a, mut b) = ([bf16::ONE; 10], [bf16::ONE; 4]);
                group.all_reduce(3, &mut [&mut a, &mut b], Reduction::Sum)
            },
            ["the type", "bf16", "f32"],
        ),
        (
            |group| group.all_reduce(4, &mut [&mut [1.0_f32; 10], &mut [0.0; 4]], Reduction::Sum),
            ["the bucket", "4", "3"],
        ),
        (
            |group| group.all_reduce(3, &mut [&mut [1.0_f32; 10], &mut [0.0; 4]], Reduction::Mean),
            ["the call", "all_reduce (Mean)", "all_reduce (Sum)"],
        ),
        (
            |group| group.all_gather(3, &mut [&mut [1.0_f32; 10], &mut [0.0; 4]]),
            ["the call", "all_gather", "all_reduce (Sum)"],
        ),
        (
            |group| group.broadcast(3, &mut [&mut [1.0_f32; 10], &mut [0.0; 4]], 1),
            [
                "the call",
                "broadcast from the group's rank 1",
                "all_reduce (Sum)",
            ],
        ),
    ];
    for size in [2, 3, 5] {
        for (different, [what, theirs, own]) in cases {
            let errors = ranks(size, None, |comm| {
                let rank = comm.rank();
                let mut group = everyone(comm);
                // The job may end before a rank has returned from the first call.
                let call = if rank == 1 { different } else { usual };
                usual(&mut group).and_then(|()| call(&mut group))
            });
            // The first one to find out says it; it is the rank after the one that differs, or that rank.
            let after = format!(
                "rank 1 on localhost reduces something else: {what} is {theirs} there, but {own} here"
            );
            let itself = format!(
                "rank 0 on localhost reduces something else: {what} is {own} there, but {theirs} here"
            );
            for error in errors {
                let error = error.unwrap_err().to_string();
                assert!(
                    error.ends_with(&after) || error.ends_with(&itself),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn groups_of_different_ranks_are_errors() {
    let errors = ranks(3, None, |comm| {
        let ring = if comm.rank() == 2 {
            [0, 2, 1]
        } else {
            [0, 1, 2]
        };
        let mut group = Group::new(comm, 1, &ring).unwrap();
        group.all_reduce(0, &mut [&mut [1.0_f32; 10]], Reduction::Sum)
    });
    assert!(errors.iter().all(Result::is_err), "{errors:?}");
}

/// A rank leaves or panics between the halves: nobody waits for it.
#[test]
fn a_rank_that_dies_between_scatter_and_gather_is_named() {
    for size in [2, 3, 4] {
        for panics in [false, true] {
            let errors = ranks(size, None, |comm| {
                let rank = comm.rank();
                let mut group = everyone(comm);
                let mut tensor = vec![1.0_f32; 300_000];
                let scattered = group.reduce_scatter(0, &mut [&mut tensor], Reduction::Sum);
                if rank == 1 {
                    let group = AssertUnwindSafe(group);
                    let _ = catch_unwind(move || {
                        let _group = group;
                        if panics {
                            resume_unwind(Box::new("on purpose"));
                        }
                    });
                    return None;
                }
                let gathered = scattered.and_then(|()| group.all_gather(0, &mut [&mut tensor]));
                Some(gathered.unwrap_err())
            });
            for error in errors.into_iter().flatten() {
                assert!(error.to_string().contains("rank 1 on localhost"), "{error}");
            }
        }
    }
}

/// All wait for one rank, directly or not, and one of them not for long. Whoever finds out says which it is.
#[test]
fn a_rank_that_does_not_answer_is_named() {
    let limit = Duration::from_secs(6);
    let errors = ranks(5, Some(limit), |comm| {
        let mut group = everyone(comm.clone());
        let mut tensor = vec![1.0_f32; 300_000];
        let first = group.all_reduce(0, &mut [&mut tensor], Reduction::Sum);
        match comm.rank() {
            2 => {
                while group_is_alive(&comm) {
                    thread::sleep(Duration::from_millis(5));
                }
            }
            3 => thread::sleep(Duration::from_secs(3)),
            _ => {}
        }
        let second = first.and_then(|()| group.all_reduce(1, &mut [&mut tensor], Reduction::Sum));
        second.unwrap_err().to_string()
    });
    let missing = "rank 2 on localhost did not answer within 6s";
    assert!(errors.iter().any(|error| error == missing), "{errors:?}");
    assert!(
        errors.iter().all(|error| error.ends_with(missing)),
        "{errors:?}"
    );
}

/// Whether the job has not failed.
fn group_is_alive(comm: &Communicator) -> bool {
    comm.send(comm.rank(), 9, 0, Vec::new()).is_ok()
}
