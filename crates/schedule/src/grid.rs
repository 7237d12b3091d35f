//! Clock cycles of a schedule, if every action takes one.

use crate::{Action, Pass, Schedule, table::Table};

/// For each worker, its action in each clock cycle, all rows of the same length.
pub(crate) fn grid(schedule: &Schedule) -> Vec<Vec<Option<Action>>> {
    let size = (schedule.stages(), schedule.micro_batches());
    // The cycles after the forward pass and after the input gradient.
    let mut forward = Table::new(size.0, size.1, 0);
    let mut gradient = Table::new(size.0, size.1, 0);
    let mut rows: Vec<Vec<Option<Action>>> = vec![Vec::new(); schedule.workers().len()];
    let replayed = schedule.replay(|worker, action| {
        let arrived = schedule.input(action).map(|input| {
            let ends = if input.pass.sends_gradient() {
                &gradient
            } else {
                &forward
            };
            ends[input]
        });
        let row = &mut rows[worker];
        let cycle = row.len().max(arrived.unwrap_or(0));
        row.resize(cycle, None);
        row.push(Some(action));
        match action.pass {
            Pass::Forward => forward[action] = cycle + 1,
            Pass::Backward | Pass::InputGradient => gradient[action] = cycle + 1,
            Pass::WeightGradient | Pass::Update => {}
        }
    });
    debug_assert_eq!(replayed, Ok(()), "a schedule has no deadlock");
    let length = rows.iter().map(Vec::len).max().unwrap_or(0);
    for row in &mut rows {
        row.resize(length, None);
    }
    rows
}
