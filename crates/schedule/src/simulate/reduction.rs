//! Updates of a simulated step: gradients of replicas are added up, weights are updated.

use super::{Simulation, Slot};
use crate::{Bucket, Pass};

impl Simulation<'_> {
    /// When the buckets of a stage are reduced after what ran so far, if each takes so many `seconds`.
    pub(super) fn reduce(&self, stage: usize, seconds: impl Fn(&Bucket) -> f64) -> Vec<Slot> {
        let schedule = self.schedule;
        let (costs, replicas) = (&self.costs.stages[stage], schedule.replicas(stage));
        if !schedule.is_training() || replicas.len() < 2 {
            return Vec::new();
        }
        // The end and the length of each replica's last pass with gradients of weights.
        let last = |&worker: &usize| {
            let actions = schedule.workers()[worker].iter().zip(&self.slots[worker]);
            let mut own = actions.rev().filter(|(action, _)| action.stage == stage);
            own.find_map(|(action, slot)| match action.pass {
                Pass::Backward | Pass::WeightGradient => {
                    Some((slot.end, self.length(worker, *action)))
                }
                _ => None,
            })
        };
        let last: Vec<_> = replicas.iter().filter_map(last).collect();
        let mut free = 0.0;
        let reduced = costs.buckets.iter().map(|bucket| {
            let ready = |&(end, length): &(f64, f64)| end - (1.0 - bucket.ready) * length;
            let start = last.iter().map(ready).fold(free, f64::max);
            free = start + seconds(bucket);
            Slot { start, end: free }
        });
        reduced.collect()
    }

    /// The time in seconds from the first pass of all workers to the end of the last all-reduce and
    /// update.
    #[must_use]
    pub fn makespan(&self) -> f64 {
        self.end_after(&self.reductions)
    }

    /// Seconds of all all-reduces of gradients, of the stage with most of them. Stages reduce at the same
    /// time.
    #[must_use]
    pub fn all_reduce(&self) -> f64 {
        let seconds = |slots: &Vec<Slot>| slots.iter().map(|slot| slot.end - slot.start).sum();
        self.reductions.iter().map(seconds).fold(0.0, f64::max)
    }

    /// How much longer the step is than if all-reduces took no time. The other seconds are hidden behind
    /// passes. Unless the schedule is asynchronous, it is at most [`all_reduce`](Self::all_reduce).
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
        if !self.schedule.is_asynchronous() {
            let stages = 0..self.schedule.stages();
            let at_once = stages.map(|stage| self.reduce(stage, |_| 0.0));
            return self.makespan() - self.end_after(&at_once.collect::<Vec<_>>());
        }
        // Passes wait for updates.
        let mut costs = self.costs.clone();
        let buckets = costs.stages.iter_mut().flat_map(|stage| &mut stage.buckets);
        buckets.for_each(|bucket| bucket.seconds = 0.0);
        let without = self.schedule.simulate(&costs);
        without.map_or(0.0, |without| self.makespan() - without.makespan())
    }

    /// When all passes, these all-reduces, and all updates have ended.
    fn end_after(&self, reductions: &[Vec<Slot>]) -> f64 {
        let passes = (0..self.slots.len()).map(|worker| self.end(worker));
        let updates = self.updates(reductions);
        let others = reductions
            .iter()
            .chain(&updates)
            .filter_map(|slots| slots.last());
        let ends = passes.chain(others.map(|slot| slot.end));
        ends.fold(0.0, f64::max)
    }

    /// For each worker, the updates of its stages at the end, those first whose gradients are complete
    /// first.
    pub(super) fn updates(&self, reductions: &[Vec<Slot>]) -> Vec<Vec<Slot>> {
        let mut updates = vec![Vec::new(); self.slots.len()];
        if self.schedule.is_training() && !self.schedule.is_asynchronous() {
            let stages = self.costs.stages.iter().enumerate();
            for (stage, costs) in stages.filter(|(_, costs)| costs.update > 0.0) {
                let reduced = reductions[stage].last();
                let start = reduced.map_or(0.0, |slot| slot.end);
                for &worker in self.schedule.replicas(stage) {
                    let end = start + costs.update / self.costs.speed(worker);
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
