//! Locks, threads and time: the standard library's, or the model checker's in tests. Tests of other crates use
//! the latter through `stovepipe-comm-shuttle`.
//!
//! No other file of this crate may use `std::sync` or `std::thread` for what ranks share, or its code
//! is not checked.

use std::time::Duration;

#[cfg(any(test, feature = "shuttle"))]
pub(crate) use modelled::Deadline;
#[cfg(not(any(test, feature = "shuttle")))]
pub(crate) use real::Deadline;
#[cfg(any(test, feature = "shuttle"))]
use shuttle as threads;
#[cfg(not(any(test, feature = "shuttle")))]
use std as threads;
pub(crate) use threads::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
};

/// Locks. No code panics while it changes guarded data, so a poisoned lock is safe to use.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps until notified or until the deadline; may wake early.
pub(crate) fn wait<'a, T>(
    (mutex, changed): (&'a Mutex<T>, &Condvar),
    guard: MutexGuard<'a, T>,
    deadline: Option<Deadline>,
) -> MutexGuard<'a, T> {
    match deadline {
        Some(deadline) => deadline.wait((mutex, changed), guard),
        None => changed.wait(guard).unwrap_or_else(PoisonError::into_inner),
    }
}

#[cfg(not(any(test, feature = "shuttle")))]
mod real {
    use std::time::Instant;

    use super::{Condvar, Duration, Mutex, MutexGuard, PoisonError};

    /// When a wait ends.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Deadline(Instant);

    impl Deadline {
        pub(crate) fn after(limit: Duration) -> Option<Self> {
            // A limit beyond what the clock can hold is no limit.
            Instant::now().checked_add(limit).map(Self)
        }

        pub(crate) fn has_passed(self) -> bool {
            Instant::now() >= self.0
        }

        pub(super) fn wait<'a, T>(
            self,
            (_, changed): (&'a Mutex<T>, &Condvar),
            guard: MutexGuard<'a, T>,
        ) -> MutexGuard<'a, T> {
            let left = self.0.saturating_duration_since(Instant::now());
            let waited = changed.wait_timeout(guard, left);
            waited.unwrap_or_else(PoisonError::into_inner).0
        }
    }
}

/// Time in the model: a deadline may pass at any moment.
#[cfg(any(test, feature = "shuttle"))]
mod modelled {
    use shuttle::rand::{Rng, thread_rng};

    use super::{Condvar, Duration, Mutex, MutexGuard, lock, thread};

    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Deadline;

    impl Deadline {
        pub(crate) fn after(_: Duration) -> Option<Self> {
            Some(Self)
        }

        pub(crate) fn has_passed(self) -> bool {
            thread_rng().gen_ratio(1, 24)
        }

        /// Wakes early, so that the sleeper checks its deadline.
        pub(super) fn wait<'a, T>(
            self,
            (mutex, _): (&'a Mutex<T>, &Condvar),
            guard: MutexGuard<'a, T>,
        ) -> MutexGuard<'a, T> {
            drop(guard);
            thread::yield_now();
            lock(mutex)
        }
    }
}
