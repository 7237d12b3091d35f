//! An optimizer's states, which visit their device one parameter at a time.

use std::{collections::VecDeque, sync::Arc};

use burn::{
    module::ParamId,
    optim::{DynOptimizer, DynState, StateSink},
    store::burn_pack,
};

use super::{
    error::OffloadError,
    mover::{Coming, Mover},
    shelf::Kept,
};
use crate::weights::tensor_file;

/// The states of a stage's parameters off their device.
pub(in crate::optimizer) struct OffloadedStates {
    mover: Arc<Mover>,
    optimizer: Arc<dyn DynOptimizer>,
    /// The parameters of an update, with their ranks, that were not asked for yet, and those that are on their way.
    coming: std::vec::IntoIter<(ParamId, usize)>,
    asked: VecDeque<(ParamId, Coming<Option<DynState>>)>,
}

impl OffloadedStates {
    pub(in crate::optimizer) fn new(mover: Arc<Mover>, optimizer: Arc<dyn DynOptimizer>) -> Self {
        Self {
            mover,
            optimizer,
            coming: Vec::new().into_iter(),
            asked: VecDeque::new(),
        }
    }

    /// Begins an update of these parameters, in this order.
    pub(in crate::optimizer) fn begin(&mut self, parameters: Vec<(ParamId, usize)>) {
        self.asked.clear();
        self.coming = parameters.into_iter();
        self.ask_for_next();
    }

    /// The state of the next parameter, whose successor's is then on its way.
    pub(in crate::optimizer) fn take(
        &mut self,
        parameter: ParamId,
    ) -> Result<Option<DynState>, OffloadError> {
        self.ask_for_next();
        match self.asked.pop_front() {
            Some((next, coming)) if next == parameter => coming.wait(),
            _ => Err(OffloadError::Order),
        }
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

    fn ask_for_next(&mut self) {
        let Some((parameter, rank)) = self.coming.next() else {
            return;
        };
        let (optimizer, device) = (self.optimizer.clone(), self.mover.device().clone());
        let coming = self.mover.fetch(move |shelf| {
            let source = shelf.read((Kept::State, parameter))?;
            Ok(source.and_then(|mut own| optimizer.state_unflatten(rank, "", &mut own, &device)))
        });
        self.asked.push_back((parameter, coming));
    }
}
