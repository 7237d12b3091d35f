//! How what a stage sends reaches the seats of another.

use std::sync::Arc;

use burn::tensor::Device;
use stovepipe_runtime as runtime;

use crate::{
    api::error::FailureCause,
    engine::{
        message::{Arrived, Inbox, Message, Queue},
        post::{Address, Post},
        processes::Processes,
        seats::Seat,
        transfer::{TransferThread, TransferThreads},
    },
};

/// The sending end of a seat, to all seats of another stage.
pub(crate) struct Outbox<M> {
    /// The sender's device.
    device: Device,
    /// To each seat of the other stage.
    routes: Vec<Route<M>>,
    /// The seat that takes each micro-batch.
    turns: Arc<[usize]>,
}

/// To one seat.
struct Route<M> {
    queue: Queue<M>,
    address: Address,
    way: Way,
}

enum Way {
    /// Within a device.
    HandedOver,
    /// To another device.
    Copied(Arc<TransferThread>),
    /// To this process.
    Posted(Arc<Post>, usize),
}

/// Mailboxes from all seats of a stage to all of another: an outbox for each sender, an inbox for each
/// receiver. `turns` says which receiver takes each micro-batch.
pub(crate) fn mailboxes<M: Message>(
    from: &[Seat],
    to: &[Seat],
    turns: &Arc<[usize]>,
    (transfers, processes): (&TransferThreads, &Processes),
) -> (Vec<Outbox<M>>, Vec<Inbox<M>>) {
    let (queues, inboxes): (Vec<_>, Vec<_>) = to.iter().map(|_| runtime::mailbox()).unzip();
    for (receiver, queue) in to.iter().zip(&queues) {
        for sender in from {
            processes.expect([sender, receiver], queue);
        }
    }
    let outbox = |sender: &Seat| {
        let route = |(receiver, queue): (&Seat, &Queue<M>)| Route {
            queue: queue.clone(),
            address: Address::of::<M>(sender, receiver),
            way: match (
                processes.post_to(receiver),
                transfers.between(sender, receiver),
            ) {
                (Some((post, process)), _) => Way::Posted(post, process),
                (None, Some(thread)) => Way::Copied(thread),
                (None, None) => Way::HandedOver,
            },
        };
        Outbox {
            device: transfers.device_of(sender).clone(),
            routes: to.iter().zip(&queues).map(route).collect(),
            turns: turns.clone(),
        }
    };
    (from.iter().map(outbox).collect(), inboxes)
}

impl<M: Message> Outbox<M> {
    /// Sends a message; never waits. If the receiver is dropped, it has failed and reports that
    /// itself.
    pub(crate) fn send(&self, micro_batch: usize, message: M) {
        let Route {
            queue,
            address,
            way,
        } = &self.routes[self.turns[micro_batch]];
        let message = match self.device.flush() {
            Ok(()) => Ok(message),
            Err(error) => Err(FailureCause::Device(error.into())),
        };
        match (way, message) {
            (Way::Copied(thread), Ok(message)) => {
                thread.send(address.stages, micro_batch, message, queue.clone());
            }
            (Way::Posted(post, process), message) => {
                post.send(*process, *address, micro_batch, message);
            }
            (_, message) => {
                let _ = queue.send((micro_batch, message.map(Arrived::Here)));
            }
        }
    }
}
