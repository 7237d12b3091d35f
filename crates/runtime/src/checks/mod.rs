//! The protocol under the model checker.
//!
//! A check is a small program with threads. The checker runs it in all orders of its threads, or,
//! where those are too many, in random ones and in ones with few changes of thread. A program that
//! never ends is found as a deadlock or as too many steps. The seed is fixed, so a check that fails
//! fails again, and the checker prints the order.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cancellations;
mod queues;
mod schedules;
mod stalls;
mod steps;
mod workers;

use std::sync::atomic::{AtomicUsize, Ordering};

use shuttle::{
    Config, MaxSteps, Runner,
    scheduler::{DfsScheduler, PctScheduler, RandomScheduler},
};

use crate::sync::{Arc, Condvar, Mutex, PoisonError, lock};

const SEED: u64 = 7;

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 0x2_0000; // panics need space
    // It takes all memory accesses as sequential; see `sync`.
    config.silence_warnings = true;
    config.max_steps = MaxSteps::FailAfter(100_000);
    config
}

/// Runs a check in all orders. Returns their number.
fn in_all_orders(check: impl Fn() + Send + Sync + 'static) -> usize {
    Runner::new(DfsScheduler::new(None, false), config()).run(check)
}

/// Runs a check in `orders` random orders, and in as many with few changes of thread.
fn in_many_orders(orders: usize, check: impl Fn() + Send + Sync + 'static) {
    let check = std::sync::Arc::new(check);
    let again = check.clone();
    let random = RandomScheduler::new_from_seed(SEED, orders);
    Runner::new(random, config()).run(move || check());
    let few_changes = PctScheduler::new_from_seed(SEED, 4, orders);
    Runner::new(few_changes, config()).run(move || again());
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
            open = self.0.1.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Counts drops or events, over all orders.
#[derive(Clone, Default)]
struct Count(std::sync::Arc<AtomicUsize>);

impl Count {
    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts when it is dropped.
    fn on_drop(&self) -> CountsDrop {
        CountsDrop(self.clone())
    }
}

struct CountsDrop(Count);

impl Drop for CountsDrop {
    fn drop(&mut self) {
        self.0.add();
    }
}

/// A deliberate panic, which prints nothing.
fn panic_quietly() -> ! {
    std::panic::resume_unwind(Box::new("on purpose"))
}
