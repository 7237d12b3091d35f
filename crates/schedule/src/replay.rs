//! Walking through a schedule in an order in which it could really run.

use std::collections::HashSet;

use crate::{Action, error::Waiting};

/// Visits every action after the actions it depends on, each worker's in its own order.
///
/// This is a run of the pipeline without the work: a worker takes its next action as soon as
/// the neighbouring stage's result is there, and otherwise waits. Results are buffered, so that
/// sending never blocks; only receiving does.
///
/// `owners` holds the worker of each stage. Each action is looked at once, and once more for
/// each result that arrives, so the cost is linear in the number of actions.
///
/// If the workers end up waiting for one another, the error says who waits for what.
pub(crate) fn replay(
    workers: &[Vec<Action>],
    owners: &[usize],
    mut visit: impl FnMut(usize, Action),
) -> Result<(), Vec<Waiting>> {
    let stages = owners.len();
    let mut progress = Progress {
        workers,
        stages,
        next: vec![0; workers.len()],
        done: HashSet::new(),
    };
    let mut runnable: Vec<usize> = (0..workers.len()).rev().collect();
    while let Some(worker) = runnable.pop() {
        while let Some(action) = progress.advance(worker) {
            visit(worker, action);
            runnable.extend(action.output(stages).map(|output| owners[output.stage]));
        }
    }
    progress.finish()
}

struct Progress<'a> {
    workers: &'a [Vec<Action>],
    stages: usize,
    /// For each worker, the index of its next action.
    next: Vec<usize>,
    done: HashSet<Action>,
}

impl Progress<'_> {
    /// Carries out the worker's next action, unless it has to wait or has none left.
    fn advance(&mut self, worker: usize) -> Option<Action> {
        let action = *self.workers[worker].get(self.next[worker])?;
        if self.unmet(action).is_some() {
            return None;
        }
        self.next[worker] += 1;
        self.done.insert(action);
        Some(action)
    }

    /// The action whose result is still to come before this one can begin.
    fn unmet(&self, action: Action) -> Option<Action> {
        let input = action.input(self.stages)?;
        (!self.done.contains(&input)).then_some(input)
    }

    fn finish(self) -> Result<(), Vec<Waiting>> {
        let stuck: Vec<_> = (0..self.workers.len())
            .filter_map(|worker| self.waiting(worker))
            .collect();
        if stuck.is_empty() { Ok(()) } else { Err(stuck) }
    }

    fn waiting(&self, worker: usize) -> Option<Waiting> {
        let action = *self.workers[worker].get(self.next[worker])?;
        let needs = self.unmet(action)?;
        Some(Waiting {
            worker,
            action,
            needs,
        })
    }
}
