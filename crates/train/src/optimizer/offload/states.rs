//! An optimizer's states, which visit their device one parameter at a time.

use std::sync::Arc;

use burn::{
    module::ParamId,
    optim::{DynOptimizer, DynState, StateSink},
    store::burn_pack,
};

use super::{
    error::OffloadError,
    mover::{Coming, Mover},
    shelf::Kept,
    visits::Visits,
};
use crate::weights::tensor_file;

/// The states of a stage's parameters off their device.
pub(in crate::optimizer) struct OffloadedStates {
    mover: Arc<Mover>,
    optimizer: Arc<dyn DynOptimizer>,
    /// Those of the parameters of an update.
    visits: Visits<Option<DynState>>,
}

impl OffloadedStates {
    pub(in crate::optimizer) fn new(mover: Arc<Mover>, optimizer: Arc<dyn DynOptimizer>) -> Self {
        Self {
            mover,
            optimizer,
            visits: Visits::none(),
        }
    }

    /// Begins an update of these parameters, in this order.
    pub(in crate::optimizer) fn begin(&mut self, parameters: Vec<(ParamId, usize)>) {
        let (mover, optimizer) = (&self.mover, &self.optimizer);
        let ask = |parameter, rank| coming(mover, optimizer, parameter, rank);
        self.visits = Visits::begin(parameters, ask);
    }

    /// The state of the next parameter, whose successor's is then on its way.
    pub(in crate::optimizer) fn take(
        &mut self,
        parameter: ParamId,
    ) -> Result<Option<DynState>, OffloadError> {
        let (mover, optimizer) = (&self.mover, &self.optimizer);
        let ask = |next, rank| coming(mover, optimizer, next, rank);
        self.visits.take(parameter, ask)
    }

    /// Takes a state off the device, while the stage goes on.
    pub(in crate::optimizer) fn put(
        &self,
        parameter: ParamId,
        state: DynState,
    ) -> Result<(), OffloadError> {
        let optimizer = self.optimizer.clone();
        self.mover.put(move |shelf| {
            let mut sink = StateSink::default();
            optimizer.state_flatten("", &state, &mut sink);
            drop(state);
            shelf.write((Kept::State, parameter), sink)
        })
    }

    /// Ends an update: all states are off the device.
    pub(in crate::optimizer) fn end(&self) -> Result<(), OffloadError> {
        self.mover.settle()
    }

    pub(in crate::optimizer) fn clear(&self) {
        self.mover.shelf().clear(Kept::State);
    }

    /// The tensors of a parameter's state, under its name.
    pub(in crate::optimizer) fn tensors(
        &self,
        parameter: ParamId,
        name: &str,
    ) -> Vec<burn_pack::Tensor> {
        let item = (Kept::State, parameter);
        let kept = self.mover.shelf().of(item);
        let scalars = kept.into_iter().flat_map(|kept| kept.scalars);
        let scalars = scalars.map(|(leaf, scalar)| (format!("{name}.{leaf}"), scalar));
        let scalars = tensor_file::of_state(StateSink {
            tensors: Vec::new(),
            scalars: scalars.collect(),
        });
        let tensors = self.mover.tensors(item, name);
        tensors.into_iter().chain(scalars).collect()
    }
}

/// A state on its way to the device.
fn coming(
    mover: &Mover,
    optimizer: &Arc<dyn DynOptimizer>,
    parameter: ParamId,
    rank: usize,
) -> Coming<Option<DynState>> {
    let (optimizer, device) = (optimizer.clone(), mover.device().clone());
    mover.fetch(move |shelf| {
        let source = shelf.read((Kept::State, parameter))?;
        Ok(source.and_then(|mut own| optimizer.state_unflatten(rank, "", &mut own, &device)))
    })
}
