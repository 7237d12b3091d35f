//! Steps that run into the stall timeout, with and without a worker that hangs.
//!
//! In the model, the timeout may end at any moment, so a step may also be given up without a fault.

use std::time::Duration;

use stovepipe_schedule::{Action, Schedule};

use crate::{
    checks::{
        Count, Gate, in_many_orders,
        schedules::{
            Failure, InjectedFault, Moment, SCHEDULES, run, run_well, schedule, spawn_workers,
            worker_of,
        },
    },
    stop::StopHandle,
    sync::thread,
    worker::Worker,
};

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

/// Runs a step in which the worker of `at` hangs.
fn run_into(
    workers: &[Worker],
    schedule: &Schedule,
    at: Action,
    reached: &Count,
    gate: &Gate,
) -> Result<(), Failure> {
    let hang = InjectedFault::Hang(reached.clone(), gate.clone());
    let faults = [(at, Moment::Between, hang)];
    run(
        workers,
        schedule,
        &faults,
        (&StopHandle::new(), LIMIT),
        |_| Ok(()),
    )
}

fn is_stuck(workers: &[Worker]) -> bool {
    workers.iter().any(Worker::is_stuck)
}

#[test]
fn a_hang_anywhere_stalls_the_step_and_once_it_is_over_the_next_one_works() {
    let (hung, cut_short) = (Count::default(), Count::default());
    for given in SCHEDULES {
        for action in schedule(given).workers().iter().flatten().copied() {
            let (hung, cut_short) = (hung.clone(), cut_short.clone());
            in_many_orders(60, move || {
                let schedule = schedule(given);
                let (workers, ended) = spawn_workers(&schedule);
                let (reached, gate) = (Count::default(), Gate::default());
                let result = run_into(&workers, &schedule, action, &reached, &gate);
                assert_eq!(result, Err(Failure::Stalled));
                match reached.get() {
                    // Its job cannot have ended: the workers must not be used.
                    1 => {
                        hung.add();
                        assert!(workers[worker_of(&schedule, action)].is_stuck());
                    }
                    // The step timed out first; a worker may still be about to hang.
                    _ => cut_short.add(),
                }
                gate.open();
                while is_stuck(&workers) {
                    thread::yield_now();
                }
                run_well(&workers, &schedule);
                let threads = workers.len();
                drop(workers);
                assert_eq!(ended.get(), threads);
            });
        }
    }
    assert!(hung.get() > 0 && cut_short.get() > 0);
}

#[test]
fn workers_with_a_stuck_one_can_be_dropped_and_joins_the_others() {
    for given in SCHEDULES {
        for action in schedule(given).workers().iter().flatten().copied() {
            in_many_orders(20, move || {
                let schedule = schedule(given);
                let (workers, ended) = spawn_workers(&schedule);
                let (reached, gate) = (Count::default(), Gate::default());
                let result = run_into(&workers, &schedule, action, &reached, &gate);
                assert_eq!(result, Err(Failure::Stalled));
                let threads = workers.len();
                let stuck = workers.iter().filter(|worker| worker.is_stuck()).count();
                drop(workers);
                // Some that were stuck may be back by now.
                assert!(ended.get() >= threads - stuck);
                gate.open(); // or the checker would find a thread that never ends
            });
        }
    }
}

/// A failure is returned even if another worker hangs and is given up.
#[test]
fn a_failure_is_returned_though_another_worker_hangs() {
    let given = SCHEDULES[2];
    let actions: Vec<_> = schedule(given)
        .workers()
        .iter()
        .flatten()
        .copied()
        .collect();
    let (failed, stalled) = (Count::default(), Count::default());
    for &fails in &actions {
        for &hangs in &actions {
            if worker_of(&schedule(given), fails) == worker_of(&schedule(given), hangs) {
                continue;
            }
            let (failed, stalled) = (failed.clone(), stalled.clone());
            in_many_orders(20, move || {
                let schedule = schedule(given);
                let (workers, _) = spawn_workers(&schedule);
                let (reached, gate) = (Count::default(), Gate::default());
                let faults = [
                    (fails, Moment::First, InjectedFault::Fail),
                    (
                        hangs,
                        Moment::First,
                        InjectedFault::Hang(reached.clone(), gate.clone()),
                    ),
                ];
                let result = run(
                    &workers,
                    &schedule,
                    &faults,
                    (&StopHandle::new(), LIMIT),
                    |_| Ok(()),
                );
                match result {
                    Err(Failure::Error(worker, action)) => {
                        assert_eq!((worker, action), (worker_of(&schedule, fails), fails));
                        failed.add();
                    }
                    // It hung, or the step timed out, before the other failed.
                    Err(Failure::Stalled) => stalled.add(),
                    other => panic!("{other:?}"),
                }
                assert!(reached.get() == 0 || is_stuck(&workers));
                gate.open();
                while is_stuck(&workers) {
                    thread::yield_now();
                }
                run_well(&workers, &schedule);
            });
        }
    }
    assert!(failed.get() > 0 && stalled.get() > 0);
}

/// A step may be given up because its workers are slow. No worker stays stuck.
#[test]
fn a_step_that_is_given_up_for_nothing_does_no_harm() {
    let (done, stalled) = (Count::default(), Count::default());
    for given in SCHEDULES {
        let (done, stalled) = (done.clone(), stalled.clone());
        in_many_orders(500, move || {
            let schedule = schedule(given);
            let (workers, ended) = spawn_workers(&schedule);
            match run(
                &workers,
                &schedule,
                &[],
                (&StopHandle::new(), LIMIT),
                |_| Ok(()),
            ) {
                Ok(()) => done.add(),
                Err(Failure::Stalled) => stalled.add(),
                other => panic!("{other:?}"),
            }
            while is_stuck(&workers) {
                thread::yield_now();
            }
            run_well(&workers, &schedule);
            let threads = workers.len();
            drop(workers);
            assert_eq!(ended.get(), threads);
        });
    }
    assert!(done.get() > 0 && stalled.get() > 0);
}
