//! The copies of a layer that a step works on, so that the model stays as it was until the step
//! has succeeded.
//!
//! Burn keeps running statistics in cells that clones of a module share, and writes them during
//! forward. Three copies follow from that:
//!
//! * `live` is made once a step. It has its own cells: forward passes update them, and
//!   [`Statistics::of`] reads them when all is done.
//! * `quiet` shares `live`'s cells but tracks no gradients: it runs forward without a tape.
//! * tapes are recorded on copies with leaves of their own: micro-batches whose tapes met in the
//!   same leaves would be one graph to Burn, and each backward pass would walk all of it. Those for
//!   forward passes share `live`'s cells; those for recomputation have cells that nobody reads, so
//!   that each micro-batch counts once. A backward pass gives them back, for the next tape.

use std::collections::HashSet;

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    tensor::{Tensor, container::TensorContainer},
};

/// The copies of a stage's layers.
pub(crate) struct Copies<L> {
    live: Vec<L>,
    /// Made when it is first needed.
    quiet: Vec<L>,
    /// What may be recorded on, by [`Kind`].
    counted: Vec<Vec<L>>,
    uncounted: Vec<Vec<L>>,
}

/// Whether what is recorded on a copy counts in running statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counted,
    Uncounted,
}

impl<L: Module> Copies<L> {
    pub(crate) fn to_train(layers: &[L]) -> Self {
        let live: Vec<_> = layers.iter().map(live).collect();
        Self {
            counted: vec![live.clone()],
            uncounted: Vec::new(),
            quiet: Vec::new(),
            live,
        }
    }

    pub(crate) fn to_infer(layers: &[L]) -> Self {
        Self {
            live: Vec::new(),
            quiet: layers.iter().map(L::valid).collect(),
            counted: Vec::new(),
            uncounted: Vec::new(),
        }
    }

    /// Copies to run forward without a tape.
    pub(crate) fn quiet(&mut self) -> &[L] {
        if self.quiet.is_empty() {
            self.quiet = self.live.iter().map(quiet).collect();
        }
        &self.quiet
    }

    /// Copies to record a tape on.
    pub(crate) fn take(&mut self, kind: Kind) -> Vec<L> {
        let (free, copy) = match kind {
            Kind::Counted => (&mut self.counted, with_fresh_leaves as fn(&L) -> L),
            Kind::Uncounted => (&mut self.uncounted, live as fn(&L) -> L),
        };
        (free.pop()).unwrap_or_else(|| self.live.iter().map(copy).collect())
    }

    /// Takes copies back whose tape is no more.
    pub(crate) fn give_back(&mut self, kind: Kind, copies: Vec<L>) {
        match kind {
            Kind::Counted => self.counted.push(copies),
            Kind::Uncounted => self.uncounted.push(copies),
        }
    }

    /// The copies that know which parameters there are, and their statistics.
    pub(crate) fn live(&self) -> &[L] {
        &self.live
    }

    pub(crate) fn statistics(&self) -> Vec<Statistics> {
        self.live.iter().map(Statistics::of).collect()
    }
}

/// A copy with statistics and leaves of its own, ready to train.
pub(crate) fn live<L: Module>(layer: &L) -> L {
    layer.valid().train()
}

/// The same statistics, but no gradients.
fn quiet<L: Module>(live: &L) -> L {
    live.clone().no_grad()
}

/// The same values and statistics, but leaves of a graph of their own.
pub(crate) fn with_fresh_leaves<L: Module>(live: &L) -> L {
    struct FreshLeaves;

    impl ModuleMapper for FreshLeaves {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let require_grad = param.is_require_grad();
            param.map(|tensor| tensor.inner().autodiff().set_require_grad(require_grad))
        }
    }

    live.clone().map(&mut FreshLeaves)
}

/// The running statistics of a layer after a step.
pub(crate) struct Statistics {
    values: TensorContainer<ParamId>,
    known: HashSet<ParamId>,
}

impl Statistics {
    /// Reads what `live` has come to. Only what has no gradient can be a statistic.
    pub(crate) fn of<L: Module>(live: &L) -> Self {
        let mut frozen = Frozen(HashSet::new());
        live.visit(&mut frozen);
        let mut statistics = Self {
            values: TensorContainer::new(),
            known: frozen.0,
        };
        // `valid` brings pending updates in; a visit of `live` itself would be one update late.
        live.valid().visit(&mut statistics);
        statistics
    }

    /// Writes them into the cells that `layer` shares with the model.
    pub(crate) fn commit<L: Module>(mut self, layer: &L) {
        // Mapping a clone leaves the model's parameters alone, but reaches the shared cells.
        let _ = layer.clone().map(&mut self);
    }
}

struct Frozen(HashSet<ParamId>);

impl ModuleVisitor for Frozen {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() {
            self.0.insert(param.id);
        }
    }
}

impl ModuleVisitor for Statistics {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.known.contains(&param.id) {
            self.values.register(param.id, param.val());
        }
    }
}

impl ModuleMapper for Statistics {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.values.remove::<Tensor<D>>(&param.id) {
            Some(value) => param.map(|old| match old.is_autodiff() {
                true => value.autodiff(),
                false => value,
            }),
            None => param,
        }
    }
}
