//! Steps that end by themselves: they succeed, fail, or are stopped.

use stovepipe_schedule::Action;

use crate::{
    checks::{
        Count, in_many_orders,
        schedules::{
            Failure, InjectedFault, MOMENTS, SCHEDULES, run, run_well, schedule, spawn_workers,
            worker_of,
        },
    },
    step::{Fault, JobContext, JobError, StepOptions, step},
    stop::StopHandle,
    sync::thread,
};

fn options(stop: &StopHandle) -> StepOptions<'_> {
    StepOptions {
        stop,
        stall_timeout: None,
    }
}

fn every_action(schedule: &stovepipe_schedule::Schedule) -> Vec<Action> {
    schedule.workers().iter().flatten().copied().collect()
}

#[test]
fn steps_of_every_schedule_end_and_threads_with_their_workers() {
    let is_tested = |rule| SCHEDULES.iter().any(|given| given.0 == rule);
    assert!(stovepipe_schedule::Rule::synchronous().all(is_tested));
    for given in SCHEDULES {
        in_many_orders(1000, move || {
            let schedule = schedule(given);
            let (workers, ended) = spawn_workers(&schedule);
            run_well(&workers, &schedule);
            run_well(&workers, &schedule);
            let threads = workers.len();
            drop(workers);
            assert_eq!(ended.get(), threads);
        });
    }
}

/// At every action of every schedule, before and after it receives and sends.
#[test]
fn a_failure_or_a_panic_anywhere_ends_the_step_and_the_next_one_works() {
    for given in SCHEDULES {
        let actions = every_action(&schedule(given));
        for &action in &actions {
            for (moment, fault) in MOMENTS.into_iter().flat_map(|moment| {
                [InjectedFault::Fail, InjectedFault::Panic].map(|fault| (moment, fault))
            }) {
                in_many_orders(30, move || {
                    let schedule = schedule(given);
                    let (workers, ended) = spawn_workers(&schedule);
                    let faults = [(action, moment, fault.clone())];
                    let result = run(
                        &workers,
                        &schedule,
                        &faults,
                        (&StopHandle::new(), None),
                        |_| Ok(()),
                    );
                    let worker = worker_of(&schedule, action);
                    assert_eq!(
                        result,
                        Err(match fault {
                            InjectedFault::Panic => Failure::Panicked(worker, action),
                            _ => Failure::Error(worker, action),
                        })
                    );
                    assert!(!workers.iter().any(crate::Worker::is_stuck));
                    run_well(&workers, &schedule);
                    let threads = workers.len();
                    drop(workers);
                    assert_eq!(ended.get(), threads);
                });
            }
        }
    }
}

/// The failure that was reported first is returned, with its own action.
#[test]
fn of_two_failures_one_is_returned() {
    let given = SCHEDULES[2];
    let actions = every_action(&schedule(given));
    let returned = [Count::default(), Count::default()];
    for &one in &actions {
        for &other in &actions {
            if worker_of(&schedule(given), one) == worker_of(&schedule(given), other) {
                continue;
            }
            let returned = returned.clone();
            in_many_orders(30, move || {
                let schedule = schedule(given);
                let (workers, _) = spawn_workers(&schedule);
                let faults = [
                    (one, MOMENTS[0], InjectedFault::Fail),
                    (other, MOMENTS[0], InjectedFault::Panic),
                ];
                let result = run(
                    &workers,
                    &schedule,
                    &faults,
                    (&StopHandle::new(), None),
                    |_| Ok(()),
                );
                let expected = [
                    Err(Failure::Error(worker_of(&schedule, one), one)),
                    Err(Failure::Panicked(worker_of(&schedule, other), other)),
                ];
                let found = expected.iter().position(|expected| *expected == result);
                returned[found.expect("one of the two")].add();
                run_well(&workers, &schedule);
            });
        }
    }
    assert!(returned.iter().all(|count| count.get() > 0));
}

#[test]
fn a_request_to_stop_ends_the_step_and_the_next_one_works() {
    let (stopped, done) = (Count::default(), Count::default());
    for given in SCHEDULES {
        let (stopped, done) = (stopped.clone(), done.clone());
        in_many_orders(500, move || {
            let schedule = schedule(given);
            let (workers, _) = spawn_workers(&schedule);
            let stop = StopHandle::new();
            let asks = stop.clone();
            let thread = thread::spawn(move || asks.stop());
            match run(&workers, &schedule, &[], (&stop, None), |_| Ok(())) {
                Err(Failure::Stopped) => stopped.add(),
                Ok(()) => done.add(), // the request came too late
                other => panic!("{other:?}"),
            }
            let _ = thread.join();
            // A stop requested before the step ends it at once.
            let result = run(&workers, &schedule, &[], (&stop, None), |_| Ok(()));
            assert_eq!(result, Err(Failure::Stopped));
            stop.reset();
            run_well(&workers, &schedule);
        });
    }
    assert!(stopped.get() > 0 && done.get() > 0);
}

#[test]
fn an_error_of_the_callback_ends_the_step_and_the_next_one_works() {
    for given in SCHEDULES {
        for at in 1..=every_action(&schedule(given)).len() {
            in_many_orders(30, move || {
                let schedule = schedule(given);
                let (workers, _) = spawn_workers(&schedule);
                let refuses = |done| {
                    if done == at {
                        Err(Failure::OnAction)
                    } else {
                        Ok(())
                    }
                };
                let result = run(
                    &workers,
                    &schedule,
                    &[],
                    (&StopHandle::new(), None),
                    refuses,
                );
                assert_eq!(result, Err(Failure::OnAction));
                run_well(&workers, &schedule);
            });
        }
    }
}

/// A job can fail before its first action. What it holds is dropped before the step returns.
#[test]
fn nothing_of_a_step_outlives_it() {
    in_many_orders(1000, || {
        let schedule = schedule(SCHEDULES[0]);
        let (workers, _) = spawn_workers(&schedule);
        let dropped = Count::default();
        let jobs = (0..2).map(|worker| {
            let held = dropped.on_drop();
            move |_: &mut JobContext<'_, ()>| {
                let _held = held;
                match worker {
                    0 => Ok(()),
                    _ => Err(JobError::Failed("at once")),
                }
            }
        });
        let tell = |_, ()| Ok(());
        let failed = step(
            &workers,
            jobs.collect(),
            options(&StopHandle::new()),
            tell,
            |fault| match fault {
                Fault::Failed { worker, action, .. } => Some((worker, action)),
                _ => None,
            },
        );
        assert_eq!(failed, Err(Some((1, None))));
        assert_eq!(dropped.get(), 2);
    });
}

/// A worker that waits for nothing also sees the failure, before its next action.
#[test]
fn a_failure_ends_workers_that_wait_for_nothing() {
    let cancelled = Count::default();
    let counts = cancelled.clone();
    in_many_orders(1000, move || {
        let (workers, _) = spawn_workers(&schedule(SCHEDULES[0]));
        let counts = counts.clone();
        let jobs = (0..2).map(|worker| {
            let counts = counts.clone();
            move |context: &mut JobContext<'_, usize>| {
                for action in 0..6 {
                    let acted = context.act(action, |_| match worker {
                        0 => Err(JobError::Failed("at once")),
                        _ => Ok(()),
                    });
                    if acted == Err(JobError::Cancelled) {
                        counts.add();
                    }
                    acted?;
                }
                Ok(())
            }
        });
        let tell = |_, _| Ok(());
        let failed = step(
            &workers,
            jobs.collect(),
            options(&StopHandle::new()),
            tell,
            |fault| {
                matches!(
                    fault,
                    Fault::Failed {
                        worker: 0,
                        action: Some(0),
                        ..
                    }
                )
            },
        );
        assert_eq!(failed, Err(true));
    });
    assert!(cancelled.get() > 0);
}
