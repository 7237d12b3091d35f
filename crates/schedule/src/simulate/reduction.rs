//! The end of a simulated step: gradients of replicas are added up, weights are updated.

use super::{Simulation, Slot};
use crate::{Costs, Pass, Schedule};

/// For each stage, when its buckets are reduced.
pub(super) fn reductions(
    schedule: &Schedule,
    costs: &Costs,
    slots: &[Vec<Slot>],
) -> Vec<Vec<Slot>> {
    let of_stage = |stage: usize| {
        let (costs, replicas) = (&costs.stages[stage], schedule.replicas(stage));
        let is_reduced = schedule.is_training() && !schedule.is_asynchronous();
        if !is_reduced || replicas.len() < 2 {
            return Vec::new();
        }
        // The end and the length of each replica's last pass with gradients of weights.
        let last = |&worker: &usize| {
            let actions = schedule.workers()[worker].iter().zip(&slots[worker]);
            let mut own = actions.rev().filter(|(action, _)| action.stage == stage);
            own.find_map(|(action, slot)| match action.pass {
                Pass::Backward => Some((slot.end, costs.input + costs.weight)),
                Pass::WeightGradient => Some((slot.end, costs.weight)),
                _ => None,
            })
        };
        let last: Vec<_> = replicas.iter().filter_map(last).collect();
        let mut free = 0.0;
        let reduced = costs.buckets.iter().map(|bucket| {
            let ready = |&(end, length): &(f64, f64)| end - (1.0 - bucket.ready) * length;
            let start = last.iter().map(ready).fold(free, f64::max);
            free = start + bucket.seconds;
            Slot { start, end: free }
        });
        reduced.collect()
    };
    (0..schedule.stages()).map(of_stage).collect()
}

impl Simulation<'_> {
    /// The time in seconds from the first pass of all workers to the end of the last all-reduce and
    /// update.
    #[must_use]
    pub fn makespan(&self) -> f64 {
        let reduced = self.reductions.iter().filter_map(|slots| slots.last());
        reduced.fold(self.updated(true), |end, slot| end.max(slot.end))
    }

    /// Seconds of the all-reduces of gradients, of the stage with most of them. Stages reduce at the
    /// same time.
    #[must_use]
    pub fn all_reduce(&self) -> f64 {
        let seconds = |slots: &Vec<Slot>| slots.iter().map(|slot| slot.end - slot.start).sum();
        self.reductions.iter().map(seconds).fold(0.0, f64::max)
    }

    /// The seconds of [`all_reduce`](Self::all_reduce) that make the step longer. The others are hidden
    /// behind passes.
    ///
    /// ```
    /// use stovepipe_schedule::{Bucket, Costs, DataParallel, GPipe, Scheduler};
    ///
    /// // The gradients of the second half of the layers are complete halfway through the last pass.
    /// let mut costs = Costs::uniform(1, 1.0, 1.0, 1.0);
    /// costs.stages[0].buckets = [0.5, 1.0].map(|ready| Bucket { ready, seconds: 1.5 }).to_vec();
    /// let schedule = DataParallel::equal(GPipe, 2).schedule(1, 2)?;
    /// let simulation = schedule.simulate(&costs)?;
    /// // Forward until 1, backward until 3, the first bucket from 2 to 3.5, the second to 5.
    /// assert_eq!([simulation.step_time(), simulation.makespan()], [3.0, 5.0]);
    /// assert_eq!([simulation.all_reduce(), simulation.exposed_all_reduce()], [3.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn exposed_all_reduce(&self) -> f64 {
        self.makespan() - self.updated(false)
    }

    /// When all updates and passes have ended, with or without the wait for all-reduces.
    fn updated(&self, waits: bool) -> f64 {
        let updates = self.updates(waits).into_iter().enumerate();
        let ends = updates.map(|(worker, updates)| {
            let last = updates.last().map(|slot| slot.end);
            last.unwrap_or(self.end(worker))
        });
        ends.fold(0.0, f64::max)
    }

    /// For each worker, the updates of its stages at the end, those first whose gradients are complete
    /// first.
    pub(super) fn updates(&self, waits: bool) -> Vec<Vec<Slot>> {
        let mut updates = vec![Vec::new(); self.slots.len()];
        if self.schedule.is_training() && !self.schedule.is_asynchronous() {
            let stages = self.costs.stages.iter().enumerate();
            for (stage, costs) in stages.filter(|(_, costs)| costs.update > 0.0) {
                let reduced = self.reductions[stage].last().filter(|_| waits);
                let start = reduced.map_or(0.0, |slot| slot.end);
                let end = start + costs.update;
                for &worker in self.schedule.replicas(stage) {
                    updates[worker].push(Slot { start, end });
                }
            }
        }
        for (worker, updates) in updates.iter_mut().enumerate() {
            updates.sort_by(|a, b| a.start.total_cmp(&b.start));
            let mut free = self.end(worker);
            for update in updates {
                let seconds = update.end - update.start;
                update.start = update.start.max(free);
                free = update.start + seconds;
                update.end = free;
            }
        }
        updates
    }
}
