//! Steps that another thread cancels, at any moment, while workers finish, fail, wait or hang.

use std::time::Duration;

use shuttle::rand::{Rng, thread_rng};
use stovepipe_schedule::Action;

use crate::{
    checks::{
        Count, Gate, in_many_orders,
        schedules::{
            Crew, Failure, FaultAt, InjectedFault, MOMENTS, Moment, SCHEDULES, every_action,
            every_pair,
        },
    },
    mailbox::mailbox,
    step::{Fault, JobContext, JobError, StepOptions, step},
    stop::StopHandle,
    sync::{
        Arc,
        thread::{self, JoinHandle},
    },
};

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

impl Crew {
    /// Cancels a step on another thread, for a reason that is its own number.
    fn cancel_sometime(&self, step: u64, reason: u64) -> JoinHandle<()> {
        let cancel = self.cancel.clone();
        thread::spawn(move || cancel.cancel(step, reason))
    }

    /// The worker that runs `at` cancels the step there.
    fn cancel_in(&self, at: Action, moment: Moment, step: u64, reason: u64) -> FaultAt {
        let cancel = self.cancel.clone();
        let call = move || cancel.cancel(step, reason);
        (at, moment, InjectedFault::Call(Arc::new(call)))
    }
}

fn count_in(at: Action, count: &Count) -> FaultAt {
    let count = count.clone();
    let call = move || count.add();
    (at, Moment::First, InjectedFault::Call(Arc::new(call)))
}

/// The thread may go on into the next steps, which it must not end.
#[test]
fn a_cancellation_at_any_moment_ends_its_step_alone() {
    let (cancelled, done) = (Count::default(), Count::default());
    for given in SCHEDULES {
        let (cancelled, done) = (cancelled.clone(), done.clone());
        in_many_orders(500, move || {
            let crew = Crew::new(given);
            let thread = crew.cancel_sometime(0, 7);
            match crew.run_unlimited(&[]) {
                Err(Failure::Cancelled(7)) => cancelled.add(),
                Ok(()) => done.add(), // the cancellation came too late
                other => panic!("{other:?}"),
            }
            assert!(!crew.is_stuck());
            crew.run_well();
            let _ = thread.join();
            crew.run_well();
            crew.end();
        });
    }
    assert!(cancelled.get() > 0 && done.get() > 0);
}

/// A worker cancels the step, so it is certain to arrive in time. Even if that worker then fails, or the
/// others have ended because of the cancellation, its failure is returned.
#[test]
fn a_cancellation_at_any_action_is_returned_unless_a_worker_fails() {
    for given in SCHEDULES {
        for action in every_action(given) {
            for moment in MOMENTS {
                in_many_orders(10, move || {
                    let crew = Crew::new(given);
                    let cancels = |step| crew.cancel_in(action, moment, step, 7);
                    let result = crew.run_unlimited(&[cancels(0)]);
                    assert_eq!(result, Err(Failure::Cancelled(7)));
                    crew.run_well();
                    let fails = (action, moment, InjectedFault::Fail);
                    let result = crew.run_unlimited(&[cancels(2), fails]);
                    let worker = crew.worker_of(action);
                    assert_eq!(result, Err(Failure::Error(worker, action)));
                    crew.run_well();
                    crew.end();
                });
            }
        }
    }
}

/// A worker fails or panics, while another thread or another worker cancels the step.
#[test]
fn a_failure_takes_precedence_over_a_cancellation() {
    let given = SCHEDULES[3];
    let (failed, cancelled) = (Count::default(), Count::default());
    for (fails, cancels) in every_pair(given) {
        for fault in [InjectedFault::Fail, InjectedFault::Panic] {
            let (failed, cancelled) = (failed.clone(), cancelled.clone());
            in_many_orders(10, move || {
                let crew = Crew::new(given);
                let reached = Count::default();
                let thread = crew.cancel_sometime(0, 7);
                let result = crew.run_unlimited(&[
                    crew.cancel_in(cancels, Moment::Between, 0, 7),
                    count_in(fails, &reached),
                    (fails, Moment::First, fault.clone()),
                ]);
                let expected = match (reached.get(), &fault) {
                    (0, _) => {
                        cancelled.add();
                        Failure::Cancelled(7)
                    }
                    (_, InjectedFault::Panic) => Failure::Panicked(crew.worker_of(fails), fails),
                    _ => {
                        failed.add();
                        Failure::Error(crew.worker_of(fails), fails)
                    }
                };
                assert_eq!(result, Err(expected));
                crew.run_well();
                let _ = thread.join();
            });
        }
    }
    assert!(failed.get() > 0 && cancelled.get() > 0);
}

/// The first reason counts, and both are for one step.
#[test]
fn of_two_cancellations_the_first_counts() {
    let first = [Count::default(), Count::default()];
    for given in SCHEDULES {
        let counts = first.clone();
        in_many_orders(500, move || {
            let crew = Crew::new(given);
            let threads = [0, 1].map(|reason| crew.cancel_sometime(0, reason));
            match crew.run_unlimited(&[]) {
                Err(Failure::Cancelled(reason)) => counts[reason as usize].add(),
                Ok(()) => {}
                other => panic!("{other:?}"),
            }
            crew.run_well();
            let _ = threads.map(JoinHandle::join);
            // From one thread: the first, even if the step sees both at once.
            crew.cancel.cancel(2, 8);
            crew.cancel.cancel(2, 9);
            assert_eq!(crew.run_unlimited(&[]), Err(Failure::Cancelled(8)));
            let last = *every_action(given).last().expect("an action");
            let both = [8, 9].map(|reason| crew.cancel_in(last, Moment::Last, 3, reason));
            assert_eq!(crew.run_unlimited(&both), Err(Failure::Cancelled(8)));
            crew.run_well();
        });
    }
    assert!(first.iter().all(|count| count.get() > 0));
}

/// Steps 0 and 2 run well, whenever it arrives; step 1 ends, also if it has not begun yet.
#[test]
fn a_cancellation_ends_neither_earlier_nor_later_steps() {
    for given in SCHEDULES {
        in_many_orders(300, move || {
            let crew = Crew::new(given);
            let early = crew.cancel_sometime(1, 7);
            crew.run_well();
            let _ = early.join();
            let late = crew.cancel_sometime(0, 8);
            let none = |_| panic!("no action begins");
            let cancelled = crew.run(&[], (&StopHandle::new(), None), none);
            assert_eq!(cancelled, Err(Failure::Cancelled(7)));
            let too_late = crew.cancel_sometime(1, 9);
            crew.run_well();
            let _ = (late.join(), too_late.join());
            crew.run_well();
            crew.end();
        });
    }
}

/// All actions are done, and their workers have ended or will do so without a fault.
#[test]
fn a_cancellation_before_the_step_returns_wins_though_all_workers_succeed() {
    for given in SCHEDULES {
        in_many_orders(300, move || {
            let crew = Crew::new(given);
            let last = every_action(given).len();
            let result = crew.run(&[], (&StopHandle::new(), None), |done| {
                if done == last {
                    crew.cancel.cancel(0, 7);
                }
                Ok(())
            });
            assert_eq!(result, Err(Failure::Cancelled(7)));
            crew.cancel.cancel(0, 7); // it has returned
            crew.run_well();
            crew.end();
        });
    }
}

/// A worker hangs, and the others wait for it: the cancellation ends them, and the limit ends the step.
#[test]
fn a_cancelled_step_with_a_worker_that_hangs_ends_at_its_limit() {
    let counts = [(); 3].map(|()| Count::default());
    for given in SCHEDULES {
        for action in every_action(given) {
            let counts = counts.clone();
            in_many_orders(30, move || {
                let [stalled, given_up, came_back] = &counts;
                let crew = Crew::new(given);
                let (reached, gate) = (Count::default(), Gate::default());
                let thread = crew.cancel_sometime(0, 7);
                let hang = InjectedFault::Hang(reached.clone(), gate.clone());
                let faults = [(action, Moment::Between, hang)];
                match crew.run(&faults, (&StopHandle::new(), LIMIT), |_| Ok(())) {
                    Err(Failure::Stalled) => stalled.add(),
                    Err(Failure::Cancelled(7)) if crew.is_stuck() => given_up.add(),
                    Err(Failure::Cancelled(7)) => came_back.add(),
                    other => panic!("{other:?}"),
                }
                gate.open();
                crew.run_again();
                let _ = thread.join();
                // It was cancelled before it began, so it cannot be called a stall.
                crew.cancel.cancel(crew.next(), 8);
                let cancelled = crew.run(&[], (&StopHandle::new(), LIMIT), |_| Ok(()));
                assert_eq!(cancelled, Err(Failure::Cancelled(8)));
                crew.run_again();
                crew.end();
            });
        }
    }
    assert!(counts.iter().all(|count| count.get() > 0));
}

/// Without a limit, the step waits for a worker that computes, and for none that waits.
#[test]
fn a_cancelled_step_waits_for_a_worker_that_computes() {
    let given = SCHEDULES[3];
    for action in every_action(given) {
        in_many_orders(50, move || {
            let crew = Crew::new(given);
            let (reached, gate) = (Count::default(), Gate::default());
            let hang = InjectedFault::Hang(reached.clone(), gate.clone());
            let cancels = crew.cancel.clone();
            // The action ends only after the cancellation.
            let thread = thread::spawn(move || {
                while reached.get() == 0 {
                    thread::yield_now();
                }
                cancels.cancel(0, 7);
                gate.open();
            });
            let result = crew.run_unlimited(&[(action, Moment::Between, hang)]);
            assert_eq!(result, Err(Failure::Cancelled(7)));
            assert!(!crew.is_stuck());
            let _ = thread.join();
            crew.run_well();
            crew.end();
        });
    }
}

/// The senders are outside of the step, as those of another process: nothing else wakes the workers.
#[test]
fn a_cancellation_wakes_workers_that_wait_for_another_process() {
    in_many_orders(5000, || {
        let crew = Crew::new(SCHEDULES[1]);
        let (outboxes, inboxes): (Vec<_>, Vec<_>) = (0..3).map(|_| mailbox::<()>()).unzip();
        let jobs = inboxes.into_iter().map(|mut inbox| {
            move |context: &mut JobContext<'_, ()>| {
                context.act((), |cancel| {
                    let received = inbox.receive(0, cancel);
                    received.map_err(|_| JobError::<()>::Cancelled)
                })
            }
        });
        let thread = crew.cancel_sometime(0, 7);
        let options = StepOptions {
            stop: &StopHandle::new(),
            cancel: &crew.cancel,
            number: 0,
            stall_timeout: None,
            late_reports: thread_rng().gen_bool(0.5),
        };
        let reason = |fault| match fault {
            Fault::Cancelled(reason) => Some(reason),
            _ => None,
        };
        let result = step(
            &crew.workers,
            jobs.collect(),
            options,
            |_, ()| Ok(()),
            reason,
        );
        assert_eq!(result, Err(Some(7)));
        drop(outboxes);
        let _ = thread.join();
        crew.end();
    });
}
