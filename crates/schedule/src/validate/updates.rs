//! Checks of the updates of an asynchronous schedule.

use std::collections::{HashMap, HashSet};

use super::{Listed, actions};
use crate::{Action, Pass, ScheduleError, table::Table};

/// Checks that updates come after every so many micro-batches, on every replica. Returns how many, or
/// None without updates.
pub(super) fn check(
    workers: &[Vec<Action>],
    listed: &Table<Listed>,
    placement: &[Vec<usize>],
) -> Result<Option<usize>, ScheduleError> {
    let updates = || actions(workers).filter(|(_, action)| action.pass == Pass::Update);
    let Some(first) = updates().map(|(_, action)| action.micro_batch).min() else {
        return Ok(None);
    };
    let every = first + 1;
    let mut known = HashSet::new();
    for (worker, action) in updates() {
        let replicas = &placement[action.stage];
        if !replicas.contains(&worker) {
            let owner = replicas[0];
            return Err(ScheduleError::WrongWorker {
                worker,
                action,
                owner,
            });
        }
        if (action.micro_batch + 1) % every != 0 {
            return Err(ScheduleError::OddUpdate {
                worker,
                action,
                every,
            });
        }
        if !known.insert((worker, action)) {
            return Err(ScheduleError::Repeated { worker, action });
        }
    }
    let shares = shares(listed, every);
    let micro_batches = listed.of_stage(0).len();
    for (stage, replicas) in placement.iter().enumerate() {
        for &worker in replicas {
            for last in (first..micro_batches).step_by(every) {
                let action = Action::new(stage, Pass::Update, last);
                if !known.contains(&(worker, action)) {
                    return Err(ScheduleError::Missing { worker, action });
                }
                if !shares.contains_key(&(worker, action)) {
                    return Err(ScheduleError::NothingToAdd { worker, action });
                }
            }
        }
    }
    if !micro_batches.is_multiple_of(every) {
        return Err(ScheduleError::NoLastUpdate {
            micro_batches,
            every,
        });
    }
    in_order(workers, listed, every, shares)?;
    Ok(Some(every))
}

/// The update that applies an action's gradients.
fn update(action: Action, every: usize) -> Action {
    let last = action.micro_batch / every * every + every - 1;
    Action::new(action.stage, Pass::Update, last)
}

/// For each worker and update, how many of the micro-batches are the worker's.
type Shares = HashMap<(usize, Action), usize>;

fn shares(listed: &Table<Listed>, every: usize) -> Shares {
    let mut shares = Shares::new();
    for (forward, entry) in listed.iter() {
        let share = shares.entry((entry.worker, update(forward, every)));
        *share.or_default() += 1;
    }
    shares
}

/// Checks that an update has the gradients of its micro-batches, and of no others. `missing` are the
/// shares of the workers.
fn in_order(
    workers: &[Vec<Action>],
    listed: &Table<Listed>,
    every: usize,
    mut missing: Shares,
) -> Result<(), ScheduleError> {
    // For each worker and stage, the last micro-batch of the next update.
    let mut due = HashMap::new();
    let mut added = listed.map(|_| false);
    for (worker, action) in actions(workers) {
        let (stage, own) = (action.stage, update(action, every));
        let next = due.entry((worker, stage)).or_insert(every - 1);
        let too_early = |needs| {
            Err(ScheduleError::TooEarly {
                worker,
                action,
                needs,
            })
        };
        let adds = matches!(action.pass, Pass::Backward | Pass::WeightGradient);
        if (adds || action.pass == Pass::Update) && own.micro_batch > *next {
            return too_early(Action::new(stage, Pass::Update, *next));
        }
        if adds {
            added[action] = true;
            if let Some(missing) = missing.get_mut(&(worker, own)) {
                *missing -= 1;
            }
        } else if action.pass == Pass::Update {
            if missing.get(&(worker, own)).is_some_and(|&left| left > 0) {
                let of_update = own.micro_batch + 1 - every..=own.micro_batch;
                let entries = listed.of_stage(stage);
                let is_missing =
                    |&i: &usize| entries[i].worker == worker && !added[Action::forward(stage, i)];
                let micro_batch = of_update.clone().find(is_missing);
                let micro_batch = micro_batch.unwrap_or(own.micro_batch);
                let is_split = entries[micro_batch].passes.has(Pass::WeightGradient);
                let pass = match is_split {
                    true => Pass::WeightGradient,
                    false => Pass::Backward,
                };
                return too_early(Action::new(stage, pass, micro_batch));
            }
            *next += every;
        }
    }
    Ok(())
}
