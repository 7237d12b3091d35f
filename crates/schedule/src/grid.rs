//! Clock cycles of a schedule, if every action takes one.

use crate::{Action, Schedule, table::ResultTable};

/// For each worker, its action in each clock cycle, all rows of the same length.
pub(crate) fn grid(schedule: &Schedule) -> Vec<Vec<Option<Action>>> {
    // The cycle after each pass.
    let mut ends = ResultTable::new(schedule.stages(), schedule.micro_batches(), 0);
    let mut rows: Vec<Vec<Option<Action>>> = vec![Vec::new(); schedule.workers().len()];
    let replayed = schedule.replay(|worker, action| {
        let arrived = schedule.input(action).map_or(0, |input| ends.get(input));
        let row = &mut rows[worker];
        let cycle = row.len().max(arrived);
        row.resize(cycle, None);
        row.push(Some(action));
        ends.set(action, cycle + 1);
    });
    debug_assert_eq!(replayed, Ok(()), "a schedule has no deadlock");
    let length = rows.iter().map(Vec::len).max().unwrap_or(0);
    for row in &mut rows {
        row.resize(length, None);
    }
    rows
}
