//! How the weights of a stage change within a window.

use burn::{optim::GradientsParams, tensor::Device};
use stovepipe_runtime::{CancelToken, Inbox, Outbox};

use crate::{
    api::error::FailureCause,
    engine::{panic::caught, worker::ActionError},
    model::layer::Layer,
};

/// Makes new layers of old ones and the gradients of a mini-batch, whose number it also gets.
pub(crate) type Change<L> = Box<dyn FnMut(Vec<L>, Vec<GradientsParams>, usize) -> Vec<L> + Send>;

/// The updates of a seat.
pub(crate) struct StageUpdates<L> {
    /// The number of the next one.
    number: usize,
    way: Way<L>,
}

enum Way<L> {
    /// The first seat of a process changes the weights, and gives them to the process's other replicas.
    Own(Change<L>, Vec<Outbox<Vec<L>>>),
    Other(Inbox<Vec<L>>),
}

impl<L: Layer> StageUpdates<L> {
    /// The updates of a stage's seats in this process.
    pub(crate) fn of_seats(change: Change<L>, seats: usize) -> Vec<Self> {
        let (outboxes, inboxes): (Vec<_>, Vec<_>) =
            (1..seats).map(|_| stovepipe_runtime::mailbox()).unzip();
        let ways = std::iter::once(Way::Own(change, outboxes));
        let ways = ways.chain(inboxes.into_iter().map(Way::Other));
        ways.map(|way| Self { number: 0, way }).collect()
    }

    /// The next layers, on the seat's device.
    pub(crate) fn next(
        &mut self,
        layers: Vec<L>,
        gradients: Vec<GradientsParams>,
        (device, cancel): (&Device, &CancelToken),
    ) -> Result<Vec<L>, ActionError> {
        let number = self.number;
        self.number += 1;
        match &mut self.way {
            Way::Own(change, others) => {
                let count = layers.len();
                let changed = caught(|| change(layers, gradients, number));
                let layers = changed.map_err(|panicked| ActionError::Failed(panicked.into()))?;
                if layers.len() != count {
                    let cause = "the update returned another number of layers";
                    return Err(ActionError::Failed(FailureCause::Internal(cause)));
                }
                let flushed = device.flush(); // other threads read them
                flushed.map_err(|error| ActionError::Failed(FailureCause::Device(error.into())))?;
                for other in others {
                    let _ = other.send((number, layers.clone()));
                }
                Ok(layers)
            }
            Way::Other(inbox) => {
                let layers = inbox.receive(number, cancel);
                let layers = layers.map_err(|_| ActionError::Cancelled)?.into_iter();
                Ok(layers.map(|layer| layer.fork(device)).collect())
            }
        }
    }
}
