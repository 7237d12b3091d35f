//! A queue from many threads to one.
//!
//! A queue has no limit, so only receiving waits. One lock guards the messages, the number of senders, and
//! the parker of a receiver that is about to sleep. A receiver that finds no message stores its parker there
//! before it releases the lock. The next sender, or the last one to be dropped, takes the parker and unparks
//! it. So the receiver sees what was sent before it looked, and is woken by what is sent afterwards. A
//! cancelled step unparks the same parker, and a deadline ends the sleep by itself.

use std::collections::VecDeque;

use crate::{
    cancel::CancelToken,
    parker::Parker,
    sync::{Arc, Deadline, Mutex, lock, poll},
};

/// The sending end of a queue.
#[derive(Debug)]
pub struct Sender<T>(Arc<Mutex<State<T>>>);

/// The receiver was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnected;

pub(crate) struct Receiver<T> {
    state: Arc<Mutex<State<T>>>,
    /// For waits that cannot be cancelled.
    parker: Arc<Parker>,
}

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveError {
    /// All senders were dropped.
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
    /// [`Disconnected`], if the receiver was dropped.
    pub fn send(&self, message: T) -> Result<(), Disconnected> {
        let mut state = lock(&self.0);
        if !state.received {
            return Err(Disconnected);
        }
        state.messages.push_back(message);
        let asleep = state.asleep.take();
        drop(state);
        asleep.iter().for_each(|parker| parker.unpark());
        Ok(())
    }

    /// Sends a message, but does not wake the receiver for it.
    pub(crate) fn send_quietly(&self, message: T) {
        let mut state = lock(&self.0);
        if state.received {
            state.messages.push_back(message);
        }
    }

    /// Whether the receiver still exists.
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
        let is_last = state.senders == 0;
        let asleep = state.asleep.take_if(|_| is_last);
        drop(state);
        asleep.iter().for_each(|parker| parker.unpark());
    }
}

impl<T> Receiver<T> {
    /// Waits for a message, or until all senders are dropped.
    pub(crate) fn receive(&self) -> Result<T, ReceiveError> {
        self.sleep(&self.parker, None, || None)
    }

    /// The same, but no longer than until the deadline.
    pub(crate) fn receive_until(&self, deadline: Option<Deadline>) -> Result<T, ReceiveError> {
        self.sleep(&self.parker, deadline, || {
            deadline?.has_passed().then_some(ReceiveError::TimedOut)
        })
    }

    /// The same, but no longer than until the step is cancelled. Polls for a while before it sleeps:
    /// workers wait often and briefly, and waking up takes longer than that.
    pub(crate) fn receive_unless(&self, cancel: &CancelToken) -> Result<T, ReceiveError> {
        let cancelled = || cancel.is_cancelled().then_some(ReceiveError::Cancelled);
        poll(|| self.take(None).or_else(|| cancelled().map(Err)))
            .unwrap_or_else(|| self.sleep(&cancel.parker, None, cancelled))
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
            if let Some(error) = ended() {
                return Err(error);
            }
            parker.park(deadline);
        }
    }

    /// A message or the end of all senders, without a wait. If there is neither, stores the parker of
    /// the receiver that is about to sleep.
    fn take(&self, asleep: Option<&Arc<Parker>>) -> Option<Result<T, ReceiveError>> {
        let mut state = lock(&self.state);
        match state.messages.pop_front() {
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
        // Not under the lock: dropping a message may take long, or send another one.
        drop(unread);
    }
}
