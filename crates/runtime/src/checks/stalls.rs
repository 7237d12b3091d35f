//! Steps that run into the stall timeout, with and without a worker that hangs.
//!
//! In the model, the timeout may end at any moment, so a step may also be given up without a fault.

use std::time::Duration;

use stovepipe_schedule::Action;

use crate::{
    checks::{
        Count, Gate, in_many_orders,
        schedules::{
            Crew, Failure, FaultAt, InjectedFault, Moment, SCHEDULES, every_action, every_pair,
        },
    },
    stop::StopHandle,
    sync::thread,
};

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

impl Crew {
    fn run_limited(&self, faults: &[FaultAt]) -> Result<(), Failure> {
        self.run(faults, (&StopHandle::new(), LIMIT), |_| Ok(()))
    }

    /// Waits until no worker is stuck, then runs a step.
    pub(super) fn run_again(&self) {
        while self.is_stuck() {
            thread::yield_now();
        }
        self.run_well();
    }

    /// Runs a step in which the worker of `at` hangs.
    fn run_into(&self, at: Action, reached: &Count, gate: &Gate) {
        let hang = InjectedFault::Hang(reached.clone(), gate.clone());
        let result = self.run_limited(&[(at, Moment::Between, hang)]);
        assert_eq!(result, Err(Failure::Stalled));
    }
}

#[test]
fn a_hang_anywhere_stalls_the_step_and_once_it_is_over_the_next_one_works() {
    let (hung, cut_short) = (Count::default(), Count::default());
    for given in SCHEDULES {
        for action in every_action(given) {
            let (hung, cut_short) = (hung.clone(), cut_short.clone());
            in_many_orders(60, move || {
                let crew = Crew::new(given);
                let (reached, gate) = (Count::default(), Gate::default());
                crew.run_into(action, &reached, &gate);
                match reached.get() {
                    // Its job cannot have ended: the workers must not be used.
                    1 => {
                        hung.add();
                        assert!(crew.workers[crew.worker_of(action)].is_stuck());
                    }
                    // The step timed out first; a worker may still be about to hang.
                    _ => cut_short.add(),
                }
                gate.open();
                crew.run_again();
                crew.end();
            });
        }
    }
    assert!(hung.get() > 0 && cut_short.get() > 0);
}

#[test]
fn workers_with_a_stuck_one_can_be_dropped_and_joins_the_others() {
    for given in SCHEDULES {
        for action in every_action(given) {
            in_many_orders(20, move || {
                let crew = Crew::new(given);
                let (reached, gate) = (Count::default(), Gate::default());
                crew.run_into(action, &reached, &gate);
                let free = crew.workers.iter().filter(|worker| !worker.is_stuck());
                let free = free.count();
                drop(crew.workers);
                // Some that were stuck may be back by now.
                assert!(crew.ended.get() >= free);
                gate.open(); // or the checker would find a thread that never ends
            });
        }
    }
}

/// A failure is returned even if another worker hangs and is given up.
#[test]
fn a_failure_is_returned_though_another_worker_hangs() {
    let given = SCHEDULES[2];
    let (failed, stalled) = (Count::default(), Count::default());
    for (fails, hangs) in every_pair(given) {
        let (failed, stalled) = (failed.clone(), stalled.clone());
        in_many_orders(20, move || {
            let crew = Crew::new(given);
            let (reached, gate) = (Count::default(), Gate::default());
            let hang = InjectedFault::Hang(reached.clone(), gate.clone());
            match crew.run_limited(&[
                (fails, Moment::First, InjectedFault::Fail),
                (hangs, Moment::First, hang),
            ]) {
                Err(Failure::Error(worker, action)) => {
                    assert_eq!((worker, action), (crew.worker_of(fails), fails));
                    failed.add();
                }
                // It hung, or the step timed out, before the other failed.
                Err(Failure::Stalled) => stalled.add(),
                other => panic!("{other:?}"),
            }
            assert!(reached.get() == 0 || crew.is_stuck());
            gate.open();
            crew.run_again();
        });
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
            let crew = Crew::new(given);
            match crew.run_limited(&[]) {
                Ok(()) => done.add(),
                Err(Failure::Stalled) => stalled.add(),
                other => panic!("{other:?}"),
            }
            crew.run_again();
            crew.end();
        });
    }
    assert!(done.get() > 0 && stalled.get() > 0);
}
