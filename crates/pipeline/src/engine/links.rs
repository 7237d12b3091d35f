//! What stages send each other.
//!
//! A boundary between two stages is two mailboxes: values go forward, gradients go back. A stage
//! that fails drops its ends of them, so that its neighbours end too. What goes to another device is
//! taken there by a [carrier](super::carrier).

pub(crate) use stovepipe_runtime::{CancelToken, Cancelled};

pub(crate) use super::transfer::{Inbox, Outbox};
use crate::{
    api::error::TransferKind,
    engine::{
        transfer::TransferThreads,
        values::{self, FlowGradients},
    },
    model::layer::Layer,
};

/// The ends of its boundaries that a stage holds; none where the model begins or ends.
pub(crate) struct Links<L: Layer> {
    pub(crate) values_in: Option<Inbox<L::Flow>>,
    pub(crate) values_out: Option<Outbox<L::Flow>>,
    pub(crate) gradients_in: Option<Inbox<FlowGradients>>,
    pub(crate) gradients_out: Option<Outbox<FlowGradients>>,
}

/// Links `stages` stages into a chain.
pub(crate) fn chain<L: Layer>(stages: usize, transfers: &TransferThreads) -> Vec<Links<L>> {
    let mut links: Vec<_> = (0..stages)
        .map(|_| Links {
            values_in: None,
            values_out: None,
            gradients_in: None,
            gradients_out: None,
        })
        .collect();
    for (from, to) in (1..stages).map(|to| (to - 1, to)) {
        let (values_out, values_in) =
            transfers.mailbox(from, to, TransferKind::Values, values::to_device::<L::Flow>);
        let (gradients_out, gradients_in) =
            transfers.mailbox(to, from, TransferKind::Gradients, FlowGradients::moved_to);
        links[from].values_out = Some(values_out);
        links[to].values_in = Some(values_in);
        links[to].gradients_out = Some(gradients_out);
        links[from].gradients_in = Some(gradients_in);
    }
    links
}
