//! Messages between workers, by micro-batch.
//!
//! A message names its micro-batch. One that arrives early is kept until it is asked for, so sender and
//! receiver need not agree on an order. A receiver waits until the message arrives, the sender is dropped,
//! or the step is cancelled. Workers wait for each other in no other way, so a wait is endless only if a
//! worker's own code never returns.

use std::collections::HashMap;

use crate::{
    cancel::CancelToken,
    queue::{Receiver, Sender, queue},
};

/// The sending end of a mailbox.
pub type Outbox<T> = Sender<(usize, T)>;

/// The receiving end of a mailbox.
pub struct Inbox<T> {
    queue: Receiver<(usize, T)>,
    early: HashMap<usize, T>,
}

/// The sender was dropped, or the step was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

/// A mailbox from one worker to another, or to itself; [`step`](crate::step()) has an example.
#[must_use]
pub fn mailbox<T>() -> (Outbox<T>, Inbox<T>) {
    let (outbox, queue) = queue();
    let early = HashMap::new();
    (outbox, Inbox { queue, early })
}

impl<T> Inbox<T> {
    /// Waits for the message of a micro-batch.
    ///
    /// # Errors
    ///
    /// [`Cancelled`], if the message will not arrive.
    pub fn receive(&mut self, micro_batch: usize, cancel: &CancelToken) -> Result<T, Cancelled> {
        loop {
            if let Some(message) = self.early.remove(&micro_batch) {
                return Ok(message);
            }
            let (other, message) = self.queue.receive_unless(cancel).map_err(|_| Cancelled)?;
            self.early.insert(other, message);
        }
    }
}
