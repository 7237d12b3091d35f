//! A queue from many threads to one.
//!
//! A queue holds all that is sent, so only receiving waits. Messages, the number of senders, and
//! the parker of a receiver that is about to sleep lie under one lock. A receiver that finds nothing
//! leaves its parker there before it lets go of the lock; whoever then sends, or is the last sender
//! to go, finds the parker, takes it and rings it. So what is sent before the look is seen, and what
//! is sent after it rings.
//!
//! A wait can have other ends: the cancel rings the same parker, a deadline ends the sleep by itself.
//! After each look at the queue, the receiver looks whether one of them has come.

use std::collections::VecDeque;

use crate::{
    cancel::CancelToken,
    parker::Parker,
    sync::{Arc, Deadline, Mutex, lock, watch},
};

/// The end of a queue that sends.
#[derive(Debug)]
pub struct Sender<T>(Arc<Mutex<State<T>>>);

/// Nobody is there to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnected;

pub(crate) struct Receiver<T> {
    state: Arc<Mutex<State<T>>>,
    /// For waits that no cancel ends.
    parker: Arc<Parker>,
}

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveError {
    /// All senders are gone.
    Disconnected,
    Cancelled,
    TimedOut,
}

#[derive(Debug)]
struct State<T> {
    messages: VecDeque<T>,
    senders: usize,
    received: bool,
    asleep: Option<Arc<Parker>>,
}

pub(crate) fn queue<T>() -> (Sender<T>, Receiver<T>) {
    let state = Arc::new(Mutex::new(State {
        messages: VecDeque::new(),
        senders: 1,
        received: true,
        asleep: None,
    }));
    let sender = Sender(state.clone());
    let parker = Arc::default();
    (sender, Receiver { state, parker })
}

impl<T> Sender<T> {
    /// Sends a message; never waits.
    ///
    /// # Errors
    ///
    /// [`Disconnected`], if nobody can receive it any more.
    pub fn send(&self, message: T) -> Result<(), Disconnected> {
        let mut state = lock(&self.0);
        if !state.received {
            return Err(Disconnected);
        }
        state.messages.push_back(message);
        let asleep = state.asleep.take();
        drop(state);
        wake(asleep);
        Ok(())
    }

    /// Whether somebody can still receive what is sent.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        lock(&self.0).received
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        lock(&self.0).senders += 1;
        Self(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.senders -= 1;
        let asleep = match state.senders {
            0 => state.asleep.take(),
            _ => None,
        };
        drop(state);
        wake(asleep);
    }
}

fn wake(asleep: Option<Arc<Parker>>) {
    if let Some(parker) = asleep {
        parker.unpark();
    }
}

impl<T> Receiver<T> {
    /// Waits for a message, or the end of all senders.
    pub(crate) fn receive(&self) -> Result<T, ReceiveError> {
        self.sleep(&self.parker, None, || None)
    }

    /// The same, but no longer than until the deadline.
    pub(crate) fn receive_until(&self, deadline: Option<Deadline>) -> Result<T, ReceiveError> {
        self.sleep(&self.parker, deadline, || {
            deadline?.has_passed().then_some(ReceiveError::TimedOut)
        })
    }

    /// The same, but no longer than until the cancel. Watches for a while first: workers wait for
    /// each other shortly and often, and to be woken takes longer than that.
    pub(crate) fn receive_unless(&self, cancel: &CancelToken) -> Result<T, ReceiveError> {
        let called_off = || cancel.is_cancelled().then_some(ReceiveError::Cancelled);
        watch(|| self.take(None).or_else(|| called_off().map(Err)))
            .unwrap_or_else(|| self.sleep(&cancel.parker, None, called_off))
    }

    fn sleep(
        &self,
        parker: &Arc<Parker>,
        deadline: Option<Deadline>,
        ended: impl Fn() -> Option<ReceiveError>,
    ) -> Result<T, ReceiveError> {
        loop {
            if let Some(taken) = self.take(Some(parker)) {
                return taken;
            }
            if let Some(silence) = ended() {
                return Err(silence);
            }
            parker.park(deadline);
        }
    }

    /// What can be said without a wait; if nothing, leaves the parker of who is about to sleep.
    fn take(&self, asleep: Option<&Arc<Parker>>) -> Option<Result<T, ReceiveError>> {
        let mut state = lock(&self.state);
        let message = state.messages.pop_front();
        match message {
            Some(message) => Some(Ok(message)),
            None if state.senders == 0 => Some(Err(ReceiveError::Disconnected)),
            None => {
                state.asleep = asleep.cloned();
                None
            }
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        state.received = false;
        let unread = std::mem::take(&mut state.messages);
        drop(state);
        // Not under the lock: to drop a message may take its time, or send one.
        drop(unread);
    }
}
