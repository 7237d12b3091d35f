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
    let Some(first) = updates(workers).map(|(_, update)| update.micro_batch).min() else {
        return Ok(None);
    };
    let every = first + 1;
    let seats = Seats::new(placement);
    in_place(workers, &seats, placement, every)?;
    let micro_batches = listed.of_stage(0).len();
    let number = micro_batches / every;
    if Some(updates(workers).count()) != seats.count().checked_mul(number) {
        nothing_missing(workers, placement, (first..micro_batches).step_by(every))?;
    }
    if !micro_batches.is_multiple_of(every) {
        return Err(ScheduleError::NoLastUpdate {
            micro_batches,
            every,
        });
    }
    let shares = shares(listed, &seats, every, number);
    let mut is_listed = vec![false; shares.len()];
    for (worker, action) in updates(workers) {
        let at = seats.of(worker, action.stage) * number + action.micro_batch / every;
        if std::mem::replace(&mut is_listed[at], true) {
            return Err(ScheduleError::Repeated { worker, action });
        }
        if shares[at] == 0 {
            return Err(ScheduleError::NothingToAdd { worker, action });
        }
    }
    in_order(workers, listed, &seats, every, shares)?;
    Ok(Some(every))
}

fn updates(workers: &[Vec<Action>]) -> impl Iterator<Item = (usize, Action)> {
    actions(workers).filter(|(_, action)| action.pass == Pass::Update)
}

/// Numbers for the replicas of all stages.
struct Seats(HashMap<(usize, usize), usize>);

impl Seats {
    fn new(placement: &[Vec<usize>]) -> Self {
        let stages = placement.iter().enumerate();
        let seats = stages.flat_map(|(stage, replicas)| replicas.iter().map(move |&w| (w, stage)));
        Self(seats.zip(0..).collect())
    }

    fn count(&self) -> usize {
        self.0.len()
    }

    /// The number of a worker that has the stage.
    fn of(&self, worker: usize, stage: usize) -> usize {
        self.0[&(worker, stage)]
    }
}

/// Checks that updates are on workers of their stage, at equal distances.
fn in_place(
    workers: &[Vec<Action>],
    seats: &Seats,
    placement: &[Vec<usize>],
    every: usize,
) -> Result<(), ScheduleError> {
    for (worker, action) in updates(workers) {
        if !seats.0.contains_key(&(worker, action.stage)) {
            let owner = placement[action.stage][0];
            return Err(ScheduleError::WrongWorker {
                worker,
                action,
                owner,
            });
        }
        if !(action.micro_batch + 1).is_multiple_of(every) {
            return Err(ScheduleError::OddUpdate {
                worker,
                action,
                every,
            });
        }
    }
    Ok(())
}

/// The error of too few or too many updates.
fn nothing_missing(
    workers: &[Vec<Action>],
    placement: &[Vec<usize>],
    last: impl Iterator<Item = usize> + Clone,
) -> Result<(), ScheduleError> {
    let mut known = HashSet::new();
    for (worker, action) in updates(workers) {
        if !known.insert((worker, action)) {
            return Err(ScheduleError::Repeated { worker, action });
        }
    }
    for (stage, replicas) in placement.iter().enumerate() {
        for &worker in replicas {
            let mut needed = last
                .clone()
                .map(|last| Action::new(stage, Pass::Update, last));
            if let Some(action) = needed.find(|&action| !known.contains(&(worker, action))) {
                return Err(ScheduleError::Missing { worker, action });
            }
        }
    }
    Ok(())
}

/// For each seat and each of the `number` of updates, how many of the micro-batches are the seat's.
fn shares(listed: &Table<Listed>, seats: &Seats, every: usize, number: usize) -> Vec<usize> {
    let mut shares = vec![0; seats.count() * number];
    for (forward, entry) in listed.iter() {
        let seat = seats.of(entry.worker, forward.stage);
        shares[seat * number + forward.micro_batch / every] += 1;
    }
    shares
}

/// Checks that an update has the gradients of its micro-batches, and of no others. `missing` are the
/// shares of the seats.
fn in_order(
    workers: &[Vec<Action>],
    listed: &Table<Listed>,
    seats: &Seats,
    every: usize,
    mut missing: Vec<usize>,
) -> Result<(), ScheduleError> {
    let number = missing.len() / seats.count();
    // The next update of each seat.
    let mut due = vec![0; seats.count()];
    let mut added = listed.map(|_| false);
    for (worker, action) in actions(workers) {
        let is_update = action.pass == Pass::Update;
        let adds = matches!(action.pass, Pass::Backward | Pass::WeightGradient);
        if !adds && !is_update {
            continue;
        }
        let (stage, update) = (action.stage, action.micro_batch / every);
        let seat = seats.of(worker, stage);
        let too_early = |needs| {
            Err(ScheduleError::TooEarly {
                worker,
                action,
                needs,
            })
        };
        if update > due[seat] {
            let last = (due[seat] + 1) * every - 1;
            return too_early(Action::new(stage, Pass::Update, last));
        }
        let missing = &mut missing[seat * number + update];
        if adds {
            added[action] = true;
            *missing -= 1;
        } else if *missing > 0 {
            let entries = listed.of_stage(stage);
            let mut of_update = update * every..(update + 1) * every;
            let is_missing =
                |&i: &usize| entries[i].worker == worker && !added[Action::forward(stage, i)];
            let micro_batch = of_update.find(is_missing).unwrap_or(action.micro_batch);
            let is_split = entries[micro_batch].passes.has(Pass::WeightGradient);
            let pass = match is_split {
                true => Pass::WeightGradient,
                false => Pass::Backward,
            };
            return too_early(Action::new(stage, pass, micro_batch));
        } else {
            due[seat] += 1;
        }
    }
    Ok(())
}
