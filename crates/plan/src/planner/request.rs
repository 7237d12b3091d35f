//! What to plan.

use stovepipe_schedule::{Recompute, Rule};

use super::{PlanError, shape::Mode};
use crate::{Machine, OptimizerState, Profile};

/// Up to this number of workers, every number of workers and every distribution of replicas is tried.
pub(super) const FEW: usize = 8;
/// The largest number of micro-batches that is tried by default.
const MOST_USUAL: usize = 256;

/// The usual [`PlanRequest::bucket`]: 25 MiB.
pub const BUCKET: u64 = 25 << 20;

/// What to plan, and the choices.
#[derive(Clone, Debug)]
pub struct PlanRequest<'a> {
    /// The model.
    pub profile: &'a Profile,
    /// The devices and links.
    pub machine: &'a Machine,
    /// Samples of a mini-batch. All micro-batches count as large as the largest.
    pub mini_batch: usize,
    /// What the optimizer keeps.
    pub state: OptimizerState,
    /// Bytes of gradients that replicas add up at once, layer by layer from the last; the first time at
    /// most 1 MiB. A layer is never split.
    pub bucket: u64,
    /// Numbers of workers, at most the number of devices.
    pub workers: Vec<usize>,
    /// Schedules. An asynchronous one, whose result is not that of one device, is ignored unless it is the only
    /// one.
    pub rules: Vec<Rule>,
    /// Stages of each worker, for rules that [take chunks](Rule::takes_chunks).
    pub chunks: Vec<usize>,
    /// Numbers of micro-batches, at most the samples of a mini-batch.
    pub micro_batches: Vec<usize>,
    /// What to recompute.
    pub recompute: Vec<Recompute>,
    /// Whether to choose what to recompute by layer too, where a device's memory is known.
    pub by_layer: bool,
    /// Whether there may be replicas: of the whole pipeline, with equal shares of the micro-batches or
    /// shares by the speeds of their devices; and of stages, for rules that
    /// [take replicas](Rule::takes_replicas).
    pub replicas: bool,
}

impl<'a> PlanRequest<'a> {
    /// All choices but replicas: up to as many workers as devices, all synchronous schedules, powers of
    /// two and divisors of the mini-batch as numbers of micro-batches.
    ///
    /// ```
    /// use stovepipe_plan::{LayerProfile, Machine, PlanRequest, Profile};
    ///
    /// let layer = LayerProfile { forward: 1.0, backward: 2.0, ..LayerProfile::default() };
    /// let profile = Profile { samples: 1, input: 0, layers: vec![layer; 8], skips: vec![] };
    /// let machine = Machine::uniform(2);
    /// let plan = PlanRequest::new(&profile, &machine, 16).plan()?;
    /// assert_eq!(plan.best.workers(), 2);
    /// assert_eq!(plan.best.micro_batches, 16);
    /// # Ok::<(), stovepipe_plan::PlanError>(())
    /// ```
    #[must_use]
    pub fn new(profile: &'a Profile, machine: &'a Machine, mini_batch: usize) -> Self {
        let most = machine.devices.len().min(profile.layers.len());
        Self {
            profile,
            machine,
            mini_batch,
            state: OptimizerState::default(),
            bucket: BUCKET,
            workers: usual_workers(most),
            rules: Rule::synchronous().collect(),
            chunks: vec![2, 3, 4],
            micro_batches: usual_micro_batches(mini_batch),
            // Of equals, the one that recomputes least.
            recompute: vec![Recompute::Never, Recompute::ExceptLast, Recompute::Always],
            by_layer: true,
            replicas: false,
        }
    }

    /// How what is recomputed may be decided.
    pub(super) fn modes(&self) -> Vec<Mode> {
        let fixed = self.recompute.iter().cloned().map(Mode::Fixed);
        let mut devices = self.machine.devices.iter();
        let by_layer = self.by_layer && devices.any(|device| device.memory.is_some());
        fixed.chain(by_layer.then_some(Mode::ByLayer)).collect()
    }

    /// The updates that are simulated: one, or of an asynchronous schedule enough for all versions of the
    /// weights.
    pub(super) fn updates(&self, rule: Rule) -> usize {
        match rule.is_synchronous() {
            true => 1,
            false => 2 * self.workers.iter().copied().max().unwrap_or(1).max(2),
        }
    }

    pub(super) fn check(&self) -> Result<(), PlanError> {
        let (layers, devices) = (self.profile.layers.len(), self.machine.devices.len());
        let nothing = [
            ("layers", layers == 0),
            ("devices", devices == 0),
            ("samples", self.mini_batch == 0),
            ("workers", self.workers.is_empty()),
            ("schedules", self.rules.is_empty()),
            ("micro-batches", self.micro_batches.is_empty()),
            (
                "recompute modes",
                self.recompute.is_empty() && !self.by_layer,
            ),
        ];
        if let Some((what, _)) = nothing.into_iter().find(|(_, is_missing)| *is_missing) {
            return Err(PlanError::Nothing(what));
        }
        for &workers in &self.workers {
            if workers == 0 {
                return Err(PlanError::Nothing("workers"));
            }
            if workers > devices {
                return Err(PlanError::TooFewDevices { workers, devices });
            }
            if workers > layers && !self.replicas {
                return Err(PlanError::TooManyWorkers { workers, layers });
            }
        }
        for recompute in &self.recompute {
            if let Recompute::Segments(segments) = recompute {
                segments.check(layers)?;
            }
        }
        for skip in &self.profile.skips {
            skip.check(layers)?;
        }
        let mini_batch = self.mini_batch;
        match (self.micro_batches.iter()).find(|&&m| m == 0 || m > mini_batch) {
            Some(&micro_batches) => Err(PlanError::MicroBatches {
                mini_batch,
                micro_batches,
            }),
            None => Ok(()),
        }
    }
}

/// All numbers of workers if there are few, else powers of two and the largest.
fn usual_workers(most: usize) -> Vec<usize> {
    let is_usual = |&count: &usize| count <= FEW || count.is_power_of_two() || count == most;
    (1..=most).filter(is_usual).collect()
}

/// Divisors of the mini-batch and powers of two.
fn usual_micro_batches(mini_batch: usize) -> Vec<usize> {
    let most = mini_batch.min(MOST_USUAL);
    let is_usual = |&count: &usize| mini_batch.is_multiple_of(count) || count.is_power_of_two();
    (1..=most).filter(is_usual).collect()
}
