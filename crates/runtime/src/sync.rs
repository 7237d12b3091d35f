//! Locks, threads and time: the standard library's, or the model checker's in tests. Tests of other crates use
//! the latter through `stovepipe-runtime-shuttle`.
//!
//! No other file of this crate may use `std::sync` or `std::thread`, or its code is not checked.
//! Locks guard all that threads share, except for two flags that are only ever set. So the checker,
//! which does not model weak memory, sees every possible result.

use std::time::Duration;

#[cfg(any(test, feature = "shuttle"))]
pub(crate) use modelled::{Deadline, poll, wait_for};
#[cfg(not(any(test, feature = "shuttle")))]
pub(crate) use real::{Deadline, poll, wait_for};
#[cfg(any(test, feature = "shuttle"))]
use shuttle as threads;
#[cfg(not(any(test, feature = "shuttle")))]
use std as threads;
pub(crate) use threads::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// How long a thread polls before it sleeps.
#[cfg_attr(
    any(test, feature = "shuttle"),
    expect(dead_code, reason = "the model knows no time")
)]
const POLL_TIME: Duration = Duration::from_micros(200);

/// Locks. No code panics while it changes guarded data, so a poisoned lock is safe to use.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(not(any(test, feature = "shuttle")))]
mod real {
    use std::time::Instant;

    use super::{Condvar, Duration, Mutex, MutexGuard, POLL_TIME, PoisonError, thread};

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
    }

    /// Sleeps until notified or until the deadline; may wake early.
    pub(crate) fn wait_for<'a, T>(
        (_, condvar): (&'a Mutex<T>, &Condvar),
        guard: MutexGuard<'a, T>,
        deadline: Deadline,
    ) -> MutexGuard<'a, T> {
        let left = deadline.0.saturating_duration_since(Instant::now());
        let waited = condvar.wait_timeout(guard, left);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Calls `look` again and again for a while.
    pub(crate) fn poll<R>(mut look: impl FnMut() -> Option<R>) -> Option<R> {
        let began = Instant::now();
        while began.elapsed() < POLL_TIME {
            if let seen @ Some(_) = look() {
                return seen;
            }
            // Another thread may need this core.
            thread::yield_now();
        }
        None
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

        /// Rarely enough that many steps end first, often enough that many do not.
        pub(crate) fn has_passed(self) -> bool {
            thread_rng().gen_ratio(1, 24)
        }
    }

    /// Wakes early, so that the sleeper checks its deadline. Sleepers without a deadline do not wake
    /// early: that would hide a lost notification.
    pub(crate) fn wait_for<'a, T>(
        (mutex, _): (&'a Mutex<T>, &Condvar),
        guard: MutexGuard<'a, T>,
        _: Deadline,
    ) -> MutexGuard<'a, T> {
        drop(guard);
        thread::yield_now();
        lock(mutex)
    }

    /// One look is enough: it changes nothing.
    pub(crate) fn poll<R>(look: impl FnOnce() -> Option<R>) -> Option<R> {
        look()
    }
}
