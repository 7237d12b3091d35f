//! Memory of a simulated step.

use std::{
    collections::HashSet,
    iter,
    ops::{Add, Sub},
};

use super::Simulation;
use crate::Pass;

/// Bytes that a worker keeps for micro-batches in flight, and the sums of their gradients.
///
/// ```
/// use stovepipe_schedule::{
///     Costs, GPipe, OneForwardOneBackward, PipeDream, Recompute, Scheduler, WeightPolicy,
/// };
///
/// let mut costs = Costs::uniform(2, 1.0, 1.0, 1.0);
/// for stage in &mut costs.stages {
///     let memory = &mut stage.memory;
///     (memory.fixed, memory.version) = (100.0, 20.0);
///     (memory.input, memory.activations, memory.rerun) = (1.0, 10.0, 10.0);
/// }
/// assert_eq!(GPipe.schedule(2, 8)?.simulate(&costs)?.peak_memory(), [180.0, 180.0]);
/// let schedule = OneForwardOneBackward.schedule(2, 8)?;
/// assert_eq!(schedule.simulate(&costs)?.peak_memory(), [120.0, 110.0]);
/// let schedule = PipeDream::default().schedule(2, 8)?;
/// assert_eq!(schedule.simulate(&costs)?.fixed_memory(), [120.0, 100.0]); // two versions, and one
/// costs.weights = WeightPolicy::VerticalSync;
/// assert_eq!(schedule.simulate(&costs)?.fixed_memory(), [120.0, 120.0]);
///
/// // Of eight micro-batches, one is recomputed while seven inputs wait.
/// costs.recompute = Recompute::Always;
/// let held = GPipe.schedule(2, 8)?.simulate(&costs)?.peak_held()[0];
/// assert_eq!((held.inputs, held.activations, held.total()), (7.0, 10.0, 17.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct HeldBytes {
    /// Inputs of what will be recomputed.
    pub inputs: f64,
    /// Activations, from the forward pass to the input gradient.
    pub activations: f64,
    /// What the weight gradients still need.
    pub contexts: f64,
    /// What a running pass needs besides; while a micro-batch is recomputed, that is among its activations.
    pub workspace: f64,
    /// The sums of gradients. While the first micro-batch adds its own, they take the place of its activations.
    pub gradients: f64,
}

/// What a worker keeps for micro-batches from a moment on.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct MemoryAt {
    /// Seconds since the start of the step.
    pub seconds: f64,
    /// Until the next moment.
    pub held: HeldBytes,
}

impl HeldBytes {
    /// The sum.
    #[must_use]
    pub fn total(self) -> f64 {
        let of_passes = self.inputs + self.activations + self.contexts + self.workspace;
        of_passes + self.gradients
    }
}

impl Add for HeldBytes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            inputs: self.inputs + other.inputs,
            activations: self.activations + other.activations,
            contexts: self.contexts + other.contexts,
            workspace: self.workspace + other.workspace,
            gradients: self.gradients + other.gradients,
        }
    }
}

impl Sub for HeldBytes {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            inputs: self.inputs - other.inputs,
            activations: self.activations - other.activations,
            contexts: self.contexts - other.contexts,
            workspace: self.workspace - other.workspace,
            gradients: self.gradients - other.gradients,
        }
    }
}

impl Simulation<'_> {
    /// For each worker, the most bytes that it keeps at one time.
    #[must_use]
    pub fn peak_memory(&self) -> Vec<f64> {
        let memory = self.fixed_memory().into_iter().zip(self.peak_held());
        memory.map(|(fixed, held)| fixed + held.total()).collect()
    }

    /// For each worker, the bytes that it always keeps: parameters, optimizer state and
    /// versions of weights, as many as the schedule needs at most under
    /// [the policy](crate::Costs::weights).
    #[must_use]
    pub fn fixed_memory(&self) -> Vec<f64> {
        let mut fixed = vec![0.0; self.slots.len()];
        for (stage, costs) in self.costs.stages.iter().enumerate() {
            let versions = self.versions.as_ref();
            let versions = versions.map_or(&[][..], |versions| versions.peaks(stage));
            let versions = versions.iter().chain(iter::repeat(&1));
            for (&worker, versions) in self.schedule.replicas(stage).iter().zip(versions) {
                let more = (versions - 1) as f64;
                fixed[worker] += costs.memory.fixed + more * costs.memory.version;
            }
        }
        fixed
    }

    /// For each worker, what it keeps for micro-batches at the peak.
    #[must_use]
    pub fn peak_held(&self) -> Vec<HeldBytes> {
        let peak_of = |worker| {
            let mut peak = HeldBytes::default();
            self.visit_memory(worker, |now| {
                if now.held.total() > peak.total() {
                    peak = now.held;
                }
            });
            peak
        };
        (0..self.slots.len()).map(peak_of).collect()
    }

    /// For each worker, what it keeps for micro-batches, over time: an entry for the begin and the end of each
    /// pass. [`fixed_memory`](Self::fixed_memory) comes on top. Nothing is kept in inference.
    ///
    /// ```
    /// use stovepipe_schedule::{Costs, GPipe, Scheduler};
    ///
    /// let mut costs = Costs::uniform(1, 1.0, 2.0, 0.0);
    /// costs.stages[0].memory.activations = 10.0;
    /// let schedule = GPipe.schedule(1, 2)?;
    /// let memory = schedule.simulate(&costs)?.memory();
    /// let bytes: Vec<_> = memory[0].iter().map(|at| (at.seconds, at.held.total())).collect();
    /// assert_eq!(bytes[..4], [(0.0, 10.0), (1.0, 10.0), (1.0, 20.0), (2.0, 20.0)]);
    /// assert_eq!(bytes[4..], [(2.0, 20.0), (4.0, 10.0), (4.0, 10.0), (6.0, 0.0)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn memory(&self) -> Vec<Vec<MemoryAt>> {
        let of_worker = |worker| {
            let mut memory = Vec::new();
            self.visit_memory(worker, |now| memory.push(now));
            memory
        };
        (0..self.slots.len()).map(of_worker).collect()
    }

    /// What all workers together keep over time, as [`memory`](Self::memory) has it for each.
    ///
    /// ```
    /// use stovepipe_schedule::{Costs, GPipe, Scheduler};
    ///
    /// let mut costs = Costs::uniform(2, 1.0, 2.0, 0.0);
    /// for stage in &mut costs.stages {
    ///     stage.memory.activations = 10.0;
    /// }
    /// let schedule = GPipe.schedule(2, 1)?;
    /// let memory = schedule.simulate(&costs)?.memory_of_all();
    /// let bytes: Vec<_> = memory.iter().map(|at| (at.seconds, at.held.total())).collect();
    /// assert_eq!(bytes, [(0.0, 10.0), (1.0, 20.0), (2.0, 20.0), (4.0, 10.0), (6.0, 0.0)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn memory_of_all(&self) -> Vec<MemoryAt> {
        let of_workers = self.memory();
        let events = of_workers.iter().enumerate();
        let events = events.flat_map(|(worker, own)| own.iter().map(move |&at| (worker, at)));
        let mut events: Vec<_> = events.collect();
        events.sort_by(|(_, one), (_, other)| one.seconds.total_cmp(&other.seconds));
        let (mut now, mut sum) = (
            vec![HeldBytes::default(); of_workers.len()],
            HeldBytes::default(),
        );
        let mut all: Vec<MemoryAt> = Vec::new();
        for (worker, at) in events {
            sum = sum + at.held - std::mem::replace(&mut now[worker], at.held);
            let after = MemoryAt { held: sum, ..at };
            // All that changes at one moment is one change.
            match all.last_mut() {
                Some(last) if last.seconds == at.seconds => *last = after,
                _ => all.push(after),
            }
        }
        all
    }

    fn visit_memory(&self, worker: usize, mut visit: impl FnMut(MemoryAt)) {
        if !self.schedule.is_training() {
            return;
        }
        let (mut held, mut summed) = (HeldBytes::default(), HashSet::new());
        let actions = self.schedule.workers()[worker].iter();
        for (&action, slot) in actions.zip(&self.slots[worker]) {
            let memory = self.costs.stages[action.stage].memory;
            let is_kept = self.kept[action.stage][action.micro_batch];
            // An action's inputs and outputs are in memory at the same time.
            match action.pass {
                Pass::Forward if is_kept => held.activations += memory.activations,
                Pass::Forward => {
                    held.inputs += memory.input;
                    held.activations += memory.kept;
                }
                pass if pass.sends_gradient() && !is_kept => {
                    held.inputs -= memory.input;
                    held.activations += memory.rerun - memory.kept;
                }
                _ => {}
            }
            let is_rerun = action.pass.sends_gradient() && !is_kept;
            if action.pass != Pass::Update && !is_rerun {
                held.workspace = memory.workspace;
            }
            visit(MemoryAt {
                seconds: slot.start,
                held,
            });
            let most = if is_kept {
                memory.activations
            } else {
                memory.rerun
            };
            held.workspace = 0.0;
            match action.pass {
                Pass::Backward => held.activations -= most,
                Pass::InputGradient => {
                    held.activations -= most;
                    held.contexts += memory.context;
                }
                Pass::WeightGradient => held.contexts -= memory.context,
                Pass::Forward | Pass::Update => {}
            }
            if action.pass.computes_weight_gradients() && summed.insert(action.stage) {
                held.gradients += memory.gradients;
            }
            visit(MemoryAt {
                seconds: slot.end,
                held,
            });
        }
    }
}
