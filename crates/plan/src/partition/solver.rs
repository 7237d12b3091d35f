//! Fills in the tables of all levels that the best partition needs.

use std::collections::HashMap;

use super::{
    chain::ChainFiller,
    filler::Filler,
    result::{Partition, PartitionError},
    table::{Group, GroupTable, LastStage, Ratio, Tables},
};
use crate::States;

/// The most partial solutions that are kept, of 16 bytes each.
const MOST_CELLS: usize = 1 << 25;

pub(super) struct Solver<'a> {
    tables: Tables<'a>,
    /// The table of a level with this number of workers behind each group.
    known: HashMap<(usize, Ratio), usize>,
    cells: usize,
}

impl<'a> Solver<'a> {
    pub fn new(states: &'a States, groups: &'a [Group], speed: f64, memory: Option<u64>) -> Self {
        Self {
            tables: Tables {
                states,
                groups,
                speed,
                memory: memory.map(|memory| memory as f64),
                filled: Vec::new(),
            },
            known: HashMap::new(),
            cells: 0,
        }
    }

    /// The best partition of all states on all workers. None if none fits.
    pub fn solve(&mut self) -> Result<Option<Partition>, PartitionError> {
        let whole = self.table(self.tables.groups.len() - 1, Ratio::ZERO)?;
        let last = self.tables.states.count() - 1;
        Ok(self.tables.partition(whole, 0, last))
    }

    /// Fills in the table of a level with `behind` workers after each group.
    fn table(&mut self, level: usize, behind: Ratio) -> Result<usize, PartitionError> {
        // The workers after a stage matter only for memory.
        let behind = self.tables.memory.map_or(Ratio::ZERO, |_| behind);
        if let Some(&known) = self.known.get(&(level, behind)) {
            return Ok(known);
        }
        let table = self.empty_table(level, behind)?;
        let is_chain = level == 0 && table.whole && self.tables.states.are_chain();
        let filler = Filler::new(&self.tables, behind, table);
        let table = if is_chain {
            ChainFiller::new(filler).fill()
        } else {
            filler.fill()
        };
        let index = self.tables.filled.len();
        self.tables.filled.push(table);
        self.known.insert((level, behind), index);
        Ok(index)
    }

    fn empty_table(&mut self, level: usize, behind: Ratio) -> Result<GroupTable, PartitionError> {
        let (group, states) = (self.tables.groups[level], self.tables.states.count());
        let whole = level + 1 == self.tables.groups.len();
        let begins = if whole { 1 } else { states };
        let cells = begins.saturating_mul(states).saturating_mul(group.units);
        self.cells = self.cells.saturating_add(cells);
        if self.cells > MOST_CELLS {
            let most = MOST_CELLS;
            return Err(PartitionError::TooLarge { states, most });
        }
        let below = match level.checked_sub(1) {
            Some(below) => self.tables_below(below, group, behind)?,
            None => Vec::new(),
        };
        Ok(GroupTable {
            level,
            whole,
            times: vec![f64::INFINITY; cells],
            lasts: vec![LastStage { begin: 0, units: 1 }; cells],
            below,
        })
    }

    /// The tables of the next lower level, by the number of units of a stage and of units behind them.
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
}
