//! The optimizer state of a stage: on its device, or off it between updates.

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::Arc,
};

use burn::{
    module::{ModuleVisitor, Param, ParamId},
    optim::{DynOptimizer, DynState, GradientsParams, StateSink},
    store::burn_pack,
    tensor::{Device, Tensor},
};
use stovepipe_pipeline::Layer;

use super::{
    offload::{Offloaded, Storage},
    offload_error::OffloadError,
};
use crate::weights::tensor_file;

#[derive(Default)]
pub(super) struct States {
    here: OnDevice,
    away: Option<Offloaded>,
}

/// The names of parameters.
pub(crate) type Names = HashMap<ParamId, String>;

/// The states of parameters on their device.
pub(super) type OnDevice = HashMap<ParamId, DynState>;

impl States {
    pub(super) fn on_device(here: OnDevice) -> Self {
        Self { here, away: None }
    }

    pub(super) fn is_on_device(&self) -> bool {
        self.away.is_none()
    }

    /// Moves out those on the device.
    pub(super) fn take_on_device(&mut self) -> OnDevice {
        std::mem::take(&mut self.here)
    }

    pub(super) fn offloaded(
        storage: Box<dyn Storage>,
        optimizer: Arc<dyn DynOptimizer>,
        device: Device,
    ) -> io::Result<Self> {
        let away = Offloaded::new(storage, optimizer, device)?;
        Ok(Self {
            away: Some(away),
            ..Self::default()
        })
    }

    /// Begins an update of the parameters of these layers that have gradients, in the order of a visit.
    pub(super) fn begin<L: Layer>(&mut self, layers: &[L], gradients: &GradientsParams) {
        if let Some(away) = &mut self.away {
            away.begin(with_gradients(layers, gradients));
        }
    }

    /// The state of the next of these parameters.
    pub(super) fn take(&mut self, id: ParamId) -> Result<Option<DynState>, OffloadError> {
        match &mut self.away {
            Some(away) => away.take(id),
            None => Ok(self.here.remove(&id)),
        }
    }

    pub(super) fn put(&mut self, id: ParamId, state: DynState) -> Result<(), OffloadError> {
        match &self.away {
            Some(away) => away.put(id, state),
            None => {
                self.here.insert(id, state);
                Ok(())
            }
        }
    }

    /// Ends an update.
    pub(super) fn end(&mut self) -> Result<(), OffloadError> {
        self.away.as_mut().map_or(Ok(()), Offloaded::end)
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.here.clear();
        if let Some(away) = &self.away {
            away.clear();
        }
    }

    /// Takes a state from a checkpoint.
    pub(super) fn restore(&mut self, id: ParamId, state: DynState) -> Result<(), OffloadError> {
        match &self.away {
            Some(away) => away.restore(id, &state),
            None => {
                self.here.insert(id, state);
                Ok(())
            }
        }
    }

    /// As tensors, by the names of parameters: `NAME.momentum.moment_1` and so on. What is off the device is
    /// read when it is written.
    pub(super) fn tensors(
        &self,
        optimizer: &dyn DynOptimizer,
        names: &Names,
    ) -> Vec<burn_pack::Tensor> {
        let mut sink = StateSink::default();
        for (id, state) in &self.here {
            if let Some(name) = names.get(id) {
                optimizer.state_flatten(name, state, &mut sink);
            }
        }
        let mut tensors = tensor_file::of_state(sink);
        if let Some(away) = &self.away {
            tensors.extend(names.iter().flat_map(|(id, name)| away.tensors(*id, name)));
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        tensors
    }
}

/// Parameters with gradients, and their ranks. One in several layers is met once.
fn with_gradients<L: Layer>(layers: &[L], gradients: &GradientsParams) -> Vec<(ParamId, usize)> {
    struct Find<'a> {
        gradients: &'a GradientsParams,
        seen: HashSet<ParamId>,
        found: Vec<(ParamId, usize)>,
    }

    impl ModuleVisitor for Find<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let has = self.gradients.get::<D>(param.id).is_some();
            if has && self.seen.insert(param.id) {
                self.found.push((param.id, D));
            }
        }
    }

    let mut find = Find {
        gradients,
        seen: HashSet::new(),
        found: Vec::new(),
    };
    layers.iter().for_each(|layer| layer.visit(&mut find));
    find.found
}
