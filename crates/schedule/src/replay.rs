//! Walks through a schedule in an order in which it could run.

use crate::{Action, Schedule, error::Waiting, table::ResultTable};

impl Schedule {
    /// Visits every action after the actions it depends on, each worker's in its own order.
    ///
    /// A run of the pipeline without the work: a worker takes its next action as soon as the
    /// neighbouring stage's result is there, and otherwise waits. Sending never waits. A worker is
    /// looked at only when something arrived for it, so the time grows with the number of actions.
    ///
    /// The error says which workers wait for each other.
    pub(crate) fn replay(&self, mut visit: impl FnMut(usize, Action)) -> Result<(), Vec<Waiting>> {
        let workers = self.workers().len();
        let mut progress = Progress {
            schedule: self,
            next: vec![0; workers],
            done: ResultTable::new(self.stages(), self.micro_batches(), false),
        };
        let mut runnable: Vec<usize> = (0..workers).rev().collect();
        let mut is_listed = vec![true; workers];
        while let Some(worker) = runnable.pop() {
            is_listed[worker] = false;
            while let Some(action) = progress.advance(worker) {
                visit(worker, action);
                let Some(output) = self.output(action) else {
                    continue;
                };
                let receiver = self.worker_of(output.stage, output.micro_batch);
                if receiver != worker && !is_listed[receiver] {
                    is_listed[receiver] = true;
                    runnable.push(receiver);
                }
            }
        }
        progress.finish()
    }
}

struct Progress<'a> {
    schedule: &'a Schedule,
    /// For each worker, the index of its next action.
    next: Vec<usize>,
    done: ResultTable<bool>,
}

impl Progress<'_> {
    /// Runs the worker's next action, unless it has to wait or there is none.
    fn advance(&mut self, worker: usize) -> Option<Action> {
        let action = *self.schedule.workers()[worker].get(self.next[worker])?;
        if self.unmet(action).is_some() {
            return None;
        }
        self.next[worker] += 1;
        self.done.set(action, true);
        Some(action)
    }

    /// The action whose result this one still waits for.
    fn unmet(&self, action: Action) -> Option<Action> {
        let input = self.schedule.input(action)?;
        (!self.done.get(input)).then_some(input)
    }

    fn finish(self) -> Result<(), Vec<Waiting>> {
        let workers = 0..self.next.len();
        let stuck: Vec<_> = workers.filter_map(|worker| self.waiting(worker)).collect();
        if stuck.is_empty() { Ok(()) } else { Err(stuck) }
    }

    fn waiting(&self, worker: usize) -> Option<Waiting> {
        let action = *self.schedule.workers()[worker].get(self.next[worker])?;
        let needs = self.unmet(action)?;
        Some(Waiting {
            worker,
            action,
            needs,
        })
    }
}
