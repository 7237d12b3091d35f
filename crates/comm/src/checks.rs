//! Ranks under the model checker.
//!
//! A check runs a small program in random orders of its threads, and in ones with few changes of thread.
//! A wait that never ends is found as a deadlock. The seed is fixed, so a check that fails fails again.
#![allow(clippy::unwrap_used)]

mod agreements;

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use shuttle::{
    Config, MaxSteps, Runner,
    scheduler::{PctScheduler, RandomScheduler},
};

use crate::{
    CommError, Communicator, Message, local, local_throttled,
    sync::{Arc, Condvar, Mutex, lock, thread, wait},
};

const SEED: u64 = 7;
/// What each rank does: on each channel it sends two messages to the next rank and two to itself, and it
/// gathers twice.
const PROGRAM: [Step; 4] = [Step::Send(1), Step::Gather, Step::Send(2), Step::Gather];

#[derive(Clone, Copy, Debug)]
enum Step {
    Send(u64),
    Gather,
}

/// What a rank does instead of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Leave,
    Panic,
    Abort,
}

/// The sinks of channels are set after these steps; messages of before are kept for them.
const SINKS: [usize; 2] = [0, 2];

type Events = Arc<Mutex<Vec<Result<Message, CommError>>>>;

/// What happened at one rank.
struct Seen {
    calls: Vec<Result<(), CommError>>,
    /// By channel.
    events: Vec<Vec<Result<Message, CommError>>>,
    /// How many channels have a sink.
    sinks: usize,
}

fn in_many_orders(orders: usize, check: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = 0x2_0000; // panics need space
    config.silence_warnings = true;
    config.max_steps = MaxSteps::FailAfter(100_000);
    let check = std::sync::Arc::new(check);
    let again = check.clone();
    let random = RandomScheduler::new_from_seed(SEED, orders);
    Runner::new(random, config.clone()).run(move || check());
    let few_changes = PctScheduler::new_from_seed(SEED, 4, orders);
    Runner::new(few_changes, config).run(move || again());
}

/// Runs the program on each rank, in a thread each, with faults by rank and step.
fn run(size: usize, limit: Option<Duration>, faults: &[(usize, usize, Fault)]) -> Vec<Seen> {
    run_on(local(size, limit).unwrap(), faults)
}

/// The same over links that take their time.
fn run_slowly(size: usize, faults: &[(usize, usize, Fault)]) -> Vec<Seen> {
    run_on(local_throttled(size, 1, None).unwrap(), faults)
}

fn run_on(ranks: Vec<Communicator>, faults: &[(usize, usize, Fault)]) -> Vec<Seen> {
    let ranks = ranks.into_iter().map(|comm| {
        let at = |rank| move |&&(faulty, ..): &&(usize, usize, Fault)| faulty == rank;
        let fault = faults.iter().find(at(comm.rank()));
        let fault = fault.map(|(_, step, fault)| (*step, *fault));
        thread::spawn(move || run_rank(comm, fault))
    });
    let ranks: Vec<_> = ranks.collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

fn run_rank(comm: Communicator, fault: Option<(usize, Fault)>) -> Seen {
    let events = SINKS.map(|_| Events::default());
    let (mut sinks, mut calls) = (0, Vec::new());
    let seen = |calls, sinks| Seen {
        calls,
        events: events.iter().map(|events| lock(events).clone()).collect(),
        sinks,
    };
    for (index, step) in PROGRAM.into_iter().enumerate() {
        match fault.filter(|(at, _)| *at == index) {
            Some((_, Fault::Leave)) => break,
            Some((_, Fault::Panic)) => {
                let held = AssertUnwindSafe(comm);
                let _ = catch_unwind(move || {
                    let _held = held;
                    resume_unwind(Box::new("on purpose"));
                });
                return seen(calls, sinks);
            }
            Some((_, Fault::Abort)) => comm.abort("on purpose"),
            None => {}
        }
        calls.push(match step {
            Step::Send(tag) => {
                let next = (comm.rank() + 1) % comm.size();
                let mut to = vec![next, comm.rank()];
                to.dedup(); // a single rank
                let channels = |to| [0, 1].map(|channel| (to, channel));
                let mut all = to.into_iter().flat_map(channels);
                all.try_for_each(|(to, channel)| comm.send(to, channel, tag, vec![vec![0]]))
            }
            Step::Gather => {
                let values = comm.all_gather(vec![index as u8, comm.rank() as u8]);
                let all = |rank| vec![index as u8, rank as u8];
                values.map(|values| assert!((0..comm.size()).map(all).eq(values)))
            }
        });
        if let Some(channel) = SINKS.iter().position(|step| *step == index) {
            let sink = events[channel].clone();
            comm.set_sink(channel as u32, move |event| lock(&sink).push(event));
            sinks += 1;
        }
    }
    drop(comm);
    seen(calls, sinks)
}

impl Seen {
    /// The first failure is returned by all later calls; each sender's messages are a first part of
    /// what it sends on a channel; a failure is told last, and each channel is told all errors.
    fn check(&self) {
        let failed = self.calls.iter().skip_while(|call| call.is_ok());
        let failed: Vec<_> = failed.collect();
        assert!(failed.iter().all(|call| *call == failed[0]), "{failed:?}");
        for (channel, events) in self.events.iter().enumerate().take(self.sinks) {
            for from in 0..3 {
                let messages = events.iter().flatten();
                let messages = messages.filter(|message| message.from == from);
                let seen: Vec<_> = messages.map(|m| (m.channel as usize, m.tag)).collect();
                assert!([(channel, 1), (channel, 2)].starts_with(&seen), "{seen:?}");
            }
            let is_failure = |event: &_| matches!(event, Err(CommError::Aborted { .. }));
            let told = events.iter().position(is_failure);
            assert!(told.is_none_or(|told| told + 1 == events.len()));
            assert!(errors(events).eq(errors(&self.events[0])));
        }
    }

    fn errors(&self) -> impl Iterator<Item = &CommError> {
        self.calls.iter().filter_map(|call| call.as_ref().err())
    }

    fn received(&self) -> usize {
        self.events.iter().flatten().flatten().count()
    }
}

fn errors(events: &[Result<Message, CommError>]) -> impl Iterator<Item = &CommError> {
    events.iter().filter_map(|event| event.as_ref().err())
}

#[test]
fn messages_arrive_once_and_in_order_and_values_in_rank_order() {
    for size in 1..4 {
        in_many_orders(1000, move || {
            for seen in run(size, None, &[])
                .into_iter()
                .chain(run_slowly(size, &[]))
            {
                seen.check();
                assert_eq!(seen.errors().next(), None);
                assert_eq!(seen.received(), if size == 1 { 4 } else { 8 });
            }
        });
    }
}

/// A rank that is gone fails what needs it, and nothing waits for it.
#[test]
fn a_rank_can_leave_at_any_point() {
    for (faulty, at) in every_step() {
        in_many_orders(200, move || {
            let faults = [(faulty, at, Fault::Leave)];
            for ranks in [run(3, None, &faults), run_slowly(3, &faults)] {
                ranks.iter().for_each(Seen::check);
                for error in ranks.iter().flat_map(Seen::errors) {
                    assert!(error.to_string().contains(&format!("rank {faulty} on")));
                }
                let others = (0..3).filter(|rank| *rank != faulty);
                // The last gather needs all ranks.
                assert!(others.into_iter().all(|rank| ranks[rank].calls[3].is_err()));
            }
        });
    }
}

/// In every pair of steps, in every order: the job ends, and each rank knows one reason.
#[test]
fn two_ranks_can_fail_at_any_points() {
    let kinds = [Fault::Leave, Fault::Abort, Fault::Panic];
    for (one, first) in every_step() {
        for (other, second) in every_step().filter(|(other, _)| *other > one) {
            for (a, b) in kinds.into_iter().flat_map(|a| kinds.map(|b| (a, b))) {
                in_many_orders(8, move || {
                    let ranks = run(3, None, &[(one, first, a), (other, second, b)]);
                    ranks.iter().for_each(Seen::check);
                    let third = 3 - one - other;
                    assert!(ranks[third].calls[3].is_err());
                });
            }
        }
    }
}

/// The limit may end at any moment, at several ranks at once.
#[test]
fn a_gather_that_takes_too_long_ends_the_job_everywhere() {
    let (done, late) = (Count::default(), Count::default());
    let (dones, lates) = (done.clone(), late.clone());
    in_many_orders(3000, move || {
        let ranks = run(3, Some(Duration::from_secs(1)), &[]);
        ranks.iter().for_each(Seen::check);
        let errors: Vec<_> = ranks.iter().flat_map(Seen::errors).collect();
        match errors.first() {
            None => dones.add(),
            // Ranks that were done before have no error.
            Some(_) => {
                let is_missing = |error: &&CommError| matches!(error, CommError::Missing { .. });
                assert!(errors.iter().any(is_missing));
                lates.add();
            }
        }
    });
    assert!(done.get() > 0 && late.get() > 0);
}

#[test]
fn a_sink_that_panics_ends_the_job() {
    in_many_orders(1000, || {
        let [zero, one]: [_; 2] = local(2, None).unwrap().try_into().ok().unwrap();
        one.set_sink(0, |_| resume_unwind(Box::new("on purpose")));
        zero.send(1, 0, 0, Vec::new()).unwrap();
        let error = zero.all_gather(Vec::new()).unwrap_err();
        assert!(error.to_string().starts_with("rank 1 on localhost aborted"));
        assert!(one.all_gather(Vec::new()).is_err());
    });
}

/// Gathers of several threads of a rank have one order.
#[test]
fn threads_of_a_rank_share_a_communicator() {
    in_many_orders(1000, || {
        let [zero, one]: [_; 2] = local(2, None).unwrap().try_into().ok().unwrap();
        let zero = Arc::new(zero);
        let gathers = [1, 2].map(|value| {
            let zero = zero.clone();
            thread::spawn(move || zero.all_gather(vec![value]).unwrap())
        });
        let mut seen = [(); 2].map(|()| one.all_gather(Vec::new()).unwrap()[0][0]);
        seen.sort_unstable();
        assert_eq!(seen, [1, 2]);
        for gather in gathers {
            assert_eq!(gather.join().unwrap()[1], []);
        }
    });
}

fn every_step() -> impl Iterator<Item = (usize, usize)> {
    (0..3).flat_map(|rank| (0..PROGRAM.len()).map(move |step| (rank, step)))
}

/// Blocks a thread until it is opened.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        *lock(&self.0.0) = true;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let mut open = lock(&self.0.0);
        while !*open {
            open = wait((&self.0.0, &self.0.1), open, None);
        }
    }
}

/// Counts over all orders.
#[derive(Clone, Default)]
struct Count(std::sync::Arc<AtomicUsize>);

impl Count {
    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
