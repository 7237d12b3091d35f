//! The versions of a stage's weights.
//!
//! In a step there is one. In a window each update makes the next, and each micro-batch runs forward, again
//! and backward on one, which the schedule's table names. A version is dropped where the table says so.
//!
//! Each version has its own cells of running statistics, which start at zero in a window: what they count
//! does not depend on what was counted before.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use burn::{module::Module, tensor::FloatDType};

use crate::engine::{
    copies::Copies,
    statistics::{Cells, Statistics, extend_all},
};

/// A version: its copies, and what their forward passes have counted.
pub(crate) struct Version<L> {
    pub(crate) copies: Copies<L>,
    pub(crate) statistics: Vec<Statistics>,
}

/// How copies are made.
#[derive(Clone, Debug)]
pub(crate) struct CopyOptions {
    pub(crate) dtype: Option<FloatDType>,
    pub(crate) trains: bool,
    /// Whether running statistics start at zero.
    pub(crate) from_zero: bool,
    /// The sizes of the micro-batches, if their statistics are added up as they come.
    pub(crate) sizes: Option<Arc<[usize]>>,
}

pub(crate) struct Versions<L> {
    options: CopyOptions,
    newest: Version<L>,
    number: usize,
    /// Older ones that are still used.
    older: BTreeMap<usize, Version<L>>,
    /// The version of each micro-batch that has run forward.
    of_micro_batch: HashMap<usize, usize>,
    /// What dropped versions have counted.
    counted: Vec<Statistics>,
    /// The most that were kept at once.
    most: usize,
}

impl<L: Module> Versions<L> {
    /// Version 0.
    pub(crate) fn new(options: CopyOptions, layers: &[L], cells: &[Cells]) -> Self {
        Self {
            newest: Version::new(&options, layers, cells),
            options,
            number: 0,
            older: BTreeMap::new(),
            of_micro_batch: HashMap::new(),
            counted: Vec::new(),
            most: 1,
        }
    }

    /// Drops the newest version before an update that is its last use, so that there are never two of it. What
    /// it has counted stays.
    pub(crate) fn release(&mut self, number: Option<usize>) {
        if number == Some(self.number) {
            let statistics = std::mem::take(&mut self.newest.statistics);
            extend_all(&mut self.counted, statistics, 0);
            self.newest.copies = Copies::none();
        }
    }

    /// The next version.
    pub(crate) fn push(&mut self, layers: &[L], cells: &[Cells]) {
        let next = Version::new(&self.options, layers, cells);
        let last = std::mem::replace(&mut self.newest, next);
        let is_released = last.copies.live().is_empty();
        if !is_released {
            self.older.insert(self.number, last);
        }
        self.number += 1;
        self.most = self.most.max(1 + self.older.len());
    }

    /// A micro-batch uses a version from now on.
    pub(crate) fn choose(&mut self, micro_batch: usize, version: usize) {
        self.of_micro_batch.insert(micro_batch, version);
    }

    /// The version of a micro-batch.
    pub(crate) fn of(&mut self, micro_batch: usize) -> &mut Version<L> {
        let chosen = self.of_micro_batch.get(&micro_batch);
        let older = chosen.and_then(|own| self.older.get_mut(own));
        older.unwrap_or(&mut self.newest)
    }

    pub(crate) fn newest(&self) -> &Version<L> {
        &self.newest
    }

    /// Drops an older version. What it has counted stays.
    pub(crate) fn drop_older(&mut self, number: usize) {
        if let Some(version) = self.older.remove(&number) {
            extend_all(&mut self.counted, version.statistics, 0);
        }
    }

    /// The most versions that were kept at once.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// What all versions have counted, which count no more.
    pub(crate) fn take_statistics(&mut self) -> Vec<Statistics> {
        let older = std::mem::take(&mut self.older).into_values();
        older.for_each(|version| extend_all(&mut self.counted, version.statistics, 0));
        let newest = std::mem::take(&mut self.newest.statistics);
        extend_all(&mut self.counted, newest, 0);
        std::mem::take(&mut self.counted)
    }
}

impl<L: Module> Version<L> {
    fn new(options: &CopyOptions, layers: &[L], cells: &[Cells]) -> Self {
        let copies = match options.trains {
            true => Copies::to_train(layers, options.dtype),
            false => Copies::to_infer(layers, options.dtype),
        };
        let of_layers = cells.iter().zip(layers.iter().zip(copies.live()));
        let statistics = of_layers.map(|(cells, (layer, live))| match options.from_zero {
            false => Statistics::begin(cells.clone(), live),
            true => Statistics::begin_at_zero(cells.clone(), layer, live),
        });
        let statistics = statistics.map(|own| own.of_sizes(options.sizes.clone()));
        Self {
            statistics: statistics.collect(),
            copies,
        }
    }
}
