//! Skips, as one stage sees them: which values its layers send and take, and the queues in which they
//! travel straight to and from the stages that need them.
//!
//! Forward, a stage sends each other stage that takes something of its one message a micro-batch; backward,
//! it gets one from each, and sends one to each stage that it took from. A value that is taken by
//! several layers has several gradients: the sender adds them up in the descending order of those
//! layers, wherever they lie, so that bits do not depend on the cut.

use std::{
    collections::{BTreeSet, HashMap},
    ops::Range,
    sync::Arc,
};

use burn::tensor::Device;

use crate::{
    api::error::TransferKind,
    engine::{
        links::{Inbox, Outbox},
        transfer::TransferThreads,
        values::{self, FlowGradients},
    },
    model::{layer::Layer, wiring::Wiring},
};

/// Values without a graph, by the skip's place in the wiring.
pub(crate) type SkipValues<F> = HashMap<usize, F>;

/// The gradient that a layer has of a skip that it took.
pub(crate) type SkipGradients = HashMap<Taking, FlowGradients>;

/// That a layer takes a skip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Taking {
    pub(crate) skip: usize,
    /// The layer, by its place in the model.
    pub(crate) taker: usize,
}

/// The skips of a stage.
#[derive(Clone, Debug)]
pub(crate) struct StageSkips {
    wiring: Arc<Wiring>,
    /// Its layers.
    own: Range<usize>,
    /// Where each stage begins.
    starts: Arc<[usize]>,
}

impl StageSkips {
    /// Those of every stage.
    pub(crate) fn of_stages(wiring: &Arc<Wiring>, stages: &[Range<usize>]) -> Vec<Self> {
        let starts: Arc<[usize]> = stages.iter().map(|layers| layers.start).collect();
        let of_stage = |own: &Range<usize>| Self {
            wiring: wiring.clone(),
            own: own.clone(),
            starts: starts.clone(),
        };
        stages.iter().map(of_stage).collect()
    }

    /// What a layer takes, in the order in which it declares it.
    pub(crate) fn taken_by(&self, layer: usize) -> &[usize] {
        &self.wiring.takes[layer]
    }

    /// What a layer sends, in the order in which it declares it.
    pub(crate) fn sent_by(&self, layer: usize) -> &[usize] {
        &self.wiring.sends[layer]
    }

    pub(crate) fn name(&self, skip: usize) -> &str {
        &self.wiring.skips[skip].name
    }

    pub(crate) fn sender(&self, skip: usize) -> usize {
        self.wiring.skips[skip].sender
    }

    /// Whether no later layer of the stage takes the skip.
    pub(crate) fn is_last_here(&self, skip: usize, layer: usize) -> bool {
        let mut takers = self.wiring.skips[skip].takers.iter();
        !takers.any(|&taker| taker > layer && self.own.contains(&taker))
    }

    /// Whether a layer of the stage takes the skip.
    pub(crate) fn is_taken_here(&self, skip: usize) -> bool {
        let mut takers = self.wiring.skips[skip].takers.iter();
        takers.any(|taker| self.own.contains(taker))
    }

    /// Those that take a skip, the last layer first.
    pub(crate) fn takings(&self, skip: usize) -> impl Iterator<Item = Taking> {
        let takers = self.wiring.skips[skip].takers.iter().rev();
        takers.map(move |&taker| Taking { skip, taker })
    }

    pub(crate) fn is_taken_elsewhere(&self, skip: usize) -> bool {
        let mut takers = self.wiring.skips[skip].takers.iter();
        takers.any(|taker| !self.own.contains(taker))
    }

    /// The other stages that take a skip.
    fn takers_elsewhere(&self, skip: usize) -> BTreeSet<usize> {
        let takers = self.wiring.skips[skip].takers.iter();
        (takers.filter(|taker| !self.own.contains(taker)))
            .map(|&taker| self.stage_of(taker))
            .collect()
    }

    pub(crate) fn stage_of(&self, layer: usize) -> usize {
        self.starts.partition_point(|&start| start <= layer) - 1
    }

    /// What the stage sends to others: which skips to which.
    pub(crate) fn outgoing(&self) -> Vec<(usize, usize)> {
        let own = self.own.clone().flat_map(|layer| self.sent_by(layer));
        own.flat_map(|&skip| (self.takers_elsewhere(skip).into_iter()).map(move |to| (skip, to)))
            .collect()
    }
}

/// The ends of queues for skips that a stage holds, by the stage at the other end.
pub(crate) struct SkipLinks<L: Layer> {
    pub(crate) values_in: Vec<(usize, Inbox<SkipValues<L::Flow>>)>,
    pub(crate) values_out: Vec<(usize, Outbox<SkipValues<L::Flow>>)>,
    pub(crate) gradients_in: Vec<(usize, Inbox<SkipGradients>)>,
    pub(crate) gradients_out: Vec<(usize, Outbox<SkipGradients>)>,
}

impl<L: Layer> SkipLinks<L> {
    fn none() -> Self {
        Self {
            values_in: Vec::new(),
            values_out: Vec::new(),
            gradients_in: Vec::new(),
            gradients_out: Vec::new(),
        }
    }

    /// Links all stages. Gradients go back only for values that want one: of layers from
    /// `trainable_from` on.
    pub(crate) fn of_stages(
        stages: &[StageSkips],
        trainable_from: usize,
        transfers: &TransferThreads,
    ) -> Vec<Self> {
        let mut links: Vec<_> = stages.iter().map(|_| Self::none()).collect();
        for (from, stage) in stages.iter().enumerate() {
            let outgoing = stage.outgoing();
            let wanted = |&&(skip, _): &&(usize, usize)| stage.sender(skip) >= trainable_from;
            for to in outgoing.iter().map(|&(_, to)| to).collect::<BTreeSet<_>>() {
                let (values_out, values_in) =
                    transfers.mailbox(from, to, TransferKind::Skips, copy_values::<L>);
                links[from].values_out.push((to, values_out));
                links[to].values_in.push((from, values_in));
            }
            let wanting = outgoing.iter().filter(wanted);
            for to in wanting.map(|&(_, to)| to).collect::<BTreeSet<_>>() {
                let (gradients_out, gradients_in) =
                    transfers.mailbox(to, from, TransferKind::SkipGradients, copy_gradients);
                links[to].gradients_out.push((from, gradients_out));
                links[from].gradients_in.push((to, gradients_in));
            }
        }
        links
    }

    /// Sends what the stage's layers sent to those that take it.
    pub(crate) fn send_values(
        &self,
        skips: &StageSkips,
        micro_batch: usize,
        sent: &SkipValues<L::Flow>,
    ) {
        for (to, outbox) in &self.values_out {
            let to_it = sent
                .iter()
                .filter(|&(&skip, _)| skips.takers_elsewhere(skip).contains(to));
            let message = to_it.map(|(&skip, value)| (skip, value.clone())).collect();
            outbox.send(micro_batch, message);
        }
    }

    /// Sends gradients of what the stage's layers took back to where it came from.
    pub(crate) fn send_gradients(
        &self,
        skips: &StageSkips,
        micro_batch: usize,
        mut gradients: SkipGradients,
    ) {
        for (to, outbox) in &self.gradients_out {
            let message = gradients
                .extract_if(|taking, _| skips.stage_of(skips.sender(taking.skip)) == *to)
                .collect();
            outbox.send(micro_batch, message);
        }
    }
}

fn copy_values<L: Layer>(values: SkipValues<L::Flow>, device: &Device) -> SkipValues<L::Flow> {
    let copy = |(skip, value)| (skip, values::to_device(value, device));
    values.into_iter().map(copy).collect()
}

fn copy_gradients(gradients: SkipGradients, device: &Device) -> SkipGradients {
    let copy = |(taking, gradients): (_, FlowGradients)| (taking, gradients.moved_to(device));
    gradients.into_iter().map(copy).collect()
}
