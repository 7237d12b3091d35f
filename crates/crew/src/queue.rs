//! A queue from many threads to one.
//!
//! A queue holds all that is sent, so only receiving waits. Messages, the number of senders, and
//! the bell of a receiver that is about to sleep lie under one lock. A receiver that finds nothing
//! leaves its bell there before it lets go of the lock; whoever then sends, or is the last sender
//! to go, finds the bell, takes it and rings it. So what is sent before the look is seen, and what
//! is sent after it rings.
//!
//! A wait can have other ends: the alarm rings the same bell, a deadline ends the sleep by itself.
//! After each look at the queue, the receiver looks whether one of them has come.

use std::collections::VecDeque;

use crate::{
    alarm::Alarm,
    bell::Bell,
    sync::{Arc, Deadline, Mutex, lock, watch},
};

/// The end of a queue that sends.
#[derive(Debug)]
pub struct Sender<T>(Arc<Mutex<State<T>>>);

/// Nobody is there to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

pub(crate) struct Receiver<T> {
    state: Arc<Mutex<State<T>>>,
    /// For waits that no alarm ends.
    bell: Arc<Bell>,
}

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// All senders are gone.
    Gone,
    CalledOff,
    TimeUp,
}

#[derive(Debug)]
struct State<T> {
    messages: VecDeque<T>,
    senders: usize,
    received: bool,
    asleep: Option<Arc<Bell>>,
}

pub(crate) fn queue<T>() -> (Sender<T>, Receiver<T>) {
    let state = Arc::new(Mutex::new(State {
        messages: VecDeque::new(),
        senders: 1,
        received: true,
        asleep: None,
    }));
    let sender = Sender(state.clone());
    let bell = Arc::default();
    (sender, Receiver { state, bell })
}

impl<T> Sender<T> {
    /// Sends a message; never waits.
    ///
    /// # Errors
    ///
    /// [`Gone`], if nobody can receive it any more.
    pub fn send(&self, message: T) -> Result<(), Gone> {
        let mut state = lock(&self.0);
        if !state.received {
            return Err(Gone);
        }
        state.messages.push_back(message);
        let asleep = state.asleep.take();
        drop(state);
        wake(asleep);
        Ok(())
    }

    /// Whether somebody can still receive what is sent.
    #[must_use]
    pub fn is_heard(&self) -> bool {
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

fn wake(asleep: Option<Arc<Bell>>) {
    if let Some(bell) = asleep {
        bell.ring();
    }
}

impl<T> Receiver<T> {
    /// Waits for a message, or the end of all senders.
    pub(crate) fn receive(&self) -> Result<T, Silence> {
        self.sleep(&self.bell, None, || None)
    }

    /// The same, but no longer than until the deadline.
    pub(crate) fn receive_until(&self, deadline: Option<Deadline>) -> Result<T, Silence> {
        self.sleep(&self.bell, deadline, || {
            deadline?.has_passed().then_some(Silence::TimeUp)
        })
    }

    /// The same, but no longer than until the alarm. Watches for a while first: workers wait for
    /// each other shortly and often, and to be woken takes longer than that.
    pub(crate) fn receive_unless(&self, alarm: &Alarm) -> Result<T, Silence> {
        let called_off = || alarm.is_raised().then_some(Silence::CalledOff);
        watch(|| self.take(None).or_else(|| called_off().map(Err)))
            .unwrap_or_else(|| self.sleep(&alarm.bell, None, called_off))
    }

    fn sleep(
        &self,
        bell: &Arc<Bell>,
        deadline: Option<Deadline>,
        ended: impl Fn() -> Option<Silence>,
    ) -> Result<T, Silence> {
        loop {
            if let Some(taken) = self.take(Some(bell)) {
                return taken;
            }
            if let Some(silence) = ended() {
                return Err(silence);
            }
            bell.wait(deadline);
        }
    }

    /// What can be said without a wait; if nothing, leaves the bell of who is about to sleep.
    fn take(&self, asleep: Option<&Arc<Bell>>) -> Option<Result<T, Silence>> {
        let mut state = lock(&self.state);
        let message = state.messages.pop_front();
        match message {
            Some(message) => Some(Ok(message)),
            None if state.senders == 0 => Some(Err(Silence::Gone)),
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
