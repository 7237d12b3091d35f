//! The best partition of every run of states on every number of units of a group, and how to read it.

use super::{
    group::Group,
    result::{Partition, ReplicatedStage},
};
use crate::{States, states::LayerCosts};

/// The best partition of every run of states on every number of a group's units.
pub(super) struct GroupTable {
    /// The level below which this group's units are joined.
    pub level: usize,
    /// Whether runs begin only at the first state, as in the outermost group.
    pub whole: bool,
    /// Seconds. Infinite if it does not fit or is not a run.
    pub times: Vec<f64>,
    pub lasts: Vec<LastStage>,
    /// The tables of the next lower level, by the number of units of a stage and of units behind them.
    /// Empty at the innermost level.
    pub below: Vec<Vec<usize>>,
}

impl GroupTable {
    /// The table of how one of a stage's units splits the stage.
    pub fn below(&self, stage: Segment) -> Option<usize> {
        let by_units = self.below.get(stage.units - 1)?;
        by_units.get(stage.behind).copied()
    }
}

/// The last stage of a solution.
#[derive(Clone, Copy)]
pub(super) struct LastStage {
    /// The first of its states.
    pub begin: u32,
    /// Its units.
    pub units: u32,
}

/// A stage of a group that it is in: its states, its units, and the units behind it.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    pub begin: usize,
    pub last: usize,
    pub units: usize,
    pub behind: usize,
}

/// The tables that are filled in so far.
pub(super) struct Tables<'a> {
    pub states: &'a States,
    pub groups: &'a [Group],
    pub speed: f64,
    pub memory: Option<f64>,
    pub filled: Vec<GroupTable>,
}

impl Tables<'_> {
    pub fn cell(&self, table: &GroupTable, begin: usize, last: usize, units: usize) -> usize {
        let begin = if table.whole { 0 } else { begin };
        let units_of = self.groups[table.level].units;
        (begin * self.states.count() + last) * units_of + units - 1
    }

    /// Reads the best partition of a run of states from its table.
    pub fn partition(&self, table: usize, begin: usize, last: usize) -> Option<Partition> {
        let table = &self.filled[table];
        let all = self.groups[table.level].units;
        let time = table.times[self.cell(table, begin, last, all)];
        if time.is_infinite() {
            return None;
        }
        let (mut end, mut units) = (last, all);
        let mut stages = Vec::new();
        loop {
            let own = table.lasts[self.cell(table, begin, end, units)];
            let own = Segment {
                begin: own.begin as usize,
                last: end,
                units: own.units as usize,
                behind: all - units,
            };
            stages.push(self.stage(table, own, own.begin == begin));
            if own.begin == begin {
                break;
            }
            (end, units) = (own.begin - 1, units - own.units);
        }
        stages.reverse();
        Some(Partition { stages, time })
    }

    fn stage(&self, table: &GroupTable, stage: Segment, first: bool) -> ReplicatedStage {
        let below = table.below(stage);
        let inside = below.and_then(|below| self.partition(below, stage.begin, stage.last));
        let costs = self.states.costs(stage.begin, stage.last);
        let alone = match &inside {
            Some(inside) => inside.time,
            None => costs.compute / self.speed,
        };
        let group = self.groups[table.level];
        ReplicatedStage {
            states: stage.begin..stage.last + 1,
            replicas: stage.units,
            time: shared(group, alone, costs, stage.units, first),
            inside: inside.map(Box::new),
        }
    }
}

/// Seconds of a stage that takes `alone` on one unit, on this number of units.
pub(super) fn shared(
    group: Group,
    alone: f64,
    costs: LayerCosts,
    units: usize,
    first: bool,
) -> f64 {
    let exchange = group.exchange(costs.parameters, units);
    let below = if first { group.below as f64 } else { 1.0 };
    (alone + exchange / below) / units as f64
}
