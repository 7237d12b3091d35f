//! What makes lists of actions a schedule, one check a function.
//!
//! Each check may rely on those before it; [`validate`] gives their order.

use std::collections::{BTreeMap, HashSet, btree_map::Entry};

use crate::{Action, Pass, ScheduleError, replay::replay};

/// What the checks found out on their way.
pub(crate) struct Facts {
    /// The worker of each stage.
    pub owners: Vec<usize>,
    pub micro_batches: usize,
    pub training: bool,
}

/// Checks everything that [`Schedule::new`](crate::Schedule::new) promises.
pub(crate) fn validate(workers: &[Vec<Action>]) -> Result<Facts, ScheduleError> {
    every_worker_works(workers)?;
    let owners = one_worker_a_stage(workers)?;
    let listed = nothing_twice(workers)?;
    let (micro_batches, training) = nothing_missing(&listed, &owners)?;
    ascending(workers, owners.len())?;
    no_deadlock(workers, &owners)?;
    Ok(Facts {
        owners,
        micro_batches,
        training,
    })
}

/// Every action together with its worker.
fn actions(workers: &[Vec<Action>]) -> impl Iterator<Item = (usize, Action)> {
    let numbered = workers.iter().enumerate();
    numbered.flat_map(|(worker, actions)| actions.iter().map(move |&action| (worker, action)))
}

fn every_worker_works(workers: &[Vec<Action>]) -> Result<(), ScheduleError> {
    if workers.is_empty() {
        return Err(ScheduleError::NoWorkers);
    }
    match workers.iter().position(Vec::is_empty) {
        Some(worker) => Err(ScheduleError::IdleWorker { worker }),
        None => Ok(()),
    }
}

/// Finds the worker of each stage.
fn one_worker_a_stage(workers: &[Vec<Action>]) -> Result<Vec<usize>, ScheduleError> {
    let mut owners = BTreeMap::new();
    for (worker, action) in actions(workers) {
        match owners.entry(action.stage) {
            Entry::Vacant(entry) => {
                entry.insert(worker);
            }
            Entry::Occupied(entry) if *entry.get() != worker => {
                let owner = *entry.get();
                return Err(ScheduleError::SharedStage {
                    worker,
                    action,
                    owner,
                });
            }
            Entry::Occupied(_) => {}
        }
    }
    match (0..).zip(owners.keys()).find(|(due, found)| due != *found) {
        Some((stage, _)) => Err(ScheduleError::MissingStage { stage }),
        None => Ok(owners.into_values().collect()),
    }
}

fn nothing_twice(workers: &[Vec<Action>]) -> Result<HashSet<Action>, ScheduleError> {
    let mut listed = HashSet::new();
    for (worker, action) in actions(workers) {
        if !listed.insert(action) {
            return Err(ScheduleError::Repeated { worker, action });
        }
    }
    Ok(listed)
}

/// Finds the number of micro-batches, and whether there are backward passes.
///
/// The search ends at the first gap, so a single absurd number costs no time.
fn nothing_missing(
    listed: &HashSet<Action>,
    owners: &[usize],
) -> Result<(usize, bool), ScheduleError> {
    let training = listed.iter().any(|action| action.pass == Pass::Backward);
    let last = listed.iter().map(|action| action.micro_batch).max();
    let last = last.unwrap_or_default();
    for (stage, &worker) in owners.iter().enumerate() {
        for micro_batch in 0..=last {
            let backward = training.then_some(Action::backward(stage, micro_batch));
            for action in [Action::forward(stage, micro_batch)]
                .into_iter()
                .chain(backward)
            {
                if !listed.contains(&action) {
                    return Err(ScheduleError::Missing { worker, action });
                }
            }
        }
    }
    Ok((last + 1, training))
}

/// Checks that micro-batches ascend in each pass of each stage, and that forward comes first.
fn ascending(workers: &[Vec<Action>], stages: usize) -> Result<(), ScheduleError> {
    let mut forwards = vec![0; stages];
    let mut backwards = vec![0; stages];
    for (worker, action) in actions(workers) {
        let Action {
            stage,
            pass,
            micro_batch,
        } = action;
        let due = match pass {
            Pass::Forward => &mut forwards[stage],
            Pass::Backward => &mut backwards[stage],
        };
        if micro_batch != *due {
            let expected = Action {
                micro_batch: *due,
                ..action
            };
            return Err(ScheduleError::OutOfOrder {
                worker,
                action,
                expected,
            });
        }
        *due += 1;
        if backwards[stage] > forwards[stage] {
            return Err(ScheduleError::BackwardFirst { worker, action });
        }
    }
    Ok(())
}

fn no_deadlock(workers: &[Vec<Action>], owners: &[usize]) -> Result<(), ScheduleError> {
    replay(workers, owners, |_, _| {}).map_err(|waiting| ScheduleError::Deadlock { waiting })
}
