//! The best partition of every run of states on every number of units, by dynamic programming.

mod chain;
mod row;

use std::collections::HashMap;

use super::{Group, Partition, PartitionError, ReplicatedStage, ratio::Ratio};
use crate::{States, states::Costs};
use chain::Chain;

/// The most partial solutions that are kept, of 16 bytes each.
const MOST_CELLS: usize = 1 << 25;

/// What a group can do with every run of states on its first so many units.
struct Table {
    /// The level below which this group's units are joined.
    level: usize,
    /// Whether runs begin only at the first state: the outermost group's do.
    whole: bool,
    /// Seconds; infinite if it does not fit, or is no run.
    times: Vec<f64>,
    lasts: Vec<Last>,
    /// The tables of the level below, for each number of units that share a stage and of those
    /// behind them; none at the innermost level.
    below: Vec<Vec<usize>>,
}

impl Table {
    /// The table of how one of the units that share a stage does it.
    fn below(&self, stage: Stage) -> Option<usize> {
        let by_units = self.below.get(stage.units - 1)?;
        by_units.get(stage.behind).copied()
    }
}

/// The last stage of a solution.
#[derive(Clone, Copy)]
struct Last {
    /// The first of its states.
    begin: u32,
    /// Its units.
    units: u32,
}

/// A stage of a group that it is in: its states, its units, and the units behind it.
#[derive(Clone, Copy)]
struct Stage {
    begin: usize,
    last: usize,
    units: usize,
    behind: usize,
}

pub(super) struct Planner<'a> {
    states: &'a States,
    groups: &'a [Group],
    speed: f64,
    memory: Option<f64>,
    tables: Vec<Table>,
    /// The table of a level with so many workers behind each group.
    known: HashMap<(usize, Ratio), usize>,
    cells: usize,
}

impl<'a> Planner<'a> {
    pub fn new(states: &'a States, groups: &'a [Group], speed: f64, memory: Option<u64>) -> Self {
        Self {
            states,
            groups,
            speed,
            memory: memory.map(|memory| memory as f64),
            tables: Vec::new(),
            known: HashMap::new(),
            cells: 0,
        }
    }

    /// The best partition of all states on all workers; nothing if none fits.
    pub fn solve(&mut self) -> Result<Option<Partition>, PartitionError> {
        let whole = self.table(self.groups.len() - 1, Ratio::ZERO)?;
        Ok(self.partition(whole, 0, self.states.count() - 1))
    }

    /// Fills in the table of a level, where `behind` workers come after each group.
    fn table(&mut self, level: usize, behind: Ratio) -> Result<usize, PartitionError> {
        // Who comes after a stage is of no consequence but for memory.
        let behind = self.memory.map_or(Ratio::ZERO, |_| behind);
        if let Some(&known) = self.known.get(&(level, behind)) {
            return Ok(known);
        }
        let table = self.empty_table(level, behind)?;
        let group = self.groups[level];
        let filled = Filler {
            planner: self,
            group,
            versions: versions(group.units, behind),
            table,
        };
        let table = if level == 0 && filled.table.whole && self.states.are_chain() {
            Chain::new(filled).fill()
        } else {
            filled.fill()
        };
        self.tables.push(table);
        self.known.insert((level, behind), self.tables.len() - 1);
        Ok(self.tables.len() - 1)
    }

    fn empty_table(&mut self, level: usize, behind: Ratio) -> Result<Table, PartitionError> {
        let (group, states) = (self.groups[level], self.states.count());
        let whole = level + 1 == self.groups.len();
        let begins = if whole { 1 } else { states };
        let cells = begins.saturating_mul(states).saturating_mul(group.units);
        self.cells = self.cells.saturating_add(cells);
        if self.cells > MOST_CELLS {
            return Err(PartitionError::TooLarge {
                states,
                most: MOST_CELLS,
            });
        }
        let below = match level.checked_sub(1) {
            Some(below) => self.tables_below(below, group, behind)?,
            None => Vec::new(),
        };
        Ok(Table {
            level,
            whole,
            times: vec![f64::INFINITY; cells],
            lasts: vec![Last { begin: 0, units: 1 }; cells],
            below,
        })
    }

    /// For each number of units of a group that share a stage, and of those behind them, the table
    /// of the level below.
    fn tables_below(
        &mut self,
        level: usize,
        group: Group,
        behind: Ratio,
    ) -> Result<Vec<Vec<usize>>, PartitionError> {
        let tables = (1..=group.units).map(|units| {
            let afters = (0..=group.units - units).map(|after| {
                let workers = after.saturating_mul(group.workers);
                self.table(level, behind.plus_over(workers, units))
            });
            afters.collect()
        });
        tables.collect()
    }

    fn cell(&self, table: &Table, begin: usize, last: usize, units: usize) -> usize {
        let begin = if table.whole { 0 } else { begin };
        let units_of = self.groups[table.level].units;
        (begin * self.states.count() + last) * units_of + units - 1
    }

    /// Reads the best partition of a run of states from its table.
    fn partition(&self, table: usize, begin: usize, last: usize) -> Option<Partition> {
        let table = &self.tables[table];
        let all = self.groups[table.level].units;
        let time = table.times[self.cell(table, begin, last, all)];
        if time.is_infinite() {
            return None;
        }
        let (mut end, mut units) = (last, all);
        let mut stages = Vec::new();
        loop {
            let own = table.lasts[self.cell(table, begin, end, units)];
            let own = Stage {
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

    fn stage(&self, table: &Table, stage: Stage, first: bool) -> ReplicatedStage {
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

/// Seconds of a stage that takes `alone` on one unit, shared by so many of them.
fn shared(group: Group, alone: f64, costs: Costs, units: usize, first: bool) -> f64 {
    let exchange = group.exchange(costs.parameters, units);
    let below = if first { group.below as f64 } else { 1.0 };
    (alone + exchange / below) / units as f64
}

/// Fills in a table.
struct Filler<'p, 'a> {
    planner: &'p Planner<'a>,
    group: Group,
    /// The weight versions of each worker, for each number of workers that share a stage and of
    /// those behind them in the group.
    versions: Vec<Vec<f64>>,
    table: Table,
}

fn versions(units: usize, behind: Ratio) -> Vec<Vec<f64>> {
    let shared = |own: usize| {
        let from_here_on = own..=units;
        from_here_on.map(move |workers| behind.plus_over(workers, own).rounded_up())
    };
    (1..=units).map(|own| shared(own).collect()).collect()
}

impl Filler<'_, '_> {
    fn fill(mut self) -> Table {
        for last in 0..self.planner.states.count() {
            let within = self.planner.states.within(last);
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
            let cell = self.planner.cell(&self.table, begin, last, units);
            self.table.times[cell] = self.time(
                Stage {
                    begin,
                    last,
                    units,
                    behind,
                },
                true,
            );
            self.table.lasts[cell] = Last {
                begin: begin as u32,
                units: units as u32,
            };
        }
        let cuts = within.partition_point(|&cut| cut < begin);
        for &cut in &within[cuts..] {
            self.cut_after(cut, begin, last);
        }
    }

    /// Tries to cut the states from `begin` to `last` after the state `cut`.
    fn cut_after(&mut self, cut: usize, begin: usize, last: usize) {
        let planner = self.planner;
        let from = planner.cell(&self.table, begin, cut, 1);
        if self.table.times[from..from + self.group.units]
            .iter()
            .all(|time| time.is_infinite())
        {
            return; // not a part of this run, or too large for its units
        }
        let into = planner.cell(&self.table, begin, last, 1);
        let bytes = f64::max(
            planner.states.get(cut).output,
            planner.states.get(last).output,
        );
        // However a unit splits its work, it takes its workers' share of the time; a bit less, lest
        // rounding counts.
        let seconds = planner.states.costs(cut + 1, last).compute / planner.speed;
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
                let stage = Stage {
                    begin: cut + 1,
                    last,
                    units: own,
                    behind,
                };
                let time = f64::max(known, self.time(stage, false));
                if time < self.table.times[into + units - 1] {
                    self.table.times[into + units - 1] = time;
                    self.table.lasts[into + units - 1] = Last {
                        begin: stage.begin as u32,
                        units: own as u32,
                    };
                }
            }
        }
    }

    /// Seconds of a stage, without its transfers; infinite if it does not fit.
    fn time(&self, stage: Stage, first: bool) -> f64 {
        let costs = self.planner.states.costs(stage.begin, stage.last);
        let alone = match self.table.below(stage) {
            Some(below) => {
                let table = &self.planner.tables[below];
                let all = self.planner.groups[table.level].units;
                table.times[self.planner.cell(table, stage.begin, stage.last, all)]
            }
            None if self.fits(costs, stage) => costs.compute / self.planner.speed,
            None => f64::INFINITY,
        };
        shared(self.group, alone, costs, stage.units, first)
    }

    /// Whether a worker has the memory for its weight versions and the mini-batches in flight.
    fn fits(&self, costs: Costs, stage: Stage) -> bool {
        self.planner.memory.is_none_or(|memory| {
            let versions = self.versions[stage.units - 1][stage.behind];
            versions * (costs.parameters + costs.kept) <= memory
        })
    }
}
