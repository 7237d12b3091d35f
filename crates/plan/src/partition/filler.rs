//! Fills in a table by trying every cut.

use super::table::{Group, GroupTable, LastStage, Ratio, Segment, Tables, shared};
use crate::states::LayerCosts;

pub(super) struct Filler<'t, 'a> {
    pub tables: &'t Tables<'a>,
    pub group: Group,
    /// The weight versions of each worker, by the number of workers of a stage and of workers behind them
    /// in the group.
    versions: Vec<Vec<f64>>,
    pub table: GroupTable,
}

impl<'t, 'a> Filler<'t, 'a> {
    pub fn new(tables: &'t Tables<'a>, behind: Ratio, table: GroupTable) -> Self {
        let group = tables.groups[table.level];
        let shared = |own: usize| {
            let from_here_on = own..=group.units;
            from_here_on.map(move |workers| behind.plus_over(workers, own).rounded_up())
        };
        Self {
            tables,
            group,
            versions: (1..=group.units).map(|own| shared(own).collect()).collect(),
            table,
        }
    }

    pub fn fill(mut self) -> GroupTable {
        for last in 0..self.tables.states.count() {
            let within = self.tables.states.within(last);
            self.fill_run(0, last, &within);
            if !self.table.whole {
                for &before in &within {
                    self.fill_run(before + 1, last, &within);
                }
            }
        }
        self.table
    }

    /// Finds the best partition of the states from `begin` to `last`, on any number of units.
    fn fill_run(&mut self, begin: usize, last: usize, within: &[usize]) {
        for units in 1..=self.group.units {
            let behind = self.group.units - units;
            let cell = self.tables.cell(&self.table, begin, last, units);
            let whole = Segment {
                begin,
                last,
                units,
                behind,
            };
            self.table.times[cell] = self.time(whole, true);
            self.table.lasts[cell] = LastStage::new(begin, units);
        }
        let cuts = within.partition_point(|&cut| cut < begin);
        for &cut in &within[cuts..] {
            self.cut_after(cut, begin, last);
        }
    }

    /// Tries to cut the states from `begin` to `last` after the state `cut`.
    fn cut_after(&mut self, cut: usize, begin: usize, last: usize) {
        let tables = self.tables;
        let from = tables.cell(&self.table, begin, cut, 1);
        let before = &self.table.times[from..from + self.group.units];
        if before.iter().all(|time| time.is_infinite()) {
            return; // not a part of this run, or too large for its units
        }
        let into = tables.cell(&self.table, begin, last, 1);
        let output = |state| tables.states.get(state).output;
        let bytes = f64::max(output(cut), output(last));
        // However a unit splits its work, it takes its workers' share of the time. A bit less, because of
        // rounding.
        let seconds = tables.states.costs(cut + 1, last).compute / tables.speed;
        let least = 0.999_999 * seconds / self.group.workers as f64;
        let found = &self.table.times[into + 1..into + self.group.units];
        let slowest = found.iter().copied().fold(0.0, f64::max);
        for own in (1..self.group.units).filter(|&own| least / (own as f64) < slowest) {
            let transfer = self.group.transfer(bytes, own);
            for units in own + 1..=self.group.units {
                let before = self.table.times[from + units - own - 1];
                let known = f64::max(before, transfer);
                if known >= self.table.times[into + units - 1] {
                    continue;
                }
                let behind = self.group.units - units;
                let stage = Segment {
                    begin: cut + 1,
                    last,
                    units: own,
                    behind,
                };
                let time = f64::max(known, self.time(stage, false));
                if time < self.table.times[into + units - 1] {
                    self.table.times[into + units - 1] = time;
                    self.table.lasts[into + units - 1] = LastStage::new(stage.begin, own);
                }
            }
        }
    }

    /// Seconds of a stage, without its transfers; infinite if it does not fit.
    pub fn time(&self, stage: Segment, first: bool) -> f64 {
        let costs = self.tables.states.costs(stage.begin, stage.last);
        let alone = match self.table.below(stage) {
            Some(below) => {
                let table = &self.tables.filled[below];
                let all = self.tables.groups[table.level].units;
                table.times[self.tables.cell(table, stage.begin, stage.last, all)]
            }
            None if self.fits(costs, stage) => costs.compute / self.tables.speed,
            None => f64::INFINITY,
        };
        shared(self.group, alone, costs, stage.units, first)
    }

    /// Whether a worker has the memory for its weight versions and the mini-batches in flight.
    fn fits(&self, costs: LayerCosts, stage: Segment) -> bool {
        self.tables.memory.is_none_or(|memory| {
            let versions = self.versions[stage.units - 1][stage.behind];
            versions * (costs.parameters + costs.kept) <= memory
        })
    }
}
