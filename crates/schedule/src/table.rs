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

    pub fn stages(&self) -> usize {
        self.entries.len() / self.micro_batches
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
pub(crate) struct ResultTable<T> {
    forward: Table<T>,
    gradient: Table<T>,
}

impl<T: Copy> ResultTable<T> {
    pub fn new(stages: usize, micro_batches: usize, entry: T) -> Self {
        let table = Table::new(stages, micro_batches, entry);
        Self {
            forward: table.clone(),
            gradient: table,
        }
    }

    pub fn get(&self, action: Action) -> T {
        match action.pass {
            Pass::Forward => self.forward[action],
            _ => self.gradient[action],
        }
    }

    /// Does nothing for passes that no other stage waits for.
    pub fn set(&mut self, action: Action, entry: T) {
        match action.pass {
            Pass::Forward => self.forward[action] = entry,
            Pass::Backward | Pass::InputGradient => self.gradient[action] = entry,
            Pass::WeightGradient | Pass::Update => {}
        }
    }
}
