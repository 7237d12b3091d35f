//! Two stages a worker, laid out like a V, with less memory than ZB-V.

use super::{Definition, Scheduler, building_block::Slots};
use crate::{Pass, Schedule, ScheduleError};

pub(super) const V_MIN: Definition = Definition::new("v-min", |_| Box::new(VMin));
pub(super) const V_HALF: Definition = Definition::new("v-half", |_| Box::new(VHalf));
pub(super) const V_1F1B: Definition =
    Definition::new("v-1f1b", |_| Box::new(VOneForwardOneBackward));

/// V-Min: [`ZeroBubbleV`](crate::ZeroBubbleV) with about a third of the activations of 1F1B.
///
/// Worker `i` of `p` has the stages `i` and `2p − 1 − i`, and holds at most `⌊(p + 4) / 3⌋` micro-batches. The
/// rule is made for passes that take the same time: if they do not, a bubble grows with each micro-batch.
///
/// For an odd number of stages, the first worker has one stage only, and a micro-batch counts twice there.
///
/// Qi et al., *Pipeline Parallelism with Controllable Memory*, NeurIPS 2024,
/// [arXiv:2405.15362](https://arxiv.org/abs/2405.15362): a block of passes, repeated and squeezed.
///
/// ```
/// use stovepipe_schedule::{Scheduler, VMin};
///
/// let schedule = VMin.schedule(4, 1)?;
/// assert_eq!(schedule.to_string(), "0F0 3F0 3I0 3W0 0I0 0W0\n1F0 2F0 2I0 1I0 2W0 1W0");
/// let most = VMin.schedule(16, 24)?.peak_activations();
/// assert!(most.iter().all(|&held| held <= 4.0)); // of 1F1B: 8
/// # Ok::<(), stovepipe_schedule::ScheduleError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct VMin;

/// V-Half: [`ZeroBubbleV`](crate::ZeroBubbleV) with about half of the activations of 1F1B.
///
/// Worker `i` of `p` has the stages `i` and `2p − 1 − i`, and holds at most `⌊(p + 2) / 2⌋` micro-batches. Its
/// bubble does not grow with the number of micro-batches, as long as `W + 2I ≥ 2F` and `W + 2F ≥ 2I`.
///
/// For an odd number of stages, the first worker has one stage only. The source is that of [`VMin`].
///
/// ```
/// use stovepipe_schedule::{Scheduler, VHalf};
///
/// let most = VHalf.schedule(16, 24)?.peak_activations();
/// assert!(most.iter().all(|&held| held <= 5.0)); // of 1F1B: 8
/// # Ok::<(), stovepipe_schedule::ScheduleError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct VHalf;

/// V-1F1B: two stages a worker, laid out like a V, with about two thirds of the activations of 1F1B.
///
/// Worker `i` of `p` has the stages `i` and `2p − 1 − i`, and holds at most `⌈(2p + 1) / 3⌉` micro-batches. The
/// halves of a backward pass follow each other at once, so that nothing waits between them; where a model cannot
/// separate them, the first does it all.
///
/// For an odd number of stages, the first worker has one stage only. The source is that of [`VMin`].
///
/// ```
/// use stovepipe_schedule::{Scheduler, VOneForwardOneBackward};
///
/// let schedule = VOneForwardOneBackward.schedule(4, 1)?;
/// assert_eq!(schedule.to_string(), "0F0 3F0 3I0 3W0 0I0 0W0\n1F0 2F0 2I0 2W0 1I0 1W0");
/// # Ok::<(), stovepipe_schedule::ScheduleError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct VOneForwardOneBackward;

impl Scheduler for VMin {
    fn name(&self) -> &str {
        "V-Min"
    }

    fn stages(&self, workers: usize) -> usize {
        workers.saturating_mul(2)
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        // Where 3 divides p, slots would meet.
        let late = |p: usize| if p.is_multiple_of(3) { 2 } else { 0 };
        in_halves(stages, micro_batches, |i, p| {
            [
                i,
                2 * p - 1 - i,
                2 * p + late(p) + i,
                4 * p + late(p) - 1 - i,
            ]
        })
    }
}

impl Scheduler for VHalf {
    fn name(&self) -> &str {
        "V-Half"
    }

    fn stages(&self, workers: usize) -> usize {
        workers.saturating_mul(2)
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        let late = |p: usize| if p.is_multiple_of(2) { 3 } else { 0 };
        in_halves(stages, micro_batches, |i, p| {
            [
                2 * i,
                3 * p - 2 - i,
                3 * p + late(p) - 1 + 2 * i,
                6 * p + late(p) - 2 - i,
            ]
        })
    }
}

impl Scheduler for VOneForwardOneBackward {
    fn name(&self) -> &str {
        "V-1F1B"
    }

    fn stages(&self, workers: usize) -> usize {
        workers.saturating_mul(2)
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        Schedule::check_size(stages, micro_batches)?;
        let p = stages.div_ceil(2);
        let mut block: Vec<_> = (0..2 * p)
            .map(|stage| (stage, Pass::Forward, stage))
            .collect();
        // One after the other, with a gap after every third: forward passes are there.
        let mut slot = 2 * p + if p.is_multiple_of(3) { 3 } else { 0 };
        let mut count = (3 - (p + 2) % 3) % 3;
        for stage in (0..2 * p).rev() {
            block.push((stage, Pass::Backward, slot));
            count += 1;
            slot += if count.is_multiple_of(3) { 5 } else { 2 };
        }
        made(stages, micro_batches, |micro_batches| {
            Ok(Slots::repeated(p, micro_batches, &block).in_whole())
        })
    }
}

/// From the slots of worker `i`'s four passes of the first micro-batch, of `p` workers: forward through both of its
/// stages, and back.
fn in_halves(
    stages: usize,
    micro_batches: usize,
    slots: impl Fn(usize, usize) -> [usize; 4],
) -> Result<Schedule, ScheduleError> {
    Schedule::check_size(stages, micro_batches)?;
    let p = stages.div_ceil(2);
    let of_worker = |i: usize| {
        let back = 2 * p - 1 - i;
        let [there, and_back, gradient, last] = slots(i, p);
        [
            (i, Pass::Forward, there),
            (back, Pass::Forward, and_back),
            (back, Pass::InputGradient, gradient),
            (i, Pass::InputGradient, last),
        ]
    };
    let block: Vec<_> = (0..p).flat_map(of_worker).collect();
    made(stages, micro_batches, |micro_batches| {
        Slots::repeated(p, micro_batches, &block).in_halves()
    })
}

/// From the slots of a number of micro-batches. Beyond the first and the last ones, all have the same: many are not
/// placed one by one.
fn made(
    stages: usize,
    micro_batches: usize,
    slots: impl Fn(usize) -> Result<Slots, ScheduleError>,
) -> Result<Schedule, ScheduleError> {
    let enough = stages.saturating_mul(2).saturating_add(10);
    let few = slots(micro_batches.min(enough))?;
    let mut workers = match micro_batches > enough {
        true => match few.stretched(micro_batches) {
            Some(actions) => actions,
            None => slots(micro_batches)?.actions(),
        },
        false => few.actions(),
    };
    // If the number of stages is odd, there is no last one.
    for actions in &mut workers {
        actions.retain(|action| action.stage < stages);
    }
    Schedule::new(workers)
}
