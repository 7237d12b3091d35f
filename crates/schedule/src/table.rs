//! A value for each stage and micro-batch.

use std::ops::{Index, IndexMut};

use crate::{Action, Pass};

/// One `T` for each stage and micro-batch of an action, in a plain vector: there may be millions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Table<T> {
    entries: Vec<T>,
    micro_batches: usize,
}

impl<T: Clone> Table<T> {
    pub fn new(stages: usize, micro_batches: usize, entry: T) -> Self {
        Self {
            entries: vec![entry; stages * micro_batches],
            micro_batches,
        }
    }

    /// Every entry, with the forward pass of its stage and micro-batch.
    pub fn iter(&self) -> impl Iterator<Item = (Action, &T)> {
        let place = |at| Action::forward(at / self.micro_batches, at % self.micro_batches);
        let entries = self.entries.iter().enumerate();
        entries.map(move |(at, entry)| (place(at), entry))
    }

    pub fn map<U>(&self, entry: impl Fn(&T) -> U) -> Table<U> {
        let entries = self.entries.iter().map(entry).collect();
        Table {
            entries,
            micro_batches: self.micro_batches,
        }
    }

    /// The entries of a stage, by micro-batch.
    pub fn of_stage(&self, stage: usize) -> &[T] {
        &self.entries[stage * self.micro_batches..][..self.micro_batches]
    }
}

impl<T> Index<Action> for Table<T> {
    type Output = T;

    fn index(&self, action: Action) -> &T {
        &self.entries[action.stage * self.micro_batches + action.micro_batch]
    }
}

impl<T> IndexMut<Action> for Table<T> {
    fn index_mut(&mut self, action: Action) -> &mut T {
        &mut self.entries[action.stage * self.micro_batches + action.micro_batch]
    }
}

/// One `T` for each pass whose result another stage waits for: forward passes and input gradients.
pub(crate) struct ResultTable<T>(Table<[T; 2]>);

impl<T: Copy> ResultTable<T> {
    pub fn new(stages: usize, micro_batches: usize, entry: T) -> Self {
        Self(Table::new(stages, micro_batches, [entry; 2]))
    }

    pub fn get(&self, action: Action) -> T {
        self.0[action][usize::from(action.pass != Pass::Forward)]
    }

    /// Does nothing for passes that no other stage waits for.
    pub fn set(&mut self, action: Action, entry: T) {
        match action.pass {
            Pass::Forward => self.0[action][0] = entry,
            Pass::Backward | Pass::InputGradient => self.0[action][1] = entry,
            Pass::WeightGradient | Pass::Update => {}
        }
    }
}
