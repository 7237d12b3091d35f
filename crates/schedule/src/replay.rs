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
        // For each worker, the index of its next action.
        let mut next = vec![0; workers];
        let mut done = ResultTable::new(self.stages(), self.micro_batches(), false);
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
                next[worker] += 1;
                done.set(action, true);
                visit(worker, action);
                if let Some(output) = self.output(action) {
                    let receiver = self.worker_of(output.stage, output.micro_batch);
                    if receiver != worker && !is_listed[receiver] {
                        is_listed[receiver] = true;
                        runnable.push(receiver);
                    }
                }
            }
        }
        let waiting = |worker: usize| {
            let action = *self.workers()[worker].get(next[worker])?;
            let needs = unmet(&done, action)?;
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
        let replayed = self.replay(|worker, action| {
            let arrived = self.input(action).map_or(0, |input| ends.get(input));
            let free = cycles[worker].last().map_or(0, |before| before + 1);
            let cycle = free.max(arrived);
            cycles[worker].push(cycle);
            ends.set(action, cycle + 1);
            length = length.max(cycle + 1);
        });
        debug_assert_eq!(replayed, Ok(()), "a schedule has no deadlock");
        (cycles, length)
    }
}
