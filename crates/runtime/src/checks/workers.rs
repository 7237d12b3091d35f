//! Workers: their jobs, their end, and jobs that do not end.

use std::{io, time::Duration};

use crate::{
    checks::{Count, Gate, in_all_orders, in_many_orders, panic_quietly},
    queue::queue,
    sync::thread,
    worker::Worker,
};

type Job = Box<dyn FnOnce() + Send>;

/// A worker that counts when its thread is about to end.
pub(super) fn worker(ended: &Count) -> Worker {
    let kept = ended.on_drop();
    let surround = move |serve: Job| {
        serve();
        drop(kept);
        Ok(())
    };
    Worker::spawn_in("worker", surround).expect("the model has threads")
}

#[test]
fn jobs_run_in_order_and_a_panic_ends_a_job_alone() {
    in_many_orders(5000, || {
        let ended = Count::default();
        let worker = worker(&ended);
        let (sender, receiver) = queue();
        for index in 0..3 {
            let sender = sender.clone();
            assert!(worker.run(move || {
                let _ = sender.send(index);
                panic_quietly();
            }));
        }
        drop(sender);
        assert_eq!([(); 3].map(|()| receiver.receive()), [Ok(0), Ok(1), Ok(2)]);
        assert!(receiver.receive().is_err());
        drop(worker);
        assert_eq!(ended.get(), 1);
    });
}

#[test]
fn a_worker_without_a_job() {
    in_many_orders(20_000, || {
        let ended = Count::default();
        drop(worker(&ended));
        assert_eq!(ended.get(), 1);
    });
}

#[test]
fn to_drop_a_worker_waits_for_its_job_and_its_thread() {
    in_many_orders(20_000, || {
        let (ended, done) = (Count::default(), Count::default());
        let worker = worker(&ended);
        let job = done.on_drop();
        worker.run(move || drop(job));
        drop(worker);
        assert_eq!((done.get(), ended.get()), (1, 1));
    });
}

#[test]
fn a_worker_that_cannot_be_set_up_is_an_error() {
    let check = |surround: fn(Job) -> io::Result<()>, expected| {
        in_all_orders(move || {
            let error = Worker::spawn_in("worker", surround).err();
            assert_eq!(
                error.map(|error| error.to_string()).as_deref(),
                Some(expected)
            );
            // The checker would report a panic of the set-up itself.
        });
    };
    check(|_| Err(io::Error::other("no pool")), "no pool");
    check(|_| Ok(()), "the thread ended during set-up");
}

#[test]
fn a_stuck_worker_is_let_go_and_ends_by_itself() {
    in_many_orders(20_000, || {
        let (ended, gate) = (Count::default(), Gate::default());
        let worker = worker(&ended);
        let inside = gate.clone();
        worker.run(move || inside.pass());
        worker.give_up();
        assert!(worker.is_stuck());
        drop(worker);
        assert_eq!(ended.get(), 0);
        gate.open(); // or the checker reports a thread that never ends
    });
}

/// It may be given up just as its job ends.
#[test]
fn a_worker_that_is_back_is_not_stuck_and_is_joined() {
    in_many_orders(5000, || {
        let (ended, gate) = (Count::default(), Gate::default());
        let worker = worker(&ended);
        let inside = gate.clone();
        worker.run(move || inside.pass());
        let opens = thread::spawn(move || gate.open());
        worker.give_up();
        while worker.is_stuck() {
            thread::yield_now();
        }
        // Another job, which was not given up, and a drop while it runs.
        let done = Count::default();
        let job = done.on_drop();
        worker.run(move || drop(job));
        assert!(!worker.is_stuck());
        drop(worker);
        assert_eq!((done.get(), ended.get()), (1, 1));
        let _ = opens.join();
    });
}

#[test]
fn settling_waits_for_all_jobs() {
    in_many_orders(5000, || {
        let worker = worker(&Count::default());
        let done = Count::default();
        for _ in 0..2 {
            let job = done.on_drop();
            worker.run(move || {
                drop(job);
                panic_quietly();
            });
        }
        worker.settle(None);
        assert_eq!(done.get(), 2);
        assert!(!worker.is_stuck());
    });
}

/// The limit may end at any moment, also together with the job.
#[test]
fn settling_ends_at_its_limit_and_a_stuck_worker_comes_back() {
    in_many_orders(5000, || {
        let (ended, gate) = (Count::default(), Gate::default());
        let worker = worker(&ended);
        let inside = gate.clone();
        worker.run(move || inside.pass());
        worker.settle(Some(Duration::from_secs(1)));
        assert!(worker.is_stuck());
        gate.open();
        worker.settle(None);
        assert!(!worker.is_stuck());
        drop(worker);
        assert_eq!(ended.get(), 1);
    });
}
