//! Steps that end by themselves: they succeed, fail, or are stopped.

use crate::{
    cancel::CancelHandle,
    checks::{
        Count, in_many_orders,
        schedules::{Crew, Failure, InjectedFault, MOMENTS, SCHEDULES, every_action, every_pair},
    },
    step::{Fault, JobContext, JobError, StepOptions, step},
    stop::StopHandle,
    sync::thread,
};

fn options<'a>(stop: &'a StopHandle, cancel: &'a CancelHandle<()>) -> StepOptions<'a, ()> {
    StepOptions {
        stop,
        cancel,
        number: 0,
        stall_timeout: None,
        late_reports: false,
    }
}

/// The worker and the action that failed.
fn place<A, F, C>(fault: Fault<A, F, C>) -> Option<(usize, Option<A>)> {
    match fault {
        Fault::Failed { worker, action, .. } => Some((worker, action)),
        _ => None,
    }
}

#[test]
fn steps_of_every_schedule_end_and_threads_with_their_workers() {
    let is_tested = |rule| SCHEDULES.iter().any(|given| given.rule == rule);
    assert!(stovepipe_schedule::Rule::ALL.into_iter().all(is_tested));
    for given in SCHEDULES {
        in_many_orders(1000, move || {
            let crew = Crew::new(given);
            crew.run_well();
            crew.run_well();
            crew.end();
        });
    }
}

/// At every action of every schedule, before and after it receives and sends.
#[test]
fn a_failure_or_a_panic_anywhere_ends_the_step_and_the_next_one_works() {
    let faults = [InjectedFault::Fail, InjectedFault::Panic];
    let faults = MOMENTS.map(|moment| faults.clone().map(|fault| (moment, fault)));
    for given in SCHEDULES {
        for action in every_action(given) {
            for (moment, fault) in faults.iter().flatten().cloned() {
                in_many_orders(30, move || {
                    let crew = Crew::new(given);
                    let result = crew.run_unlimited(&[(action, moment, fault.clone())]);
                    let worker = crew.worker_of(action);
                    let expected = match fault {
                        InjectedFault::Panic => Failure::Panicked(worker, action),
                        _ => Failure::Error(worker, action),
                    };
                    assert_eq!(result, Err(expected));
                    assert!(!crew.is_stuck());
                    crew.run_well();
                    crew.end();
                });
            }
        }
    }
}

/// The failure that was reported first is returned, with its own action.
#[test]
fn of_two_failures_one_is_returned() {
    let given = SCHEDULES[2];
    let returned = [Count::default(), Count::default()];
    for (one, other) in every_pair(given) {
        let returned = returned.clone();
        in_many_orders(30, move || {
            let crew = Crew::new(given);
            let result = crew.run_unlimited(&[
                (one, MOMENTS[0], InjectedFault::Fail),
                (other, MOMENTS[0], InjectedFault::Panic),
            ]);
            let expected = [
                Err(Failure::Error(crew.worker_of(one), one)),
                Err(Failure::Panicked(crew.worker_of(other), other)),
            ];
            let found = expected.iter().position(|expected| *expected == result);
            returned[found.expect("one of the two")].add();
            crew.run_well();
        });
    }
    assert!(returned.iter().all(|count| count.get() > 0));
}

#[test]
fn a_request_to_stop_ends_the_step_and_the_next_one_works() {
    let (stopped, done) = (Count::default(), Count::default());
    for given in SCHEDULES {
        let (stopped, done) = (stopped.clone(), done.clone());
        in_many_orders(500, move || {
            let crew = Crew::new(given);
            let stop = StopHandle::new();
            let asks = stop.clone();
            let thread = thread::spawn(move || asks.stop());
            let run = || crew.run(&[], (&stop, None), |_| Ok(()));
            match run() {
                Err(Failure::Stopped) => stopped.add(),
                Ok(()) => done.add(), // the request came too late
                other => panic!("{other:?}"),
            }
            let _ = thread.join();
            // A stop requested before the step ends it at once.
            assert_eq!(run(), Err(Failure::Stopped));
            stop.reset();
            crew.run_well();
        });
    }
    assert!(stopped.get() > 0 && done.get() > 0);
}

#[test]
fn an_error_of_the_callback_ends_the_step_and_the_next_one_works() {
    for given in SCHEDULES {
        for at in 1..=every_action(given).len() {
            in_many_orders(30, move || {
                let crew = Crew::new(given);
                let refuses = |done| (done != at).then_some(()).ok_or(Failure::OnAction);
                let result = crew.run(&[], (&StopHandle::new(), None), refuses);
                assert_eq!(result, Err(Failure::OnAction));
                crew.run_well();
            });
        }
    }
}

/// A job can fail before its first action. What it holds is dropped before the step returns.
#[test]
fn nothing_of_a_step_outlives_it() {
    in_many_orders(1000, || {
        let crew = Crew::new(SCHEDULES[0]);
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
        let (stop, cancel, jobs) = (StopHandle::new(), CancelHandle::new(), jobs.collect());
        let options = options(&stop, &cancel);
        let failed = step(&crew.workers, jobs, options, |_, ()| Ok(()), place);
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
        let crew = Crew::new(SCHEDULES[0]);
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
        let (stop, cancel, jobs) = (StopHandle::new(), CancelHandle::new(), jobs.collect());
        let options = options(&stop, &cancel);
        let failed = step(&crew.workers, jobs, options, |_, _| Ok(()), place);
        assert_eq!(failed, Err(Some((0, Some(0)))));
    });
    assert!(cancelled.get() > 0);
}
