//! What a schedule makes its workers hold.

use crate::{Action, Pass, Schedule, ScheduleError};

/// What workers may hold at most; see [`Schedule::check`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Limits {
    /// Micro-batches between their forward and their backward pass on a worker, counted for each of
    /// its stages.
    pub activations: Option<usize>,
    /// Versions of a stage's weights on a worker.
    pub weight_versions: Option<usize>,
}

impl Schedule {
    /// For each stage, the most micro-batches that one of its workers has at one time between their
    /// forward and their backward pass.
    ///
    /// It is what the memory for activations grows with: [`GPipe`](crate::GPipe) keeps all
    /// micro-batches, [`OneForwardOneBackward`](crate::OneForwardOneBackward) no more than there
    /// are stages. Without backward passes nothing is kept, and the numbers are 0.
    ///
    /// ```
    /// # use stovepipe_schedule::{GPipe, OneForwardOneBackward, Scheduler};
    /// assert_eq!(GPipe.schedule(3, 8)?.peak_in_flight(), [8, 8, 8]);
    /// assert_eq!(OneForwardOneBackward.schedule(3, 8)?.peak_in_flight(), [3, 2, 1]);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn peak_in_flight(&self) -> Vec<usize> {
        let mut peaks = vec![0; self.stages()];
        if self.is_training() {
            // Replicas are told apart: each ends with what it began, nothing.
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
    /// A worker with several stages holds a part of a micro-batch for each: the unit is a micro-batch
    /// on all of them.
    ///
    /// ```
    /// # use stovepipe_schedule::{OneForwardOneBackward, Scheduler, ZeroBubbleV};
    /// assert_eq!(OneForwardOneBackward.schedule(4, 8)?.peak_activations(), [4.0, 3.0, 2.0, 1.0]);
    /// assert_eq!(ZeroBubbleV.schedule(8, 8)?.peak_activations(), [4.0; 4]);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn peak_activations(&self) -> Vec<f64> {
        self.peaks(activations)
    }

    /// For each worker, the most micro-batches, counted as in
    /// [`peak_activations`](Self::peak_activations), for which the gradients of weights are still to be
    /// found when that of the input has been.
    ///
    /// Each keeps the inputs of layers and the gradients of their outputs.
    ///
    /// ```
    /// # use stovepipe_schedule::{Scheduler, ZeroBubbleH1};
    /// let schedule = ZeroBubbleH1.schedule(3, 8)?;
    /// assert_eq!(schedule.peak_weight_contexts(), [1.0, 2.0, 3.0]);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn peak_weight_contexts(&self) -> Vec<f64> {
        self.peaks(weight_contexts)
    }

    fn peaks(&self, effect: fn(Pass) -> i8) -> Vec<f64> {
        let stages = self.stages_of_workers();
        let of_worker = |(worker, actions): (usize, &Vec<Action>)| {
            let (mut held, mut peak) = (0, 0);
            for action in actions {
                change(&mut held, action.pass, effect);
                peak = peak.max(held);
            }
            peak as f64 / stages[worker] as f64
        };
        match self.is_training() {
            true => (self.workers().iter().enumerate()).map(of_worker).collect(),
            false => vec![0.0; self.workers().len()],
        }
    }

    /// The number of stages of each worker.
    ///
    /// ```
    /// # use stovepipe_schedule::Schedule;
    /// let schedule: Schedule = "0F0 2F0\n1F0".parse()?;
    /// assert_eq!(schedule.stages_of_workers(), [2, 1]);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn stages_of_workers(&self) -> Vec<usize> {
        let mut counts = vec![0; self.workers().len()];
        for &worker in (0..self.stages()).flat_map(|stage| self.replicas(stage)) {
            counts[worker] += 1;
        }
        counts
    }

    /// For each worker, the most versions of a stage's weights that it keeps at one time, under an
    /// asynchronous schedule; 1 under all others.
    ///
    /// A micro-batch's backward pass uses the weights that its forward pass used, which are kept as
    /// long (weight stashing). With `vertical_sync` every stage uses the version that the first stage
    /// used for the micro-batch, and keeps older ones for those still to come.
    ///
    /// ```
    /// # use stovepipe_schedule::{GPipe, PipeDream, Scheduler};
    /// let schedule = PipeDream::default().schedule(3, 8)?;
    /// assert_eq!(schedule.weight_versions(false)?, [3, 2, 1]); // warm-up + 1
    /// assert_eq!(schedule.weight_versions(true)?, [3, 3, 3]);
    /// assert_eq!(GPipe.schedule(2, 8)?.weight_versions(false)?, [1, 1]);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a stage would need weights that it has not come to yet.
    pub fn weight_versions(&self, vertical_sync: bool) -> Result<Vec<usize>, ScheduleError> {
        crate::versions::weight_versions(self, vertical_sync, None)
    }

    /// Makes sure that no worker holds more than it may.
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
                check_activations(worker, actions, most)?;
            }
        }
        if limits.weight_versions.is_some() {
            crate::versions::weight_versions(self, false, limits.weight_versions)?;
        }
        Ok(())
    }
}

fn check_activations(worker: usize, actions: &[Action], most: usize) -> Result<(), ScheduleError> {
    let mut held = 0;
    for &action in actions {
        change(&mut held, action.pass, activations);
        if held > most {
            return Err(ScheduleError::Activations {
                worker,
                action,
                held,
                most,
            });
        }
    }
    Ok(())
}

fn change(held: &mut usize, pass: Pass, effect: fn(Pass) -> i8) {
    *held = held.saturating_add_signed(effect(pass).into());
}

/// Activations are kept from the forward pass to the gradient of the input.
fn activations(pass: Pass) -> i8 {
    match pass {
        Pass::Forward => 1,
        Pass::Backward | Pass::InputGradient => -1,
        Pass::WeightGradient | Pass::Update => 0,
    }
}

/// What the gradients of weights need is kept from the gradient of the input on.
fn weight_contexts(pass: Pass) -> i8 {
    match pass {
        Pass::InputGradient => 1,
        Pass::WeightGradient => -1,
        Pass::Forward | Pass::Backward | Pass::Update => 0,
    }
}
