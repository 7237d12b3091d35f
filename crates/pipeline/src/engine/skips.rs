//! The skips of one stage: which values its layers send and take.
//!
//! Forward, a stage sends one message per micro-batch to each other stage that takes one of its skips.
//! Backward, gradients return the same way. A value that several layers take has several gradients.
//! The sender adds them in descending order of these layers, so bits do not depend on the cut.

use std::{
    collections::{BTreeSet, HashMap},
    ops::Range,
    sync::Arc,
};

use crate::{engine::values::FlowGradients, model::wiring::Wiring};

/// Values without a graph, by the skip's index in the wiring.
pub(crate) type SkipValues<F> = HashMap<usize, F>;

/// The gradients of skips, one for each layer that takes one.
pub(crate) type SkipGradients = HashMap<Taking, FlowGradients>;

/// A layer takes a skip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Taking {
    pub(crate) skip: usize,
    /// The layer, by its index in the model.
    pub(crate) taker: usize,
}

/// The skips of a stage.
#[derive(Clone, Debug)]
pub(crate) struct StageSkips {
    wiring: Arc<Wiring>,
    /// The stage's layers.
    own: Range<usize>,
    /// The first layer of each stage.
    starts: Arc<[usize]>,
}

impl StageSkips {
    pub(crate) fn of_stages(wiring: &Arc<Wiring>, stages: &[Range<usize>]) -> Vec<Self> {
        let starts: Arc<[usize]> = stages.iter().map(|layers| layers.start).collect();
        let of_stage = |own: &Range<usize>| Self {
            wiring: wiring.clone(),
            own: own.clone(),
            starts: starts.clone(),
        };
        stages.iter().map(of_stage).collect()
    }

    pub(crate) fn taken_by(&self, layer: usize) -> &[usize] {
        &self.wiring.takes[layer]
    }

    pub(crate) fn sent_by(&self, layer: usize) -> &[usize] {
        &self.wiring.sends[layer]
    }

    pub(crate) fn name(&self, skip: usize) -> &str {
        &self.wiring.skips[skip].name
    }

    pub(crate) fn sender(&self, skip: usize) -> usize {
        self.wiring.skips[skip].sender
    }

    fn takers(&self, skip: usize) -> &[usize] {
        &self.wiring.skips[skip].takers
    }

    /// Whether no later layer of the stage takes the skip.
    pub(crate) fn is_last_here(&self, skip: usize, layer: usize) -> bool {
        let mut takers = self.takers(skip).iter();
        !takers.any(|&taker| taker > layer && self.own.contains(&taker))
    }

    pub(crate) fn is_taken_here(&self, skip: usize) -> bool {
        let mut takers = self.takers(skip).iter();
        takers.any(|taker| self.own.contains(taker))
    }

    pub(crate) fn is_taken_elsewhere(&self, skip: usize) -> bool {
        let mut takers = self.takers(skip).iter();
        takers.any(|taker| !self.own.contains(taker))
    }

    /// The layers that take a skip, the last one first.
    pub(crate) fn takings(&self, skip: usize) -> impl Iterator<Item = Taking> {
        let takers = self.takers(skip).iter().rev();
        takers.map(move |&taker| Taking { skip, taker })
    }

    pub(crate) fn takers_elsewhere(&self, skip: usize) -> BTreeSet<usize> {
        let takers = self.takers(skip).iter();
        let elsewhere = takers.filter(|taker| !self.own.contains(taker));
        elsewhere.map(|&taker| self.stage_of(taker)).collect()
    }

    pub(crate) fn stage_of(&self, layer: usize) -> usize {
        self.starts.partition_point(|&start| start <= layer) - 1
    }

    /// The skips that the stage sends to other stages, each with the stage that takes it.
    pub(crate) fn outgoing(&self) -> Vec<(usize, usize)> {
        let own = self.own.clone().flat_map(|layer| self.sent_by(layer));
        own.flat_map(|&skip| (self.takers_elsewhere(skip).into_iter()).map(move |to| (skip, to)))
            .collect()
    }
}
