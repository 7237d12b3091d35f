//! Parks a thread until another thread unparks it.
//!
//! An `unpark` that comes first is remembered, so the order does not matter. Two of them end one
//! wait, and one too many ends a wait early. So a waiting thread checks its condition, parks, and
//! checks again, and the other thread changes the condition before it unparks.

use crate::sync::{Condvar, Deadline, Mutex, PoisonError, lock, wait_for};

#[derive(Debug, Default)]
pub(crate) struct Parker {
    notified: Mutex<bool>,
    changed: Condvar,
}

impl Parker {
    pub(crate) fn unpark(&self) {
        *lock(&self.notified) = true;
        // One thread waits at a parker.
        self.changed.notify_one();
    }

    /// Sleeps until `unpark`; may return early if there is a deadline.
    pub(crate) fn park(&self, deadline: Option<Deadline>) {
        let mut notified = lock(&self.notified);
        match deadline {
            Some(deadline) if !*notified => {
                notified = wait_for((&self.notified, &self.changed), notified, deadline);
            }
            _ => {
                while !*notified {
                    notified =
                        (self.changed.wait(notified)).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
        *notified = false;
    }
}
