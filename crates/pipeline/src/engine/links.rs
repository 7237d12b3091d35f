//! What stages send each other.
//!
//! A boundary between two stages is two mailboxes: values go forward, gradients go back. A stage
//! that fails drops its ends of them, so that its neighbours end too.

pub(crate) use stovepipe_crew::{Alarm, CutOff, Inbox, Outbox, mailbox as queue};

use crate::{engine::values::FlowGradients, layer::Layer};

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
