//! The best partition of every run of states on every number of units of a group, and how to read it.

use super::result::{Partition, ReplicatedStage};
use crate::{States, states::LayerCosts};

/// Units (workers, or machines of the next lower level) joined by links.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub units: usize,
    /// Bytes a second. Infinite if links cost nothing.
    pub bandwidth: f64,
    /// How many units of the next lower level a unit joins.
    pub below: usize,
    /// How many workers a unit has.
    pub workers: usize,
}

impl Group {
    /// Seconds to add up gradients of `parameters` bytes on this number of units.
    pub fn exchange(&self, parameters: f64, units: usize) -> f64 {
        4.0 * (units - 1) as f64 * parameters / (self.bandwidth * units as f64)
    }

    /// Seconds to send `bytes` over a cut, forward and back, from or to this number of units.
    pub fn transfer(&self, bytes: f64, units: usize) -> f64 {
        2.0 * bytes / (self.bandwidth * units as f64)
    }
}

/// How many workers are behind a group, for each of the groups that share a stage: an exact fraction, which
/// is rounded up in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ratio {
    above: u128,
    below: u128,
}

impl Ratio {
    pub const ZERO: Self = Self { above: 0, below: 1 };

    /// (workers + this) / sharers.
    pub fn plus_over(self, workers: usize, sharers: usize) -> Self {
        let workers = (workers as u128).saturating_mul(self.below);
        let above = workers.saturating_add(self.above);
        let below = self.below.saturating_mul(sharers as u128);
        let common = greatest_common_divisor(above, below);
        Self {
            above: above / common,
            below: below / common,
        }
    }

    pub fn rounded_up(self) -> f64 {
        self.above.div_ceil(self.below) as f64
    }
}

fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

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

#[derive(Clone, Copy)]
pub(super) struct LastStage {
    pub begin: u32,
    pub units: u32,
}

impl LastStage {
    pub fn new(begin: usize, units: usize) -> Self {
        let (begin, units) = (begin as u32, units as u32);
        Self { begin, units }
    }
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
