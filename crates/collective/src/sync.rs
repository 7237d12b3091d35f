//! Channels and time: the standard library's, or the model checker's in tests.

use std::time::Duration;

pub(crate) use mpsc::{Receiver, Sender, channel};
#[cfg(test)]
use shuttle::sync::mpsc;
#[cfg(not(test))]
use std::sync::mpsc;

/// The next event; `None` after the limit. The sender must live as long as the receiver.
#[cfg(not(test))]
pub(crate) fn receive<T>(events: &Receiver<T>, limit: Option<Duration>) -> Option<T> {
    match limit {
        Some(limit) => events.recv_timeout(limit).ok(),
        None => events.recv().ok(),
    }
}

/// Time in the model: a limit may pass at any moment.
#[cfg(test)]
pub(crate) fn receive<T>(events: &Receiver<T>, limit: Option<Duration>) -> Option<T> {
    use shuttle::rand::{Rng, thread_rng};

    if limit.is_none() {
        return events.recv().ok();
    }
    loop {
        if let Ok(event) = events.try_recv() {
            return Some(event);
        }
        if thread_rng().gen_ratio(1, 24) {
            return None;
        }
        shuttle::thread::yield_now();
    }
}
