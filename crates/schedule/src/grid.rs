//! Clock cycles: what a schedule looks like if every action takes one.

use crate::{Action, Schedule, table::Table};

/// For each worker, its action in each clock cycle, all rows of the same length.
pub(crate) fn grid(schedule: &Schedule) -> Vec<Vec<Option<Action>>> {
    let size = (schedule.stages(), schedule.micro_batches());
    // The cycle after that of the forward pass, and of the gradient of the input.
    let mut forward = Table::new(size.0, size.1, 0);
    let mut gradient = Table::new(size.0, size.1, 0);
    let mut rows: Vec<Vec<Option<Action>>> = vec![Vec::new(); schedule.workers().len()];
    let replayed = schedule.replay(|worker, action| {
        let arrived = schedule
            .input(action)
            .map(|input| match input.pass.sends_gradient() {
                true => gradient[input],
                false => forward[input],
            });
        let row = &mut rows[worker];
        let cycle = row.len().max(arrived.unwrap_or(0));
        row.resize(cycle, None);
        row.push(Some(action));
        match action.pass.sends_gradient() {
            true => gradient[action] = cycle + 1,
            false if action.pass == crate::Pass::Forward => forward[action] = cycle + 1,
            false => {}
        }
    });
    debug_assert_eq!(replayed, Ok(()), "a schedule has no deadlock");
    let length = rows.iter().map(Vec::len).max().unwrap_or(0);
    for row in &mut rows {
        row.resize(length, None);
    }
    rows
}
