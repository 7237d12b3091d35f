//! What stages send each other.
//!
//! A boundary between two stages is two queues: values go forward, gradients go back. Queues hold
//! all that is sent, so only receiving blocks. A message says which micro-batch it is for, and one
//! that comes before its turn is kept: schedules need not agree on an order.
//!
//! How a wait ends: the message comes; the sender is gone, because its stage failed or stopped,
//! and with it its end of the queue; or the step is called off, which drops the `alarm` that every
//! wait also listens to and every action is preceded by a look at. There is no other way to wait, so
//! nothing waits for ever unless a layer itself does not return. A wait begins by watching the
//! queue, and goes to sleep only after a while.

use std::{
    collections::HashMap,
    convert::Infallible,
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, TryRecvError, select, unbounded};

use crate::{engine::values::FlowGradients, layer::Layer};

/// How long a wait goes on before the thread goes to sleep.
const WATCH: Duration = Duration::from_micros(200);

/// One end of the queue that receives.
pub(crate) struct Inbox<T> {
    queue: Receiver<(usize, T)>,
    early: HashMap<usize, T>,
}

/// The stage that should have sent is gone, or the step was called off.
pub(crate) struct CutOff;

/// Listened to by every wait. Nothing is ever sent; it disconnects when the step is called off.
pub(crate) type Alarm = Receiver<Infallible>;

/// Whether the step was called off.
pub(crate) fn is_raised(alarm: &Alarm) -> bool {
    matches!(alarm.try_recv(), Err(TryRecvError::Disconnected))
}

impl<T> Inbox<T> {
    /// Waits for the message of a micro-batch.
    pub(crate) fn receive(&mut self, micro_batch: usize, alarm: &Alarm) -> Result<T, CutOff> {
        loop {
            if let Some(message) = self.early.remove(&micro_batch) {
                return Ok(message);
            }
            let (other, message) = match self.watch(alarm)? {
                Some(message) => message,
                None => select! {
                    recv(self.queue) -> message => message.map_err(|_| CutOff)?,
                    recv(alarm) -> _ => return Err(CutOff),
                },
            };
            self.early.insert(other, message);
        }
    }

    /// Watches for a message for a while without going to sleep. Balanced stages wait for each other
    /// shortly and often, and to be woken takes longer than that.
    fn watch(&self, alarm: &Alarm) -> Result<Option<(usize, T)>, CutOff> {
        let began = Instant::now();
        while began.elapsed() < WATCH {
            match self.queue.try_recv() {
                Ok(message) => return Ok(Some(message)),
                Err(TryRecvError::Disconnected) => return Err(CutOff),
                Err(TryRecvError::Empty) if is_raised(alarm) => return Err(CutOff),
                // Another stage may need this core.
                Err(TryRecvError::Empty) => thread::yield_now(),
            }
        }
        Ok(None)
    }
}

pub(crate) type Outbox<T> = Sender<(usize, T)>;

pub(crate) fn queue<T>() -> (Outbox<T>, Inbox<T>) {
    let (sender, queue) = unbounded();
    let early = HashMap::new();
    (sender, Inbox { queue, early })
}

/// The ends of its boundaries that a stage holds; none where the model begins or ends.
pub(crate) struct Links<L: Layer> {
    pub(crate) values_in: Option<Inbox<L::Flow>>,
    pub(crate) values_out: Option<Outbox<L::Flow>>,
    pub(crate) gradients_in: Option<Inbox<FlowGradients>>,
    pub(crate) gradients_out: Option<Outbox<FlowGradients>>,
}

/// Links `stages` stages into a chain.
pub(crate) fn chain<L: Layer>(stages: usize) -> Vec<Links<L>> {
    let mut links: Vec<_> = (0..stages)
        .map(|_| Links {
            values_in: None,
            values_out: None,
            gradients_in: None,
            gradients_out: None,
        })
        .collect();
    for boundary in 1..stages {
        let (values_out, values_in) = queue();
        let (gradients_out, gradients_in) = queue();
        links[boundary - 1].values_out = Some(values_out);
        links[boundary].values_in = Some(values_in);
        links[boundary].gradients_out = Some(gradients_out);
        links[boundary - 1].gradients_in = Some(gradients_in);
    }
    links
}
