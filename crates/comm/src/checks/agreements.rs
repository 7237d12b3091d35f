//! Agreements under the model checker, with steps of `stovepipe-runtime` between them.
//!
//! A fault happens at any point of a rank's first step. The second step must work, if the job lives.

mod model;

use std::time::Duration;

use super::{Count, in_many_orders};
use crate::{
    Agreement, RunFailure,
    checks::agreements::model::{
        Action, Ended, Failure, Fault, Job, MICRO_BATCHES, PASSES, Pass, Point, STEPS, What,
    },
    local,
    sync::{Arc, Mutex, lock, thread},
};

/// All ranks have what all ranks did.
fn assert_succeeded(ends: &[Vec<Ended>], step: usize) {
    for rank in ends {
        assert_eq!(rank[step], Ok((0..ends.len()).collect()), "{ends:?}");
    }
}

fn error(ended: &Ended) -> &Failure {
    match ended {
        Err(RunFailure::Failed(error) | RunFailure::Cancelled(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn every_action() -> impl Iterator<Item = Action> {
    PASSES
        .into_iter()
        .flat_map(|pass| (0..MICRO_BATCHES).map(move |micro_batch| (pass, micro_batch)))
}

fn in_actions() -> impl Iterator<Item = Point> {
    every_action().flat_map(|action| [Point::Receives(action), Point::Sends(action)])
}

/// Every fault of a kind at these points of the first step, at each of three ranks.
fn faults(what: &[What], points: impl IntoIterator<Item = Point>) -> impl Iterator<Item = Fault> {
    let mut faults = Vec::new();
    for at in points {
        for rank in 0..3 {
            faults.extend(what.iter().map(|&what| Fault {
                step: 0,
                rank,
                at,
                what,
            }));
        }
    }
    faults.into_iter()
}

/// Where a rank's own part can fail.
fn failing() -> impl Iterator<Item = Fault> {
    let outside = faults(&[What::Fails], [Point::BeforeMeet, Point::AfterMeet]);
    outside.chain(faults(&[What::Fails, What::Panics], in_actions()))
}

#[test]
fn steps_succeed_in_all_ranks() {
    for size in 1..4 {
        in_many_orders(100, move || {
            let mut job = Job::with(&[]);
            job.ranks = size;
            let ends = job.ends();
            (0..STEPS).for_each(|step| assert_succeeded(&ends, step));
        });
    }
}

#[test]
fn a_failure_at_any_point_fails_the_step_in_all_ranks_and_the_next_step_works() {
    for fault in failing() {
        in_many_orders(8, move || {
            let ends = Job::with(&[fault]).ends();
            for (rank, ends) in ends.iter().enumerate() {
                let expected = match rank == fault.rank {
                    true => Failure::of(rank),
                    false => Failure::at(fault.rank),
                };
                assert_eq!(error(&ends[0]), &expected, "{rank} {fault:?}");
            }
            assert_succeeded(&ends, 1);
        });
    }
}

/// A thread sends it at any later time. The next run expects messages before it begins, as a pipeline does.
#[test]
fn a_message_of_a_failed_run_reaches_no_later_one() {
    in_many_orders(2000, || {
        let ranks = local(2, None).unwrap().into_iter().map(|comm| {
            thread::spawn(move || {
                let (rank, expected) = (comm.rank(), Arc::new(Mutex::new(None)));
                let (expects, wrong) = (expected.clone(), Count::default());
                let wrongs = wrong.clone();
                let take = move |_, parts: Vec<Vec<u8>>| {
                    if lock(&expects).is_some_and(|expected: u8| parts != [[expected]]) {
                        wrongs.add();
                    }
                    Ok(())
                };
                let agreement = Agreement::new((Arc::new(comm), 0), take, |_, _| ());
                let agreement = Arc::new(agreement);
                let step = |step: u8| {
                    let met = agreement.meet(Ok::<_, Failure>(()), |()| (Vec::new(), ()));
                    assert!(met.is_ok());
                    *lock(&expected) = Some(step);
                    let run = agreement.begin();
                    let sender = agreement.clone();
                    let send = move || drop(sender.send(run, 1 - rank, vec![vec![step]]));
                    let late = thread::spawn(send);
                    let failed = Err(RunFailure::Failed(Failure::of(rank)));
                    let end: Result<Vec<()>, _> = agreement.end(failed);
                    *lock(&expected) = None;
                    assert!(end.is_err());
                    late
                };
                let late = [0, 1].map(step);
                late.into_iter().for_each(|late| late.join().unwrap());
                assert_eq!(wrong.get(), 0);
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
}

/// The first one is dropped after the second one has been built, and what it sends may come later.
#[test]
fn a_pipeline_gets_no_messages_of_an_earlier_one_on_its_communicator() {
    for fault in faults(&[What::Fails], in_actions()) {
        in_many_orders(8, move || {
            let mut job = Job::with(&[fault]);
            job.is_rebuilt = true;
            let ends = job.ends();
            assert!(ends.iter().all(|ends| ends[0].is_err()));
            assert_succeeded(&ends, 1);
        });
    }
}

/// Each has its own error, or that of one that has.
#[test]
fn two_ranks_can_fail_at_any_points_of_a_step() {
    let own: Vec<_> = failing()
        .filter(|fault| fault.what == What::Fails)
        .collect();
    for (index, &one) in own.iter().enumerate() {
        for &other in own[index + 1..]
            .iter()
            .filter(|other| other.rank != one.rank)
        {
            in_many_orders(1, move || {
                let ends = Job::with(&[one, other]).ends();
                let has_own = |rank: &usize| error(&ends[*rank][0]) == &Failure::of(*rank);
                let blamed: Vec<_> = [one.rank, other.rank].into_iter().filter(has_own).collect();
                for (rank, ends) in ends.iter().enumerate() {
                    let is_named = |blamed: &usize| error(&ends[0]) == &Failure::at(*blamed);
                    assert!(
                        has_own(&rank) || blamed.iter().any(is_named),
                        "{rank}: {ends:?}"
                    );
                }
                assert_succeeded(&ends, 1);
            });
        }
    }
}

#[test]
fn a_rank_that_is_gone_at_any_point_ends_the_step_of_all() {
    let points = [
        Point::BeforeMeet,
        Point::AfterMeet,
        Point::BeforeEnd,
        Point::AfterEnd,
    ];
    let gone = faults(&[What::Leaves, What::Unwinds, What::Aborts], points);
    for fault in gone.chain(faults(&[What::Aborts], in_actions())) {
        in_many_orders(8, move || {
            let ends = Job::with(&[fault]).ends();
            for (rank, ended) in ends.iter().enumerate().flat_map(|(rank, ends)| {
                let ends = ends.iter().enumerate();
                ends.map(move |(step, ended)| (rank, (step, ended)))
            }) {
                let (step, ended) = ended;
                // If the job ends after the step, some ranks may know how that ended.
                if ended.is_ok() && step == 0 && fault.at == Point::AfterEnd {
                    assert_eq!(*ended, Ok(vec![0, 1, 2]));
                    continue;
                }
                let named = format!("rank {} on localhost", fault.rank);
                assert!(error(ended).0.contains(&named), "{rank} {fault:?} {ends:?}");
            }
        });
    }
}

#[test]
fn a_rank_that_fails_has_its_own_error_though_another_one_is_gone() {
    let own = Count::default();
    for at in [Point::BeforeMeet, Point::AfterMeet] {
        for gone in faults(&[What::Leaves, What::Unwinds, What::Aborts], [at]) {
            let fails = Fault {
                rank: (gone.rank + 1) % 3,
                what: What::Fails,
                ..gone
            };
            let owns = own.clone();
            in_many_orders(10, move || {
                let ends = Job::with(&[gone, fails]).ends();
                let has_own = error(&ends[fails.rank][0]) == &Failure::of(fails.rank);
                // A job that ends during the meeting may end it, too.
                assert!(has_own || at == Point::AfterMeet);
                if has_own && at == Point::AfterMeet {
                    owns.add();
                }
            });
        }
    }
    assert!(own.get() > 0);
}

#[test]
fn a_stop_at_any_point_stops_the_step_in_all_ranks() {
    let (stopped, late) = (Count::default(), Count::default());
    let outside = faults(&[What::Stops], [Point::AfterMeet]);
    for fault in outside.chain(faults(&[What::Stops], in_actions())) {
        let (stops, lates) = (stopped.clone(), late.clone());
        in_many_orders(15, move || {
            let ends = Job::with(&[fault]).ends();
            if ends[0][0].is_ok() && fault.at != Point::AfterMeet {
                assert_succeeded(&ends, 0); // all actions had begun
                lates.add();
            } else {
                assert!(
                    ends.iter().all(|ends| ends[0] == Err(RunFailure::Stopped)),
                    "{ends:?}"
                );
                stops.add();
            }
            assert_succeeded(&ends, 1);
        });
    }
    assert!(stopped.get() > 0 && late.get() > 0);
}

/// A rank whose part fails has its own error; the others have that, or know of the stop.
#[test]
fn a_stop_and_a_failure_end_the_step_in_all_ranks() {
    let stops: Vec<_> = faults(&[What::Stops], [Point::AfterMeet]).collect();
    for stop in stops {
        for fails in faults(&[What::Fails], in_actions()).filter(|fails| fails.rank != stop.rank) {
            in_many_orders(5, move || {
                let ends = Job::with(&[stop, fails]).ends();
                for (rank, ends) in ends.iter().enumerate() {
                    let is_known = match &ends[0] {
                        Ok(_) => false,
                        Err(RunFailure::Stopped) => true,
                        Err(RunFailure::Failed(error) | RunFailure::Cancelled(error)) => {
                            *error == Failure::at(fails.rank)
                                || rank == fails.rank && *error == Failure::of(rank)
                        }
                    };
                    assert!(is_known, "{rank}: {ends:?}");
                }
                assert_succeeded(&ends, 1);
            });
        }
    }
}

/// The limit may end at any moment, in each rank.
#[test]
fn a_worker_that_hangs_fails_the_step_in_all_ranks() {
    for fault in faults(&[What::Hangs], in_actions()) {
        in_many_orders(8, move || {
            let mut job = Job::with(&[fault]);
            job.limit = Some(Duration::from_secs(60));
            let ends = job.ends();
            for ends in &ends {
                let has_error =
                    |rank| [Failure::of(rank), Failure::at(rank)].contains(error(&ends[0]));
                assert!((0..3).any(has_error), "{ends:?}");
            }
            assert_succeeded(&ends, 1);
        });
    }
}

#[test]
fn terms_that_differ_fail_in_all_ranks() {
    for fault in faults(&[What::Differs], [Point::BeforeMeet]) {
        in_many_orders(30, move || {
            let ends = Job::with(&[fault]).ends();
            for (rank, ends) in ends.iter().enumerate() {
                let error = &error(&ends[0]).0;
                let is = if rank == fault.rank {
                    "another"
                } else {
                    "the same"
                };
                assert!(
                    error.starts_with(&format!("the term is {is} here, but")),
                    "{error}"
                );
            }
            assert_succeeded(&ends, 1);
        });
    }
}

/// Only the rank that gets it knows. The step before fails in another way, or not at all.
#[test]
fn a_message_that_cannot_be_read_fails_the_step_in_all_ranks() {
    for mut fault in faults(&[What::SendsNonsense], in_actions()) {
        fault.step = 1;
        // The first rank has nobody to send gradients to, and the last one nobody to send values to.
        let (Point::Receives((pass, _)) | Point::Sends((pass, _))) = fault.at else {
            panic!("in an action");
        };
        if matches!((fault.rank, pass), (0, Pass::Backward) | (2, Pass::Forward)) {
            continue;
        }
        let before = Fault {
            step: 0,
            rank: 1,
            at: Point::AfterMeet,
            what: What::Fails,
        };
        for faults in [vec![fault], vec![before, fault]] {
            in_many_orders(5, move || {
                for ends in Job::with(&faults).ends() {
                    assert_eq!(ends[0].is_ok(), faults.len() == 1);
                    let error = &error(&ends[1]).0;
                    let end = format!("rank {} on localhost failed: nonsense", fault.rank);
                    assert!(error.ends_with(&end), "{error}");
                }
            });
        }
    }
}
