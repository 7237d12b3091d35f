//! Checks of lists of actions, one a function.
//!
//! Each check may rely on those before it; [`validate`] has their order. Time and memory grow with the
//! number of actions only, even if stages or micro-batches have absurd numbers.

use std::collections::{HashMap, HashSet};

use crate::{Action, Pass, ScheduleError, passes::Passes, table::Table};

/// What the checks found out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Facts {
    /// The workers of each stage, in the order in which they take micro-batches.
    pub placement: Vec<Vec<usize>>,
    pub micro_batches: usize,
    /// Which backward passes come in halves. None: all are whole.
    pub split: Option<Table<bool>>,
    pub training: bool,
    pub asynchronous: bool,
}

/// What is listed for a stage and a micro-batch, and by which worker.
#[derive(Clone, Copy, Default)]
struct Listed {
    passes: Passes,
    worker: usize,
}

/// Checks everything that [`Schedule::new`](crate::Schedule::new) promises, but for deadlocks.
pub(crate) fn validate(workers: &[Vec<Action>]) -> Result<Facts, ScheduleError> {
    every_worker_works(workers)?;
    let (stages, micro_batches) = size(workers)?;
    let listed = nothing_twice(
        workers,
        Table::new(stages, micro_batches, Listed::default()),
    )?;
    let occurs = |pass| actions(workers).any(|(_, action)| action.pass == pass);
    let kinds = Kinds {
        training: actions(workers).any(|(_, action)| action.pass != Pass::Forward),
        split: occurs(Pass::InputGradient) || occurs(Pass::WeightGradient),
        asynchronous: occurs(Pass::Update),
    };
    nothing_missing(&listed, micro_batches, kinds)?;
    let placement = (0..stages).map(|stage| in_turn(stage, listed.of_stage(stage)));
    let placement = placement.collect::<Result<_, _>>()?;
    nothing_too_early(workers, &listed, micro_batches)?;
    Ok(Facts {
        placement,
        micro_batches,
        split: kinds.split.then(|| halves(&listed, micro_batches)),
        training: kinds.training,
        asynchronous: kinds.asynchronous,
    })
}

/// Every action together with its worker.
fn actions(workers: &[Vec<Action>]) -> impl Iterator<Item = (usize, Action)> {
    let numbered = workers.iter().enumerate();
    numbered.flat_map(|(worker, actions)| actions.iter().map(move |&action| (worker, action)))
}

/// Every stage and micro-batch, as forward passes.
fn forwards(stages: usize, micro_batches: usize) -> impl Iterator<Item = Action> {
    let of_stage = move |stage| (0..micro_batches).map(move |i| Action::forward(stage, i));
    (0..stages).flat_map(of_stage)
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

/// The numbers of stages and micro-batches. Both are at most the number of actions.
fn size(workers: &[Vec<Action>]) -> Result<(usize, usize), ScheduleError> {
    let total = actions(workers).count();
    let most = |number: fn(Action) -> usize| {
        let largest = actions(workers).map(|(_, action)| number(action)).max();
        largest.unwrap_or_default().saturating_add(1)
    };
    let (stages, micro_batches) = (most(|a| a.stage), most(|a| a.micro_batch));
    // If there are more stages than actions, one of the first is missing.
    let mut is_there = vec![false; stages.min(total + 1)];
    for (_, action) in actions(workers) {
        if let Some(there) = is_there.get_mut(action.stage) {
            *there = true;
        }
    }
    if let Some(stage) = is_there.iter().position(|there| !there) {
        return Err(ScheduleError::MissingStage { stage });
    }
    let forwards = stages.checked_mul(micro_batches);
    if forwards.is_some_and(|forwards| forwards <= total) {
        Ok((stages, micro_batches))
    } else {
        Err(first_gap(workers, stages, micro_batches))
    }
}

/// The error of lists with fewer actions than forward passes.
fn first_gap(workers: &[Vec<Action>], stages: usize, micro_batches: usize) -> ScheduleError {
    let mut listed = HashMap::new();
    let mut owners = vec![0; stages];
    for (worker, action) in actions(workers) {
        if let Some(owner) = listed.insert(action, worker) {
            return twice(worker, action, owner);
        }
        owners[action.stage] = worker;
    }
    // If there are more micro-batches than actions, one of the first is missing.
    let micro_batches = micro_batches.min(listed.len() + 1);
    let missing = forwards(stages, micro_batches).find(|action| !listed.contains_key(action));
    let action = missing.unwrap_or(Action::forward(0, 0));
    let worker = owners[action.stage];
    ScheduleError::Missing { worker, action }
}

/// The error of an action that `owner` has, too.
fn twice(worker: usize, action: Action, owner: usize) -> ScheduleError {
    if owner == worker {
        return ScheduleError::Repeated { worker, action };
    }
    ScheduleError::WrongWorker {
        worker,
        action,
        owner,
    }
}

/// Fills in what is listed for each stage and micro-batch, by one worker.
fn nothing_twice(
    workers: &[Vec<Action>],
    mut listed: Table<Listed>,
) -> Result<Table<Listed>, ScheduleError> {
    for (worker, action) in actions(workers) {
        let entry = &mut listed[action];
        if entry.passes.is_empty() {
            entry.worker = worker;
        }
        if entry.worker != worker || !entry.passes.insert(action.pass) {
            return Err(twice(worker, action, entry.worker));
        }
    }
    Ok(listed)
}

/// The kinds of passes in a schedule.
#[derive(Clone, Copy)]
struct Kinds {
    training: bool,
    split: bool,
    asynchronous: bool,
}

impl Kinds {
    /// The first pass that a stage lacks for a micro-batch.
    fn lacking(self, has: Passes) -> Option<Pass> {
        use Pass::{Backward, Forward, InputGradient, Update, WeightGradient};
        let halves = [InputGradient, WeightGradient];
        let needed = match (
            self.training,
            has.contains(Backward),
            has.contains_any(&halves),
        ) {
            (false, ..) => &[Forward][..],
            (true, true, _) => &[Forward, Backward],
            (true, false, true) => &[Forward, InputGradient, WeightGradient],
            (true, false, false) if self.split => &[Forward, InputGradient],
            (true, false, false) => &[Forward, Backward],
        };
        let update = self.asynchronous.then_some(&Update);
        let lacks = |pass: &&Pass| !has.contains(**pass);
        needed.iter().chain(update).find(lacks).copied()
    }
}

fn nothing_missing(
    listed: &Table<Listed>,
    micro_batches: usize,
    kinds: Kinds,
) -> Result<(), ScheduleError> {
    use Pass::{Backward, InputGradient, WeightGradient};
    for forward in forwards(listed.stages(), micro_batches) {
        let Listed { passes, worker } = listed[forward];
        let mut halves = [InputGradient, WeightGradient].into_iter();
        let half = halves.find(|&half| passes.contains(half));
        if let (Some(half), true) = (half, passes.contains(Backward)) {
            let action = forward.with(half);
            return Err(ScheduleError::WholeAndHalf { worker, action });
        }
        if let Some(pass) = kinds.lacking(passes) {
            let action = forward.with(pass);
            let worker = if passes.is_empty() {
                owner_of(listed.of_stage(forward.stage))
            } else {
                worker
            };
            return Err(ScheduleError::Missing { worker, action });
        }
    }
    Ok(())
}

/// A worker with an action of the stage.
fn owner_of(stage: &[Listed]) -> usize {
    let something = stage.iter().find(|entry| !entry.passes.is_empty());
    something.map_or(0, |entry| entry.worker)
}

/// The workers of a stage, which take its micro-batches in turn.
fn in_turn(stage: usize, listed: &[Listed]) -> Result<Vec<usize>, ScheduleError> {
    let mut owners = Vec::new();
    let mut known = HashSet::new();
    for (micro_batch, entry) in listed.iter().enumerate() {
        if owners.len() == micro_batch && known.insert(entry.worker) {
            owners.push(entry.worker);
        }
        let owner = owners[micro_batch % owners.len()];
        if entry.worker != owner {
            return Err(ScheduleError::WrongWorker {
                worker: entry.worker,
                action: Action::forward(stage, micro_batch),
                owner,
            });
        }
    }
    Ok(owners)
}

/// Checks the order of a worker's actions for a stage and a micro-batch.
fn nothing_too_early(
    workers: &[Vec<Action>],
    listed: &Table<Listed>,
    micro_batches: usize,
) -> Result<(), ScheduleError> {
    let mut done = Table::new(listed.stages(), micro_batches, Passes::default());
    for (worker, action) in actions(workers) {
        let passes = listed[action].passes;
        if let Some(needs) = needs(action.pass, passes).filter(|&pass| !done[action].contains(pass))
        {
            return Err(ScheduleError::TooEarly {
                worker,
                action,
                needs: action.with(needs),
            });
        }
        done[action].insert(action.pass);
    }
    Ok(())
}

/// The pass of the same stage and micro-batch that must come before this one.
fn needs(pass: Pass, listed: Passes) -> Option<Pass> {
    match pass {
        Pass::Forward => None,
        Pass::Backward | Pass::InputGradient => Some(Pass::Forward),
        Pass::WeightGradient => Some(Pass::InputGradient),
        Pass::Update if listed.contains(Pass::Backward) => Some(Pass::Backward),
        Pass::Update => Some(Pass::WeightGradient),
    }
}

fn halves(listed: &Table<Listed>, micro_batches: usize) -> Table<bool> {
    let mut split = Table::new(listed.stages(), micro_batches, false);
    for forward in forwards(listed.stages(), micro_batches) {
        split[forward] = listed[forward].passes.contains(Pass::InputGradient);
    }
    split
}
