//! Schedules that repeat a block of passes: placed in slots, moved to earlier ones within the memory of the
//! block, and squeezed.
//!
//! Each worker has two stages, laid out like a V. A pass takes a slot, a whole backward pass two. What a worker
//! holds is counted in forward passes whose gradients of weights are still to come: halves of a micro-batch.

use std::collections::{HashMap, VecDeque};

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
            rows: Vec::new(),
            begins: (0..stages).map(of_stage).collect(),
            limit: 0,
        };
        let mut rows = vec![Row::default(); workers];
        for micro_batch in 0..micro_batches {
            for &(stage, pass, slot) in block {
                let action = Action::new(stage, pass, micro_batch);
                rows[slots.worker(stage)]
                    .0
                    .push((slot + PERIOD * micro_batch, action));
            }
        }
        rows.iter_mut()
            .for_each(|row| row.0.sort_unstable_by_key(|&(slot, _)| slot));
        slots.set(rows);
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

    /// The same passes for more micro-batches, in order: what a worker does in a period in the middle is done again
    /// for each. None if its periods there differ.
    pub(super) fn stretched(&self, micro_batches: usize) -> Option<Vec<Vec<Action>>> {
        let more = micro_batches - self.micro_batches;
        let middle = self.begin(Action::forward(0, self.micro_batches / 2));
        let later = |action: &Action, by: usize| Action {
            micro_batch: action.micro_batch + by,
            ..*action
        };
        let of_row = |row: &Row| {
            let period = |number: usize| {
                let [from, to] = [0, 1].map(|ends| row.index(middle + PERIOD * (number + ends)));
                from..to
            };
            let first = period(0);
            let is_steady = [1, 2].iter().all(|&number| {
                let passes = row.0[first.clone()].iter();
                let expected =
                    passes.map(|(slot, action)| (slot + PERIOD * number, later(action, number)));
                row.0[period(number)].iter().copied().eq(expected)
            });
            let all = row.0.iter().map(|(_, action)| action);
            let again = (0..=more).flat_map(|by| {
                row.0[first.clone()]
                    .iter()
                    .map(move |(_, action)| later(action, by))
            });
            let before = all.clone().take(first.start).copied();
            let after = all.skip(first.end).map(|action| later(action, more));
            is_steady.then(|| before.chain(again).chain(after).flat_map(halves).collect())
        };
        self.rows.iter().map(of_row).collect()
    }

    /// The passes of each worker in order.
    pub(super) fn actions(&self) -> Vec<Vec<Action>> {
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
        let rows = self.rows.iter().map(Row::filled).collect();
        self.set(rows);
    }

    fn set(&mut self, rows: Vec<Row>) {
        for &(slot, action) in rows.iter().flat_map(|row| &row.0) {
            self.begins[action.stage][action.pass as usize][action.micro_batch] = slot;
        }
        self.rows = rows;
    }

    fn limit_to_now(&mut self) {
        self.limit = self
            .rows
            .iter()
            .flat_map(Row::held)
            .map(|(_, [_, after])| after)
            .max()
            .unwrap_or(0);
    }

    /// Moves each pass that begins in a chosen slot to the earliest free one after what it depends on, if its
    /// worker then holds no more than the limit.
    fn move_earlier(&mut self, is_chosen: impl Fn(usize) -> bool) {
        // As passes come in order of time, those before a pass have only moved among themselves.
        let before = |row: &Row| {
            row.held()
                .map(|(slot, [before, _])| (slot, before))
                .collect()
        };
        let held: Vec<HashMap<_, _>> = self.rows.iter().map(before).collect();
        for action in self.chosen(is_chosen) {
            let (begin, limit) = (self.begin(action), self.limit);
            let mut from = self.ready(action);
            let held = held[self.worker(action.stage)][&begin];
            let row = &self.rows[self.worker(action.stage)];
            if action.pass == Pass::Forward {
                from = row.below(limit, (from, begin), held);
            }
            let to = row.free(from, begin, length(action.pass)).next();
            self.move_to(action, to.unwrap_or(begin));
        }
    }

    /// The same for the passes that begin after a slot, while gradients of weights are taken out: they will fill
    /// what is free then.
    fn move_earlier_after(&mut self, last: usize) {
        // What is filled before any of these passes can begin stays as it is.
        let mut filled: Vec<_> = self.rows.iter().map(|row| row.filled_until(last)).collect();
        for action in self.chosen(|slot| slot > last) {
            let (begin, from, limit) = (self.begin(action), self.ready(action), self.limit);
            let filled = &mut filled[self.worker(action.stage)];
            let row = &self.rows[self.worker(action.stage)];
            if from < filled.until {
                *filled = row.filled_until(from);
            }
            let fits = |&slot: &usize| {
                let mut filled = filled.clone();
                let (first, next) = (row.index(filled.until), row.index(slot));
                let (before, after) = (&row.0[first..next], &row.0[next..]);
                before.iter().for_each(|&entry| filled.pass(entry));
                filled.pass((slot, action));
                let others = after.iter().filter(|&&(slot, _)| slot != begin);
                others.for_each(|&entry| filled.pass(entry));
                filled.most <= limit
            };
            let to = row.free(from, begin, 1).find(fits);
            self.move_to(action, to.unwrap_or(begin));
        }
    }

    fn move_to(&mut self, action: Action, slot: usize) {
        let (worker, begin) = (self.worker(action.stage), self.begin(action));
        let row = &mut self.rows[worker];
        let (to, from) = (row.index(slot), row.index(begin));
        row.0[from].0 = slot;
        row.0[to..=from].rotate_right(1);
        self.begins[action.stage][action.pass as usize][action.micro_batch] = slot;
    }

    /// Starts all passes as early as their order allows.
    fn squeeze(&mut self) -> Result<(), ScheduleError> {
        let schedule = Schedule::new(self.actions())?;
        let (cycles, _) = schedule.cycles();
        let row = |(actions, cycles): (&Vec<Action>, Vec<usize>)| {
            Row(cycles.into_iter().zip(actions.iter().copied()).collect())
        };
        let rows = schedule.workers().iter().zip(cycles).map(row).collect();
        self.set(rows);
        Ok(())
    }
}

impl Row {
    /// Of the first pass that begins in this slot or later.
    fn index(&self, slot: usize) -> usize {
        self.0.partition_point(|&(begin, _)| begin < slot)
    }

    /// What the worker holds before and after each pass, with the slot in which it begins.
    fn held(&self) -> impl Iterator<Item = (usize, [usize; 2])> {
        self.0.iter().scan(0, |held, &(slot, action)| {
            let before = *held;
            match action.pass {
                Pass::Forward => *held += 1,
                pass if frees(pass) => *held -= 1,
                _ => {}
            }
            Some((slot, [before, *held]))
        })
    }

    /// The first slot from which on, until `end`, the worker holds less than the limit, given what it holds just
    /// before `end`.
    fn below(&self, limit: usize, (from, end): (usize, usize), mut held: usize) -> usize {
        if held >= limit {
            return end;
        }
        for &(slot, action) in self.0[..self.index(end)].iter().rev() {
            if slot + length(action.pass) <= from {
                break;
            }
            match action.pass {
                Pass::Forward => held -= 1,
                pass if frees(pass) => held += 1,
                _ => {}
            }
            if held >= limit {
                return slot + length(action.pass);
            }
        }
        from
    }

    /// The slots from one on where a pass of this length fits that now begins in `end`.
    fn free(&self, from: usize, end: usize, length_of_own: usize) -> impl Iterator<Item = usize> {
        let (first, own) = (self.index(from), self.index(end));
        let end_of = |&(slot, action): &(usize, Action)| slot + length(action.pass);
        let before = first
            .checked_sub(1)
            .map_or(0, |index| end_of(&self.0[index]));
        let next = self.0.get(own + 1).map_or(usize::MAX, |&(slot, _)| slot);
        let others = &self.0[first..own];
        let begins = others.iter().map(|&(slot, _)| slot).chain([next]);
        let ends = [before].into_iter().chain(others.iter().map(end_of));
        ends.zip(begins).flat_map(move |(gap, next)| {
            gap.max(from)..end.min(next.saturating_sub(length_of_own - 1))
        })
    }

    fn filled_until(&self, until: usize) -> Filled {
        let mut filled = Filled::default();
        self.0[..self.index(until)]
            .iter()
            .for_each(|&entry| filled.pass(entry));
        filled.placed.clear();
        filled.until = until;
        filled
    }

    /// With its gradients of weights in free slots, the oldest first.
    fn filled(&self) -> Self {
        let mut filled = Filled::default();
        self.0.iter().for_each(|&entry| filled.pass(entry));
        let Filled {
            mut placed,
            due,
            free,
            ..
        } = filled;
        placed.extend((free..).zip(due));
        placed.extend(&self.0);
        placed.sort_unstable_by_key(|&(slot, _)| slot);
        Self(placed)
    }
}

/// A worker's passes up to a slot, with gradients of weights in free slots.
#[derive(Clone, Default)]
struct Filled {
    /// Passes that begin before it have been seen.
    until: usize,
    /// The first free slot after the last pass.
    free: usize,
    /// What is left to place, the oldest first.
    due: VecDeque<Action>,
    placed: Vec<(usize, Action)>,
    held: usize,
    most: usize,
}

impl Filled {
    /// Fills the slots before the next pass.
    fn pass(&mut self, (slot, action): (usize, Action)) {
        while self.free < slot
            && let Some(action) = self.due.pop_front()
        {
            self.placed.push((self.free, action));
            self.held -= 1;
            self.free += 1;
        }
        self.free = slot + 1;
        match action.pass {
            Pass::Forward => self.held += 1,
            _ => self.due.push_back(action.with(Pass::WeightGradient)),
        }
        self.most = self.most.max(self.held);
    }
}

const fn length(pass: Pass) -> usize {
    match pass {
        Pass::Backward => 2,
        _ => 1,
    }
}

/// A whole backward pass as its halves, one right after the other: the gradient of the input need not wait for those
/// of the weights.
fn halves(action: Action) -> impl Iterator<Item = Action> {
    let is_whole = action.pass == Pass::Backward;
    let first = if is_whole {
        action.with(Pass::InputGradient)
    } else {
        action
    };
    let second = is_whole.then(|| action.with(Pass::WeightGradient));
    [first].into_iter().chain(second)
}

/// Whether what its forward pass left is no longer needed after it.
const fn frees(pass: Pass) -> bool {
    matches!(pass, Pass::Backward | Pass::WeightGradient)
}
