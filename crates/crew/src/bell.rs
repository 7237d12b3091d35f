//! What a thread sleeps by.
//!
//! A bell that is rung stays rung until somebody has waited for it: it does not matter whether the
//! ring or the wait comes first. One that is rung twice ends one wait; one that is rung too often
//! ends a wait too early. So whoever waits looks, waits, and looks again, and whoever rings first
//! changes what is looked at.

use crate::sync::{Condvar, Deadline, Mutex, PoisonError, lock, wait_for};

#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    pub(crate) fn ring(&self) {
        *lock(&self.rung) = true;
        // A bell has one listener.
        self.changed.notify_one();
    }

    /// Sleeps until the bell is rung, or perhaps not as long if there is a deadline.
    pub(crate) fn wait(&self, deadline: Option<Deadline>) {
        let mut rung = lock(&self.rung);
        match deadline {
            Some(deadline) if !*rung => {
                rung = wait_for((&self.rung, &self.changed), rung, deadline);
            }
            _ => {
                while !*rung {
                    rung = (self.changed.wait(rung)).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
        *rung = false;
    }
}
