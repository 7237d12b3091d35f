//! Several stages a worker.

use super::{Definition, Scheduler};
use crate::{Action, Schedule, ScheduleError};

pub(super) const RULE: Definition = Definition {
    takes_chunks: true,
    ..Definition::new("interleaved", |options| {
        let chunks = options.chunks;
        Box::new(Interleaved { chunks })
    })
};

/// Interleaved 1F1B: each worker has several stages and runs their passes in turn.
///
/// Worker `i` of `p` has the stages `i`, `i + p`, `i + 2p`, …: a micro-batch goes round all workers
/// once for each chunk. The bubble is that of 1F1B divided by `chunks`, for `chunks` times the
/// communication.
///
/// Two workers with two stages each and four micro-batches, if all passes take the same time:
///
/// ```text
/// clock      0   1   2   3   4   5   6   7   8   9  10  11  12  13  14  15  16  17
/// worker 0 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1   · 2B2   · 2B3 0B2 0B3
/// worker 1   · 1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3   ·
/// ```
///
/// Micro-batches go through in groups of at least `p`: all of a group pass a chunk before the next
/// chunk. Megatron-LM requires that `p` divides the number of micro-batches. Here the sizes of groups
/// differ by at most one, and fewer than `p` micro-batches are one group. If `p` does not divide the
/// number of stages, the last workers have one less. With one chunk this is
/// [1F1B](crate::OneForwardOneBackward).
///
/// Narayanan et al., *Efficient Large-Scale Language Model Training on GPU Clusters Using
/// Megatron-LM*, SC 2021, [arXiv:2104.04473](https://arxiv.org/abs/2104.04473).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Interleaved {
    /// Stages of each worker.
    pub chunks: usize,
}

impl Scheduler for Interleaved {
    fn name(&self) -> &str {
        "interleaved 1F1B"
    }

    fn stages(&self, workers: usize) -> usize {
        workers.saturating_mul(self.chunks)
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        Schedule::check_size(stages, micro_batches)?;
        if self.chunks == 0 {
            return Err(ScheduleError::NoChunks);
        }
        let order = Order::new(self.chunks, stages, micro_batches);
        Schedule::new((0..order.workers).map(|w| order.of_worker(w)).collect())
    }
}

/// The order in which all workers go through chunks and micro-batches.
struct Order {
    workers: usize,
    stages: usize,
    /// Chunk and micro-batch of each forward pass, and of each backward pass.
    forwards: Vec<(usize, usize)>,
    backwards: Vec<(usize, usize)>,
    chunks: usize,
    /// Micro-batches of the largest group.
    group: usize,
}

impl Order {
    fn new(chunks: usize, stages: usize, micro_batches: usize) -> Self {
        let workers = stages.div_ceil(chunks);
        // Chunks beyond the last stage would have no action.
        let chunks = stages.div_ceil(workers);
        let groups = (micro_batches / workers).max(1);
        let group = |g| micro_batches * g / groups..micro_batches * (g + 1) / groups;
        let through = |chunk: usize, g| group(g).map(move |micro_batch| (chunk, micro_batch));
        let forwards = (0..groups).flat_map(|g| (0..chunks).flat_map(move |c| through(c, g)));
        let backwards =
            (0..groups).flat_map(|g| (0..chunks).rev().flat_map(move |c| through(c, g)));
        Self {
            workers,
            stages,
            forwards: forwards.collect(),
            backwards: backwards.collect(),
            chunks,
            group: micro_batches.div_ceil(groups),
        }
    }

    /// Forward passes before the first backward pass is due.
    fn warm_up(&self, worker: usize) -> usize {
        let after = self.workers - 1 - worker;
        match self.chunks {
            1 => after,
            // A group through all chunks but the last one, and twice the way to the last worker.
            chunks => (chunks - 1) * self.group + 2 * after,
        }
    }

    fn of_worker(&self, worker: usize) -> Vec<Action> {
        let stage = |chunk| worker + chunk * self.workers;
        let warm_up = self.warm_up(worker);
        let mut actions = Vec::with_capacity(2 * self.forwards.len());
        let mut backwards = (self.backwards.iter()).map(|&(c, i)| Action::backward(stage(c), i));
        for (index, &(chunk, micro_batch)) in self.forwards.iter().enumerate() {
            actions.push(Action::forward(stage(chunk), micro_batch));
            if index >= warm_up {
                actions.extend(backwards.next());
            }
        }
        actions.extend(backwards);
        actions.retain(|action| action.stage < self.stages);
        actions
    }
}
