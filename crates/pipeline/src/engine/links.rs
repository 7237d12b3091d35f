//! The mailboxes between stages.
//!
//! Neighbouring stages have two: values go forward, gradients go back. Where skips go from one stage to
//! another, these have two more. A stage that fails drops its ends, so its neighbours end too.

use std::collections::BTreeSet;

use crate::{
    engine::{
        message::Inbox,
        processes::Processes,
        routes::{Outbox, mailboxes},
        seats::{Seats, Turns},
        skips::{SkipGradients, SkipValues, StageSkips},
        transfer::TransferThreads,
        values::FlowGradients,
    },
    model::layer::Layer,
};

/// The mailboxes of a seat; skips have one per other stage, named by its index.
pub(crate) struct Links<L: Layer> {
    pub(crate) values_in: Option<Inbox<L::Flow>>,
    pub(crate) values_out: Option<Outbox<L::Flow>>,
    pub(crate) gradients_in: Option<Inbox<FlowGradients>>,
    pub(crate) gradients_out: Option<Outbox<FlowGradients>>,
    pub(crate) skips_in: Vec<(usize, Inbox<SkipValues<L::Flow>>)>,
    pub(crate) skips_out: Vec<(usize, Outbox<SkipValues<L::Flow>>)>,
    pub(crate) skip_gradients_in: Vec<(usize, Inbox<SkipGradients>)>,
    pub(crate) skip_gradients_out: Vec<(usize, Outbox<SkipGradients>)>,
}

impl<L: Layer> Links<L> {
    /// Links all seats, in the order of their stages. Skips have gradients only if a layer from
    /// `trainable_from` on sends them.
    pub(crate) fn of_seats(
        (seats, turns): (&Seats, &Turns),
        skips: &[StageSkips],
        trainable_from: usize,
        ways: (&TransferThreads, &Processes),
    ) -> Vec<Self> {
        let mut links: Vec<Vec<Self>> = (0..seats.stages())
            .map(|stage| seats.of_stage(stage).iter().map(|_| Self::none()).collect())
            .collect();
        let of = |stage: usize| seats.of_stage(stage);
        for (from, to) in (1..seats.stages()).map(|to| (to - 1, to)) {
            let (outboxes, inboxes) = mailboxes(of(from), of(to), &turns.0[to], ways);
            give(&mut links[from], outboxes, |own, end| {
                own.values_out = Some(end)
            });
            give(&mut links[to], inboxes, |own, end| {
                own.values_in = Some(end)
            });
            let (outboxes, inboxes) = mailboxes(of(to), of(from), &turns.0[from], ways);
            give(&mut links[to], outboxes, |own, end| {
                own.gradients_out = Some(end)
            });
            give(&mut links[from], inboxes, |own, end| {
                own.gradients_in = Some(end)
            });
        }
        for (from, stage) in skips.iter().enumerate() {
            let outgoing = stage.outgoing();
            for to in outgoing.iter().map(|&(_, to)| to).collect::<BTreeSet<_>>() {
                let (outboxes, inboxes) = mailboxes(of(from), of(to), &turns.0[to], ways);
                give(&mut links[from], outboxes, |own, end| {
                    own.skips_out.push((to, end))
                });
                give(&mut links[to], inboxes, |own, end| {
                    own.skips_in.push((from, end))
                });
            }
            let trained = outgoing.iter();
            let trained = trained.filter(|&&(skip, _)| stage.sender(skip) >= trainable_from);
            for to in trained.map(|&(_, to)| to).collect::<BTreeSet<_>>() {
                let (outboxes, inboxes) = mailboxes(of(to), of(from), &turns.0[from], ways);
                give(&mut links[to], outboxes, |own, end| {
                    own.skip_gradients_out.push((from, end))
                });
                give(&mut links[from], inboxes, |own, end| {
                    own.skip_gradients_in.push((to, end))
                });
            }
        }
        links.into_iter().flatten().collect()
    }

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

/// Gives each seat its end.
fn give<L: Layer, E>(links: &mut [Links<L>], ends: Vec<E>, give: impl Fn(&mut Links<L>, E)) {
    (links.iter_mut().zip(ends)).for_each(|(own, end)| give(own, end));
}
