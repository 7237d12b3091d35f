//! The mailboxes between stages.
//!
//! Neighbouring stages have two: values go forward, gradients go back. Where skips go from one stage to
//! another, these have two more. A stage that fails drops its ends, so its neighbours end too.

use std::collections::BTreeSet;

use burn::tensor::Device;

use crate::{
    api::error::TransferKind,
    engine::{
        skips::{SkipGradients, SkipValues, StageSkips},
        transfer::{TransferInbox, TransferOutbox, TransferThreads},
        values::{self, FlowGradients},
    },
    model::layer::Layer,
};

/// The mailboxes of a stage; skips have one per other stage, named by its index.
pub(crate) struct Links<L: Layer> {
    pub(crate) values_in: Option<TransferInbox<L::Flow>>,
    pub(crate) values_out: Option<TransferOutbox<L::Flow>>,
    pub(crate) gradients_in: Option<TransferInbox<FlowGradients>>,
    pub(crate) gradients_out: Option<TransferOutbox<FlowGradients>>,
    pub(crate) skips_in: Vec<(usize, TransferInbox<SkipValues<L::Flow>>)>,
    pub(crate) skips_out: Vec<(usize, TransferOutbox<SkipValues<L::Flow>>)>,
    pub(crate) skip_gradients_in: Vec<(usize, TransferInbox<SkipGradients>)>,
    pub(crate) skip_gradients_out: Vec<(usize, TransferOutbox<SkipGradients>)>,
}

impl<L: Layer> Links<L> {
    fn none() -> Self {
        Self {
            values_in: None,
            values_out: None,
            gradients_in: None,
            gradients_out: None,
            skips_in: Vec::new(),
            skips_out: Vec::new(),
            skip_gradients_in: Vec::new(),
            skip_gradients_out: Vec::new(),
        }
    }

    /// Links all stages. Skips have gradients only if a layer from `trainable_from` on sends them.
    pub(crate) fn of_stages(
        stages: &[StageSkips],
        trainable_from: usize,
        transfers: &TransferThreads,
    ) -> Vec<Self> {
        let mut links: Vec<_> = stages.iter().map(|_| Self::none()).collect();
        for (from, to) in (1..stages.len()).map(|to| (to - 1, to)) {
            let (outbox, inbox) = transfers.mailbox(
                [from, to],
                TransferKind::Values,
                values::to_device::<L::Flow>,
            );
            links[from].values_out = Some(outbox);
            links[to].values_in = Some(inbox);
            let (outbox, inbox) =
                transfers.mailbox([to, from], TransferKind::Gradients, FlowGradients::moved_to);
            links[to].gradients_out = Some(outbox);
            links[from].gradients_in = Some(inbox);
        }
        for (from, stage) in stages.iter().enumerate() {
            let outgoing = stage.outgoing();
            for to in outgoing.iter().map(|&(_, to)| to).collect::<BTreeSet<_>>() {
                let (outbox, inbox) =
                    transfers.mailbox([from, to], TransferKind::Skips, copy_skips::<L>);
                links[from].skips_out.push((to, outbox));
                links[to].skips_in.push((from, inbox));
            }
            let trained = outgoing.iter();
            let trained = trained.filter(|&&(skip, _)| stage.sender(skip) >= trainable_from);
            for to in trained.map(|&(_, to)| to).collect::<BTreeSet<_>>() {
                let (outbox, inbox) =
                    transfers.mailbox([to, from], TransferKind::SkipGradients, copy_gradients);
                links[to].skip_gradients_out.push((from, outbox));
                links[from].skip_gradients_in.push((to, inbox));
            }
        }
        links
    }

    /// Sends skips to the stages that take them.
    pub(crate) fn send_skips(
        &self,
        skips: &StageSkips,
        micro_batch: usize,
        sent: &SkipValues<L::Flow>,
    ) {
        for (to, outbox) in &self.skips_out {
            let own = sent.iter();
            let own = own.filter(|&(&skip, _)| skips.takers_elsewhere(skip).contains(to));
            let message = own.map(|(&skip, value)| (skip, value.clone())).collect();
            outbox.send(micro_batch, message);
        }
    }

    /// Sends the gradients of skips back to the stages that sent these.
    pub(crate) fn send_skip_gradients(
        &self,
        skips: &StageSkips,
        micro_batch: usize,
        mut gradients: SkipGradients,
    ) {
        for (to, outbox) in &self.skip_gradients_out {
            let message = gradients
                .extract_if(|taking, _| skips.stage_of(skips.sender(taking.skip)) == *to)
                .collect();
            outbox.send(micro_batch, message);
        }
    }
}

fn copy_skips<L: Layer>(values: SkipValues<L::Flow>, device: &Device) -> SkipValues<L::Flow> {
    let copy = |(skip, value)| (skip, values::to_device(value, device));
    values.into_iter().map(copy).collect()
}

fn copy_gradients(gradients: SkipGradients, device: &Device) -> SkipGradients {
    let copy = |(taking, gradients): (_, FlowGradients)| (taking, gradients.moved_to(device));
    gradients.into_iter().map(copy).collect()
}
