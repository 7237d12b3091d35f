//! What workers hold under a schedule.

use crate::{Action, Pass, Schedule, ScheduleError};

/// What a worker may hold at most; see [`Schedule::check`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Limits {
    /// Micro-batches between their forward and their backward pass, counted for each stage.
    pub activations: Option<usize>,
    /// Versions of a stage's weights, with weight stashing.
    pub weight_versions: Option<usize>,
}

impl Schedule {
    /// For each stage, the most micro-batches that one of its workers has between their forward and
    /// their backward pass at one time. 0 without backward passes.
    ///
    /// The memory for activations grows with it: [`GPipe`](crate::GPipe) keeps all micro-batches,
    /// [`OneForwardOneBackward`](crate::OneForwardOneBackward) at most as many as there are stages.
    #[must_use]
    pub fn peak_in_flight(&self) -> Vec<usize> {
        let mut peaks = vec![0; self.stages()];
        if self.is_training() {
            // Replicas may share a counter: after each worker it is 0 again.
            let mut held = peaks.clone();
            for action in self.workers().iter().flatten() {
                let held = &mut held[action.stage];
                change(held, action.pass, activations);
                peaks[action.stage] = peaks[action.stage].max(*held);
            }
        }
        peaks
    }

    /// For each worker, the most activations that it holds at one time, in micro-batches.
    ///
    /// A worker with several stages holds a part of a micro-batch for each. The unit is a micro-batch
    /// on all of them.
    ///
    /// ```
    /// # use stovepipe_schedule::{GPipe, OneForwardOneBackward, Scheduler, ZeroBubbleH1, ZeroBubbleV};
    /// assert_eq!(GPipe.schedule(3, 8)?.peak_in_flight(), [8, 8, 8]);
    /// assert_eq!(OneForwardOneBackward.schedule(3, 8)?.peak_in_flight(), [3, 2, 1]);
    /// assert_eq!(OneForwardOneBackward.schedule(4, 8)?.peak_activations(), [4.0, 3.0, 2.0, 1.0]);
    /// assert_eq!(ZeroBubbleV.schedule(8, 8)?.peak_activations(), [4.0; 4]); // half micro-batches
    /// assert_eq!(ZeroBubbleH1.schedule(3, 8)?.peak_weight_contexts(), [1.0, 2.0, 3.0]);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn peak_activations(&self) -> Vec<f64> {
        self.peaks(activations)
    }

    /// For each worker, the most micro-batches that have their input gradient, but not yet their weight
    /// gradients. The unit is that of [`peak_activations`](Self::peak_activations).
    ///
    /// Each keeps the inputs of layers and the gradients of their outputs.
    #[must_use]
    pub fn peak_weight_contexts(&self) -> Vec<f64> {
        self.peaks(weight_contexts)
    }

    fn peaks(&self, effect: fn(Pass) -> i8) -> Vec<f64> {
        if !self.is_training() {
            return vec![0.0; self.workers().len()];
        }
        let workers = self.workers().iter().zip(self.stages_of_workers());
        let peak = workers.map(|(actions, stages)| {
            let peak = held(actions, effect).map(|(_, held)| held).max();
            peak.unwrap_or(0) as f64 / stages as f64
        });
        peak.collect()
    }

    /// The number of stages of each worker.
    #[must_use]
    pub fn stages_of_workers(&self) -> Vec<usize> {
        let mut counts = vec![0; self.workers().len()];
        for &worker in (0..self.stages()).flat_map(|stage| self.replicas(stage)) {
            counts[worker] += 1;
        }
        counts
    }

    /// Checks that no worker holds more than the limits allow.
    ///
    /// ```
    /// use stovepipe_schedule::{GPipe, Limits, OneForwardOneBackward, Scheduler};
    ///
    /// let limits = Limits { activations: Some(2), ..Limits::default() };
    /// assert!(OneForwardOneBackward.schedule(2, 8)?.check(limits).is_ok());
    /// assert_eq!(
    ///     GPipe.schedule(2, 8)?.check(limits).unwrap_err().to_string(),
    ///     "worker 0 at 0F2 holds 3 micro-batches, but may hold 2"
    /// );
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The first action at which a worker holds more.
    pub fn check(&self, limits: Limits) -> Result<(), ScheduleError> {
        if let (Some(most), true) = (limits.activations, self.is_training()) {
            for (worker, actions) in self.workers().iter().enumerate() {
                let over = held(actions, activations).find(|&(_, held)| held > most);
                if let Some((action, held)) = over {
                    return Err(ScheduleError::Activations {
                        worker,
                        action,
                        held,
                        most,
                    });
                }
            }
        }
        match limits.weight_versions {
            Some(most) if self.is_asynchronous() => self.check_weight_versions(most),
            _ => Ok(()),
        }
    }
}

/// The actions, and what a worker holds after each.
fn held(actions: &[Action], effect: fn(Pass) -> i8) -> impl Iterator<Item = (Action, usize)> {
    actions.iter().scan(0, move |held, &action| {
        change(held, action.pass, effect);
        Some((action, *held))
    })
}

fn change(held: &mut usize, pass: Pass, effect: fn(Pass) -> i8) {
    *held = held.saturating_add_signed(effect(pass).into());
}

/// Activations are kept from the forward pass to the input gradient.
fn activations(pass: Pass) -> i8 {
    match pass {
        Pass::Forward => 1,
        Pass::Backward | Pass::InputGradient => -1,
        Pass::WeightGradient | Pass::Update => 0,
    }
}

/// What the weight gradients need is kept from the input gradient on.
fn weight_contexts(pass: Pass) -> i8 {
    match pass {
        Pass::InputGradient => 1,
        Pass::WeightGradient => -1,
        Pass::Forward | Pass::Backward | Pass::Update => 0,
    }
}
