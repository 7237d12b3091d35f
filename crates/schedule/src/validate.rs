//! Checks of lists of actions, one a function. Those of updates are in [`updates`].
//!
//! Each check may rely on those before it; [`validate`] has their order. Time and memory grow with the
//! number of actions only, even if stages or micro-batches have absurd numbers.

mod updates;

use std::collections::{HashMap, HashSet};

use crate::{Action, Pass, ScheduleError, table::Table};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Facts {
    /// The workers of each stage, in the order of their first micro-batches.
    pub placement: Vec<Vec<usize>>,
    /// Of each stage, the workers of the first micro-batches, until they repeat.
    pub turns: Vec<Vec<usize>>,
    pub micro_batches: usize,
    /// Which backward passes come in halves. None: all are whole.
    pub split: Option<Table<bool>>,
    /// Which backward passes come right after their forward pass.
    pub direct: Table<bool>,
    pub training: bool,
    /// Micro-batches of each update. None: the schedule is synchronous.
    pub update_every: Option<usize>,
}

#[derive(Clone, Copy, Default)]
struct Passes(u8);

impl Passes {
    fn has(self, pass: Pass) -> bool {
        self.0 >> pass as u8 & 1 == 1
    }

    /// Adds a pass. Returns whether it is new.
    fn insert(&mut self, pass: Pass) -> bool {
        let is_new = !self.has(pass);
        self.0 |= 1 << pass as u8;
        is_new
    }
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
    let nothing = Table::new(stages, micro_batches, Listed::default());
    let listed = nothing_twice(workers, nothing)?;
    let occurs = |pass| actions(workers).any(|(_, action)| action.pass == pass);
    let kinds = Kinds {
        training: actions(workers).any(|(_, action)| action.pass != Pass::Forward),
        split: occurs(Pass::InputGradient) || occurs(Pass::WeightGradient),
    };
    nothing_missing(&listed, kinds)?;
    let turns = (0..stages).map(|stage| turns(listed.of_stage(stage)));
    let turns: Vec<_> = turns.collect();
    let placement: Vec<_> = turns.iter().map(|turns| distinct(turns)).collect();
    nothing_too_early(workers, &listed)?;
    let update_every = updates::check(workers, &listed, &placement)?;
    let is_split = |listed: &Listed| listed.passes.has(Pass::InputGradient);
    Ok(Facts {
        placement,
        turns,
        micro_batches,
        split: kinds.split.then(|| listed.map(is_split)),
        direct: direct(workers, listed.map(|_| false)),
        training: kinds.training,
        update_every,
    })
}

fn actions(workers: &[Vec<Action>]) -> impl Iterator<Item = (usize, Action)> {
    let numbered = workers.iter().enumerate();
    numbered.flat_map(|(worker, actions)| actions.iter().map(move |&action| (worker, action)))
}

/// All actions but updates.
fn passes(workers: &[Vec<Action>]) -> impl Iterator<Item = (usize, Action)> {
    actions(workers).filter(|(_, action)| action.pass != Pass::Update)
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
    match stages.checked_mul(micro_batches) {
        Some(forwards) if forwards <= total => Ok((stages, micro_batches)),
        _ => Err(first_gap(workers, stages, micro_batches)),
    }
}

/// The error of lists with fewer actions than forward passes.
fn first_gap(workers: &[Vec<Action>], stages: usize, micro_batches: usize) -> ScheduleError {
    let mut listed = HashMap::new();
    let mut owners = vec![0; stages];
    for (worker, action) in actions(workers) {
        // Every replica lists an update.
        let of = (action.pass == Pass::Update).then_some(worker);
        if let Some(owner) = listed.insert((action, of), worker) {
            return twice(worker, action, owner);
        }
        owners[action.stage] = worker;
    }
    // If there are more micro-batches than actions, one of the first is missing.
    let micro_batches = micro_batches.min(listed.len() + 1);
    let of_stage = |stage| (0..micro_batches).map(move |i| Action::forward(stage, i));
    let mut forwards = (0..stages).flat_map(of_stage);
    let missing = forwards.find(|&action| !listed.contains_key(&(action, None)));
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

/// Fills in which passes are listed for each stage and micro-batch, by one worker. Without updates.
fn nothing_twice(
    workers: &[Vec<Action>],
    mut listed: Table<Listed>,
) -> Result<Table<Listed>, ScheduleError> {
    for (worker, action) in passes(workers) {
        let entry = &mut listed[action];
        if entry.passes.0 == 0 {
            entry.worker = worker;
        }
        if entry.worker != worker || !entry.passes.insert(action.pass) {
            return Err(twice(worker, action, entry.worker));
        }
    }
    Ok(listed)
}

#[derive(Clone, Copy)]
struct Kinds {
    training: bool,
    split: bool,
}

impl Kinds {
    /// The first pass that a stage lacks for a micro-batch.
    fn lacking(self, has: Passes) -> Option<Pass> {
        use Pass::{Backward, Forward, InputGradient, WeightGradient};
        let has_half = has.has(InputGradient) || has.has(WeightGradient);
        let is_whole = has.has(Backward) || !(has_half || self.split);
        let needed = match (self.training, is_whole) {
            (false, _) => &[Forward][..],
            (true, true) => &[Forward, Backward],
            (true, false) => &[Forward, InputGradient, WeightGradient],
        };
        let lacks = |pass: &&Pass| !has.has(**pass);
        needed.iter().find(lacks).copied()
    }
}

fn nothing_missing(listed: &Table<Listed>, kinds: Kinds) -> Result<(), ScheduleError> {
    for (forward, &Listed { passes, worker }) in listed.iter() {
        let mut halves = [Pass::InputGradient, Pass::WeightGradient].into_iter();
        let half = halves.find(|&half| passes.has(half) && passes.has(Pass::Backward));
        if let Some(action) = half.map(|half| forward.with(half)) {
            return Err(ScheduleError::WholeAndHalf { worker, action });
        }
        if let Some(action) = kinds.lacking(passes).map(|pass| forward.with(pass)) {
            // Without any action for this micro-batch, a worker with another one of the stage.
            let mut of_stage = listed.of_stage(forward.stage).iter();
            let owner = of_stage.find(|entry| entry.passes.0 != 0 && passes.0 == 0);
            let worker = owner.map_or(worker, |owner| owner.worker);
            return Err(ScheduleError::Missing { worker, action });
        }
    }
    Ok(())
}

/// The workers of a stage's micro-batches, until they repeat.
fn turns(listed: &[Listed]) -> Vec<usize> {
    // The function of Knuth, Morris and Pratt: how much of each beginning is both its start and its end.
    let mut same = vec![0_usize; listed.len()];
    for end in 1..listed.len() {
        let mut start = same[end - 1];
        while start > 0 && listed[start].worker != listed[end].worker {
            start = same[start - 1];
        }
        same[end] = start + usize::from(listed[start].worker == listed[end].worker);
    }
    let period = listed.len() - same.last().copied().unwrap_or_default();
    listed[..period].iter().map(|entry| entry.worker).collect()
}

fn distinct(workers: &[usize]) -> Vec<usize> {
    let mut known = HashSet::new();
    let workers = workers.iter().copied();
    workers.filter(|&worker| known.insert(worker)).collect()
}

/// Checks the order of a worker's actions for a stage and a micro-batch.
fn nothing_too_early(workers: &[Vec<Action>], listed: &Table<Listed>) -> Result<(), ScheduleError> {
    let mut done = listed.map(|_| Passes::default());
    for (worker, action) in passes(workers) {
        let needs = needs(action.pass);
        if let Some(needs) = needs.filter(|&pass| !done[action].has(pass)) {
            let needs = action.with(needs);
            return Err(ScheduleError::TooEarly {
                worker,
                action,
                needs,
            });
        }
        done[action].insert(action.pass);
    }
    Ok(())
}

/// Sets the entries of the backward passes that come right after their forward pass.
fn direct(workers: &[Vec<Action>], mut direct: Table<bool>) -> Table<bool> {
    for pair in workers.iter().flat_map(|actions| actions.windows(2)) {
        if pair[1].pass.sends_gradient() && pair[0] == pair[1].with(Pass::Forward) {
            direct[pair[1]] = true;
        }
    }
    direct
}

/// The pass of the same stage and micro-batch that must come before this one.
fn needs(pass: Pass) -> Option<Pass> {
    match pass {
        Pass::Forward | Pass::Update => None,
        Pass::Backward | Pass::InputGradient => Some(Pass::Forward),
        Pass::WeightGradient => Some(Pass::InputGradient),
    }
}
