//! Walks through a schedule in an order in which it could run.

use std::{collections::HashMap, slice};

use crate::{Action, Pass, Schedule, error::Waiting, table::ResultTable};

impl Schedule {
    /// Visits every action after the actions it depends on, each worker's in its own order. Replicas
    /// run an update together, all other actions have one worker.
    ///
    /// A run of the pipeline without the work: a worker takes its next action as soon as the
    /// neighbouring stage's result is there, and otherwise waits. Sending never waits. A worker is
    /// looked at only when something arrived for it, so the time grows with the number of actions.
    ///
    /// The error says which workers wait for each other.
    pub(crate) fn replay(
        &self,
        mut visit: impl FnMut(&[usize], Action),
    ) -> Result<(), Vec<Waiting>> {
        let workers = self.workers().len();
        // For each worker, the index of its next action.
        let mut next = vec![0; workers];
        let mut done = ResultTable::new(self.stages(), self.micro_batches(), false);
        let mut meetings = Meetings::new(self);
        let unmet = |done: &ResultTable<bool>, action| {
            let input = self.input(action)?;
            (!done.get(input)).then_some(input)
        };
        let mut runnable: Vec<usize> = (0..workers).rev().collect();
        let mut is_listed = vec![true; workers];
        while let Some(worker) = runnable.pop() {
            is_listed[worker] = false;
            while let Some(&action) = self.workers()[worker].get(next[worker]) {
                if unmet(&done, action).is_some() {
                    break;
                }
                let Some(together) = meetings.arrive(&worker, action) else {
                    break;
                };
                done.set(action, true);
                visit(together, action);
                for &worker in together {
                    next[worker] += 1;
                }
                let output = self.output(action);
                let receiver = output.map(|to| self.worker_of(to.stage, to.micro_batch));
                for other in together.iter().copied().chain(receiver) {
                    if other != worker && !is_listed[other] {
                        is_listed[other] = true;
                        runnable.push(other);
                    }
                }
            }
        }
        let at = |worker: usize| self.workers()[worker].get(next[worker]).copied();
        let waiting = |worker: usize| {
            let action = at(worker)?;
            let needs = match action.pass {
                Pass::Update => {
                    let mut others = self.replicas(action.stage).iter();
                    others.find_map(|&other| at(other).filter(|&other| other != action))?
                }
                _ => unmet(&done, action)?,
            };
            Some(Waiting {
                worker,
                action,
                needs,
            })
        };
        let stuck: Vec<_> = (0..workers).filter_map(waiting).collect();
        if stuck.is_empty() { Ok(()) } else { Err(stuck) }
    }

    /// For each worker, the clock cycle of each action if every action takes one. And how many cycles
    /// there are.
    pub(crate) fn cycles(&self) -> (Vec<Vec<usize>>, usize) {
        // The cycle after each pass.
        let mut ends = ResultTable::new(self.stages(), self.micro_batches(), 0);
        let mut cycles: Vec<Vec<usize>> = vec![Vec::new(); self.workers().len()];
        let mut length = 0;
        let replayed = self.replay(|workers, action| {
            let arrived = self.input(action).map_or(0, |input| ends.get(input));
            let free = |&worker: &usize| cycles[worker].last().map_or(0, |before| before + 1);
            let cycle = workers.iter().map(free).fold(arrived, usize::max);
            for &worker in workers {
                cycles[worker].push(cycle);
            }
            ends.set(action, cycle + 1);
            length = length.max(cycle + 1);
        });
        debug_assert_eq!(replayed, Ok(()), "a schedule has no deadlock");
        (cycles, length)
    }
}

/// Where replicas wait for each other at updates.
struct Meetings<'a> {
    schedule: &'a Schedule,
    /// Whether a worker waits at its update.
    is_there: Vec<bool>,
    /// How many have come to each update.
    counts: HashMap<Action, usize>,
}

impl<'a> Meetings<'a> {
    fn new(schedule: &'a Schedule) -> Self {
        Self {
            schedule,
            is_there: vec![false; schedule.workers().len()],
            counts: HashMap::new(),
        }
    }

    /// The workers that run a worker's next action together. None as long as one has not come to it.
    fn arrive<'b>(&mut self, worker: &'b usize, action: Action) -> Option<&'b [usize]>
    where
        'a: 'b,
    {
        let replicas = self.schedule.replicas(action.stage);
        if action.pass != Pass::Update || replicas.len() == 1 {
            return Some(slice::from_ref(worker));
        }
        let count = self.counts.entry(action).or_default();
        if !self.is_there[*worker] {
            self.is_there[*worker] = true;
            *count += 1;
        }
        if *count < replicas.len() {
            return None;
        }
        self.counts.remove(&action);
        for &replica in replicas {
            self.is_there[replica] = false;
        }
        Some(replicas)
    }
}
