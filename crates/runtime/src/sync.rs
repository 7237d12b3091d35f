//! Locks, threads and time: the standard library's, and under test the model checker's.
//!
//! Nothing else in this crate may name `std::sync` or `std::thread`, or what it does is not
//! checked. All that threads share lies under a lock but two flags that only ever say "end", so
//! that the checker, which knows no weak memory, sees all that can happen.

use std::time::Duration;

#[cfg(test)]
pub(crate) use modelled::{Deadline, wait_for, watch};
#[cfg(not(test))]
pub(crate) use real::{Deadline, wait_for, watch};
#[cfg(test)]
pub(crate) use shuttle::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};
#[cfg(not(test))]
pub(crate) use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// How long a thread watches before it goes to sleep.
#[cfg_attr(test, expect(dead_code, reason = "the model knows no time"))]
const WATCH: Duration = Duration::from_micros(200);

/// Locks. Nobody leaves what a lock guards half done, so that a panic elsewhere does no harm.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(not(test))]
mod real {
    use std::time::Instant;

    use super::{Condvar, Duration, Mutex, MutexGuard, PoisonError, WATCH, thread};

    /// When a wait is to end.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Deadline(Instant);

    impl Deadline {
        pub(crate) fn after(limit: Duration) -> Option<Self> {
            // A limit that no clock can show is none.
            Instant::now().checked_add(limit).map(Self)
        }

        pub(crate) fn has_passed(self) -> bool {
            Instant::now() >= self.0
        }
    }

    /// Sleeps until it is notified, or the deadline has passed, or for no reason at all.
    pub(crate) fn wait_for<'a, T>(
        (_, condvar): (&'a Mutex<T>, &Condvar),
        guard: MutexGuard<'a, T>,
        deadline: Deadline,
    ) -> MutexGuard<'a, T> {
        let left = deadline.0.saturating_duration_since(Instant::now());
        let (guard, _) = condvar
            .wait_timeout(guard, left)
            .unwrap_or_else(PoisonError::into_inner);
        guard
    }

    /// Looks again and again for a while.
    pub(crate) fn watch<R>(mut look: impl FnMut() -> Option<R>) -> Option<R> {
        let began = Instant::now();
        while began.elapsed() < WATCH {
            let seen = look();
            if seen.is_some() {
                return seen;
            }
            // Another thread may need this core.
            thread::yield_now();
        }
        None
    }
}

/// Time as the checker sees it: whatever is to happen after a while may happen at any moment.
#[cfg(test)]
mod modelled {
    use shuttle::rand::{Rng, thread_rng};

    use super::{Condvar, Duration, Mutex, MutexGuard, lock, thread};

    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Deadline;

    impl Deadline {
        pub(crate) fn after(_: Duration) -> Option<Self> {
            Some(Self)
        }

        /// Seldom enough that many a step ends before, often enough that many do not.
        pub(crate) fn has_passed(self) -> bool {
            thread_rng().gen_ratio(1, 24)
        }
    }

    /// Wakes for no reason at all, so that the sleeper asks whether its time is up. Only sleepers
    /// with a deadline do: to others no lost notification is made up for.
    pub(crate) fn wait_for<'a, T>(
        (mutex, _): (&'a Mutex<T>, &Condvar),
        guard: MutexGuard<'a, T>,
        _: Deadline,
    ) -> MutexGuard<'a, T> {
        drop(guard);
        thread::yield_now();
        lock(mutex)
    }

    /// One look is as good as many: a look changes nothing.
    pub(crate) fn watch<R>(look: impl FnOnce() -> Option<R>) -> Option<R> {
        look()
    }
}
