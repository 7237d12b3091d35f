//! Two stages a worker, laid out like a V.

use super::{Definition, Scheduler};
use crate::{Action, Pass, Schedule, ScheduleError};

pub(super) const RULE: Definition = Definition::new("zb-v", |_| Box::new(ZeroBubbleV));

/// ZB-V: each worker has two stages, laid out like a V, so that no worker waits.
///
/// Worker `i` of `p` has the stages `i` and `2p − 1 − i`: the first worker has both ends of the model,
/// the last worker the middle. With `F = I = W` and at least `2p − 1` micro-batches, each worker is
/// busy from its first action to its last, and holds the activations of `2p` half micro-batches.
///
/// For an odd number of stages, the first worker has one stage only.
///
/// Qi et al., *Pipeline Parallelism with Controllable Memory*, NeurIPS 2024,
/// [arXiv:2405.15362](https://arxiv.org/abs/2405.15362), and *Zero Bubble Pipeline Parallelism*,
/// ICLR 2024, [arXiv:2401.10241](https://arxiv.org/abs/2401.10241).
///
/// ```
/// use stovepipe_schedule::{Scheduler, ZeroBubbleV};
///
/// let schedule = ZeroBubbleV.schedule(4, 1)?;
/// assert_eq!(schedule.to_string(), "0F0 3F0 3I0 3W0 0I0 0W0\n1F0 2F0 2I0 2W0 1I0 1W0");
/// # Ok::<(), stovepipe_schedule::ScheduleError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ZeroBubbleV;

impl Scheduler for ZeroBubbleV {
    fn name(&self) -> &str {
        "ZB-V"
    }

    fn stages(&self, workers: usize) -> usize {
        workers.saturating_mul(2)
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        Schedule::check_size(stages, micro_batches)?;
        let workers = stages.div_ceil(2);
        let of_worker = |worker| {
            let mut actions = Worker::new(worker, workers, micro_batches).actions();
            // The rule is for an even number of stages and many micro-batches. Without some of them
            // the order is still valid.
            actions.retain(|a| a.stage < stages && a.micro_batch < micro_batches);
            actions
        };
        Schedule::new((0..workers).map(of_worker).collect())
    }
}

/// One of a worker's two stages: which micro-batch is next in each pass.
#[derive(Default)]
struct Chunk {
    stage: usize,
    forward: usize,
    input: usize,
    weight: usize,
}

impl Chunk {
    fn new(stage: usize) -> Self {
        Self {
            stage,
            ..Self::default()
        }
    }

    fn next(&mut self, pass: Pass) -> Action {
        let next = match pass {
            Pass::Forward => &mut self.forward,
            Pass::InputGradient => &mut self.input,
            _ => &mut self.weight,
        };
        *next += 1;
        Action::new(self.stage, pass, *next - 1)
    }
}

/// Collects the actions of a worker, phase by phase.
struct Worker {
    /// Of all workers, those before and those from this one on.
    before: usize,
    from_here: usize,
    micro_batches: usize,
    /// The stages in the first and in the second half of the model.
    there: Chunk,
    back: Chunk,
    actions: Vec<Action>,
}

impl Worker {
    fn new(worker: usize, workers: usize, micro_batches: usize) -> Self {
        Self {
            before: worker,
            from_here: workers - worker,
            // Fewer would not fill the warm-up.
            micro_batches: micro_batches.max(2 * workers - 1),
            there: Chunk::new(worker),
            back: Chunk::new(2 * workers - 1 - worker),
            actions: Vec::new(),
        }
    }

    fn actions(mut self) -> Vec<Action> {
        self.warm_up();
        self.steady();
        self.cool_down();
        self.actions
    }

    /// Forward passes until the first micro-batch is back, then one through both stages for each
    /// worker before, then backward passes of the second stage.
    fn warm_up(&mut self) {
        for _ in 0..2 * self.from_here - 1 {
            self.there(&[Pass::Forward]);
        }
        for _ in 0..self.before {
            self.back(&[Pass::Forward]);
            self.there(&[Pass::Forward]);
        }
        for _ in 0..self.from_here {
            self.back(&[Pass::Forward, Pass::InputGradient, Pass::WeightGradient]);
        }
    }

    /// All three passes of one stage, then of the other.
    fn steady(&mut self) {
        while self.back.forward < self.there.forward || self.there.forward < self.micro_batches {
            if self.there.forward < self.micro_batches {
                self.there(&[Pass::Forward]);
            }
            self.there(&[Pass::InputGradient, Pass::WeightGradient]);
            self.back(&[Pass::Forward, Pass::InputGradient, Pass::WeightGradient]);
        }
    }

    /// The other workers wait for gradients of inputs: weights come last.
    fn cool_down(&mut self) {
        for _ in 0..self.before {
            self.there(&[Pass::InputGradient]);
            self.back(&[Pass::InputGradient]);
        }
        for _ in 0..self.from_here {
            self.there(&[Pass::InputGradient, Pass::WeightGradient]);
        }
        while self.back.weight < self.back.input {
            self.back(&[Pass::WeightGradient]);
        }
        while self.there.weight < self.there.input {
            self.there(&[Pass::WeightGradient]);
        }
    }

    fn there(&mut self, passes: &[Pass]) {
        let Self { there, actions, .. } = self;
        actions.extend(passes.iter().map(|&pass| there.next(pass)));
    }

    fn back(&mut self, passes: &[Pass]) {
        let Self { back, actions, .. } = self;
        actions.extend(passes.iter().map(|&pass| back.next(pass)));
    }
}
