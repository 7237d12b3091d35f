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
        let of_worker = |worker| Worker::new(worker, stages, micro_batches).actions();
        Schedule::new((0..stages.div_ceil(2)).map(of_worker).collect())
    }
}

/// Which of a worker's two stages: that in the first half of the model, or that in the second.
#[derive(Clone, Copy)]
enum Half {
    There,
    Back,
}

/// Collects the actions of a worker, phase by phase.
struct Worker {
    /// Of all workers, those before and those from this one on.
    before: usize,
    from_here: usize,
    /// The numbers of all stages and micro-batches. The rule is for an even number of stages and many
    /// micro-batches: what is beyond these is left out, and the order is still valid.
    stages: usize,
    micro_batches: usize,
    /// The next micro-batch in each pass of both stages.
    next: [[usize; Pass::ALL.len()]; 2],
    actions: Vec<Action>,
}

impl Worker {
    fn new(worker: usize, stages: usize, micro_batches: usize) -> Self {
        Self {
            before: worker,
            from_here: stages.div_ceil(2) - worker,
            stages,
            micro_batches,
            next: Default::default(),
            actions: Vec::with_capacity(6 * micro_batches),
        }
    }

    fn actions(mut self) -> Vec<Action> {
        use Half::{Back, There};
        use Pass::{Forward as F, InputGradient as I, WeightGradient as W};
        let (before, from_here) = (self.before, self.from_here);
        let workers = before + from_here;
        // Forward passes until the first micro-batch is back, then one through both stages for each
        // worker before, then backward passes of the second stage.
        self.run(2 * from_here - 1, &[(There, F)]);
        self.run(before, &[(Back, F), (There, F)]);
        self.run(from_here, &[(Back, F), (Back, I), (Back, W)]);
        // All three passes of one stage, then of the other. Fewer micro-batches than `2p − 1` would not
        // fill the warm-up.
        let steady = self.micro_batches.max(2 * workers - 1) - workers;
        let both = [
            (There, F),
            (There, I),
            (There, W),
            (Back, F),
            (Back, I),
            (Back, W),
        ];
        self.run(steady, &both);
        // The other workers wait for gradients of inputs: weights come last.
        self.run(before, &[(There, I), (Back, I)]);
        self.run(from_here, &[(There, I), (There, W)]);
        self.run(self.micro_batches, &[(Back, W)]);
        self.run(self.micro_batches, &[(There, W)]);
        self.actions
    }

    /// The next micro-batch of each pass, so many times, or until there is no more.
    fn run(&mut self, times: usize, passes: &[(Half, Pass)]) {
        for _ in 0..times {
            let before = self.actions.len();
            for &(half, pass) in passes {
                let next = &mut self.next[half as usize][pass as usize];
                let stage = match half {
                    Half::There => self.before,
                    Half::Back => self.before + 2 * self.from_here - 1,
                };
                if *next < self.micro_batches && stage < self.stages {
                    self.actions.push(Action::new(stage, pass, *next));
                }
                *next += 1;
            }
            if self.actions.len() == before {
                break;
            }
        }
    }
}
