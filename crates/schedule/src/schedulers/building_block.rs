//! Schedules that repeat a block of passes: placed in slots, moved to earlier ones within the memory of the
//! block, and squeezed.
//!
//! Each worker has two stages, laid out like a V. A pass takes a slot, a whole backward pass two. What a worker
//! holds is counted in forward passes whose gradients of weights are still to come: halves of a micro-batch.

use std::collections::VecDeque;

use crate::{Action, Pass, Schedule, ScheduleError};

/// Passes of all micro-batches in the slots of their workers.
pub(super) struct Slots {
    stages: usize,
    micro_batches: usize,
    rows: Vec<Row>,
    /// Where each pass begins, by stage, pass and micro-batch.
    begins: Vec<[Vec<usize>; 4]>,
    /// The most that a worker may hold.
    limit: usize,
}

/// The passes of a worker and the slots in which they begin, in order.
#[derive(Clone, Default)]
struct Row(Vec<(usize, Action)>);

/// Passes of a micro-batch on a worker: forward and backward in halves, on two stages.
const PERIOD: usize = 6;

impl Slots {
    /// The passes of a block, each with the slot in which it begins for the first micro-batch. Each next
    /// micro-batch is a period later.
    pub(super) fn repeated(
        workers: usize,
        micro_batches: usize,
        block: &[(usize, Pass, usize)],
    ) -> Self {
        let stages = 2 * workers;
        let of_stage = |_| std::array::from_fn(|_| vec![0; micro_batches]);
        let mut slots = Self {
            stages,
            micro_batches,
            rows: vec![Row::default(); workers],
            begins: (0..stages).map(of_stage).collect(),
            limit: 0,
        };
        for micro_batch in 0..micro_batches {
            for &(stage, pass, slot) in block {
                let action = Action::new(stage, pass, micro_batch);
                slots.put(action, slot + PERIOD * micro_batch);
            }
        }
        slots
    }

    /// For blocks of forward passes and gradients of inputs: gradients of weights take free slots.
    pub(super) fn in_halves(mut self) -> Result<Self, ScheduleError> {
        self.fill();
        self.limit_to_now();
        let first = self.begin(Action::new(0, Pass::InputGradient, 0));
        let last = self.last_begin();
        self.move_earlier(|slot| slot < first || slot > last);
        self.squeeze()?;
        self.take_out_weights();
        self.move_earlier_after(self.last_begin());
        self.fill();
        self.squeeze()?;
        self.take_out_weights();
        self.fill();
        Ok(self)
    }

    /// For blocks of forward and whole backward passes.
    pub(super) fn in_whole(mut self) -> Self {
        self.limit_to_now();
        self.move_earlier(|_| true);
        self
    }

    /// The passes of each worker in order. A whole backward pass becomes its halves, one right after the other:
    /// the gradient of the input need not wait for those of the weights.
    pub(super) fn actions(&self) -> Vec<Vec<Action>> {
        let halves = |action: Action| match action.pass {
            Pass::Backward => vec![
                action.with(Pass::InputGradient),
                action.with(Pass::WeightGradient),
            ],
            _ => vec![action],
        };
        let of_row = |row: &Row| {
            row.0
                .iter()
                .flat_map(|&(_, action)| halves(action))
                .collect()
        };
        self.rows.iter().map(of_row).collect()
    }

    fn worker(&self, stage: usize) -> usize {
        stage.min(self.stages - 1 - stage)
    }

    fn begin(&self, action: Action) -> usize {
        self.begins[action.stage][action.pass as usize][action.micro_batch]
    }

    /// Of the first worker's last forward pass through its first stage.
    fn last_begin(&self) -> usize {
        self.begin(Action::forward(0, self.micro_batches - 1))
    }

    fn put(&mut self, action: Action, slot: usize) {
        let worker = self.worker(action.stage);
        self.rows[worker].put(action, slot);
        self.begins[action.stage][action.pass as usize][action.micro_batch] = slot;
    }

    fn take_out_weights(&mut self) {
        for row in &mut self.rows {
            row.0
                .retain(|(_, action)| action.pass != Pass::WeightGradient);
        }
    }

    /// Passes that begin in chosen slots, in order of time.
    fn chosen(&self, is_chosen: impl Fn(usize) -> bool) -> Vec<Action> {
        let passes = self.rows.iter().flat_map(|row| row.0.iter().copied());
        let mut chosen: Vec<_> = passes.filter(|&(slot, _)| is_chosen(slot)).collect();
        chosen.sort_by_key(|&(slot, _)| slot);
        chosen.into_iter().map(|(_, action)| action).collect()
    }

    /// The first slot after all that a pass depends on.
    fn ready(&self, action: Action) -> usize {
        let end = |stage: usize, pass: Pass| {
            let begin = self.begin(Action::new(stage, pass, action.micro_batch));
            begin + length(pass)
        };
        let (stage, pass) = (action.stage, action.pass);
        match pass {
            Pass::Forward if stage == 0 => 0,
            Pass::Forward => end(stage - 1, pass),
            Pass::WeightGradient => end(stage, Pass::InputGradient),
            _ if stage + 1 == self.stages => end(stage, Pass::Forward),
            _ => end(stage, Pass::Forward).max(end(stage + 1, pass)),
        }
    }

    /// Puts each gradient of weights into the first free slot, the oldest first.
    fn fill(&mut self) {
        for worker in 0..self.rows.len() {
            for (slot, action) in self.rows[worker].filled().1 {
                self.put(action, slot);
            }
        }
    }

    fn limit_to_now(&mut self) {
        self.limit = self.rows.iter().map(Row::most_held).max().unwrap_or(0);
    }

    /// Moves each pass that begins in a chosen slot to the earliest free one after what it depends on, if its
    /// worker then holds no more than the limit.
    fn move_earlier(&mut self, is_chosen: impl Fn(usize) -> bool) {
        for action in self.chosen(is_chosen) {
            let (begin, limit) = (self.begin(action), self.limit);
            let mut from = self.ready(action);
            let row = self.row_without(action);
            if action.pass == Pass::Forward {
                from = from.max(row.below(limit, begin).unwrap_or(begin));
            }
            let to = row.free(from, begin, length(action.pass)).next();
            self.put(action, to.unwrap_or(begin));
        }
    }

    /// The same for the passes that begin after a slot, while gradients of weights are taken out: they will fill
    /// what is free then.
    fn move_earlier_after(&mut self, last: usize) {
        for action in self.chosen(|slot| slot > last) {
            let (begin, from, limit) = (self.begin(action), self.ready(action), self.limit);
            let row = self.row_without(action);
            let fits = |&slot: &usize| {
                let mut row = row.clone();
                row.put(action, slot);
                row.filled().0 <= limit
            };
            let to = row.free(from, begin, 1).find(fits);
            self.put(action, to.unwrap_or(begin));
        }
    }

    fn row_without(&mut self, action: Action) -> &Row {
        let (worker, begin) = (self.worker(action.stage), self.begin(action));
        let row = &mut self.rows[worker];
        row.0.remove(row.index(begin));
        row
    }

    /// Starts all passes as early as their order allows.
    fn squeeze(&mut self) -> Result<(), ScheduleError> {
        let schedule = Schedule::new(self.actions())?;
        self.rows = vec![Row::default(); self.rows.len()];
        for (actions, cycles) in schedule.workers().iter().zip(schedule.cycles().0) {
            for (&action, slot) in actions.iter().zip(cycles) {
                self.put(action, slot);
            }
        }
        Ok(())
    }
}

impl Row {
    /// Of the first pass that begins in this slot or later.
    fn index(&self, slot: usize) -> usize {
        self.0.partition_point(|&(begin, _)| begin < slot)
    }

    fn put(&mut self, action: Action, slot: usize) {
        self.0.insert(self.index(slot), (slot, action));
    }

    fn most_held(&self) -> usize {
        let (mut held, mut most) = (0, 0);
        for (_, action) in &self.0 {
            match action.pass {
                Pass::Forward => held += 1,
                pass if frees(pass) => held -= 1,
                _ => {}
            }
            most = most.max(held);
        }
        most
    }

    /// From which slot on, until `end`, the worker holds less than the limit. None if it does not just before.
    fn below(&self, limit: usize, end: usize) -> Option<usize> {
        let (mut held, mut from) = (0, Some(0));
        for &(slot, action) in &self.0[..self.index(end)] {
            match action.pass {
                Pass::Forward => held += 1,
                pass if frees(pass) => held -= 1,
                _ => continue,
            }
            from = match held < limit {
                true => from.or(Some(slot + length(action.pass))),
                false => None,
            };
        }
        from
    }

    /// The slots between two where so many in a row are free.
    fn free(&self, from: usize, end: usize, length_of_own: usize) -> impl Iterator<Item = usize> {
        let first = self.index(from);
        let before = first.checked_sub(1).map(|index| self.0[index]);
        let before = before.map_or(0, |(slot, action)| slot + length(action.pass));
        let begins = self.0[first..]
            .iter()
            .map(|&(slot, _)| slot)
            .chain([usize::MAX]);
        let ends = self.0[first..]
            .iter()
            .map(|&(slot, action)| slot + length(action.pass));
        let gaps = [before].into_iter().chain(ends).zip(begins);
        gaps.take_while(move |&(gap, _)| gap < end)
            .flat_map(move |(gap, next)| {
                gap.max(from)..end.min(next.saturating_sub(length_of_own - 1))
            })
    }

    /// The most that the worker holds once its gradients of weights fill the free slots, the oldest first, and
    /// where they go.
    fn filled(&self) -> (usize, Vec<(usize, Action)>) {
        let (mut due, mut placed) = (VecDeque::new(), Vec::new());
        let (mut held, mut most, mut free) = (0, 0, 0);
        for &(slot, action) in self.0.iter() {
            while free < slot
                && let Some(action) = due.pop_front()
            {
                placed.push((free, action));
                held -= 1;
                free += 1;
            }
            free = slot + 1;
            match action.pass {
                Pass::Forward => held += 1,
                _ => due.push_back(action.with(Pass::WeightGradient)),
            }
            most = most.max(held);
        }
        placed.extend((free..).zip(due));
        (most, placed)
    }
}

const fn length(pass: Pass) -> usize {
    match pass {
        Pass::Backward => 2,
        _ => 1,
    }
}

/// Whether what its forward pass left is no longer needed after it.
const fn frees(pass: Pass) -> bool {
    matches!(pass, Pass::Backward | Pass::WeightGradient)
}
