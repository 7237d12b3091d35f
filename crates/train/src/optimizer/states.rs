//! The optimizer state of a stage: on its device, or off it between updates.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use burn::{
    module::{ModuleVisitor, Param, ParamId},
    optim::{DynOptimizer, DynState, GradientsParams, StateSink},
    store::burn_pack,
    tensor::Tensor,
};
use stovepipe_pipeline::Layer;

use super::offload::{Kept, Mover, OffloadError, OffloadedGradients, OffloadedStates};
use crate::weights::tensor_file;

#[derive(Default)]
pub(super) struct States {
    here: OnDevice,
    away: Option<Away>,
}

/// What of a stage lies off its device.
struct Away {
    states: OffloadedStates,
    gradients: Option<Arc<OffloadedGradients>>,
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

    /// Replicas have their gradients on their devices, where they are added.
    pub(super) fn offloaded(
        mover: Mover,
        optimizer: Arc<dyn DynOptimizer>,
        has_replicas: bool,
    ) -> Self {
        let mover = Arc::new(mover);
        let gradients = || Arc::new(OffloadedGradients::new(mover.clone()));
        let away = Away {
            gradients: (!has_replicas).then(gradients),
            states: OffloadedStates::new(mover, optimizer),
        };
        Self {
            away: Some(away),
            ..Self::default()
        }
    }

    /// The gradients off the device, if they may lie there.
    pub(super) fn gradients(&self) -> Option<Arc<OffloadedGradients>> {
        self.away.as_ref()?.gradients.clone()
    }

    /// Begins an update of the parameters of these layers that have gradients, in the order of a visit.
    pub(super) fn begin<L: Layer>(&mut self, layers: &[L], gradients: &GradientsParams) {
        if let Some(away) = &mut self.away {
            let gradients_away = away.gradients.as_ref();
            let is_away = |id| gradients_away.is_some_and(|away| away.has(Kept::Gradient, id));
            (away.states).begin(with_gradients(layers, gradients, is_away));
        }
    }

    /// The state of the next of these parameters.
    pub(super) fn take(&mut self, id: ParamId) -> Result<Option<DynState>, OffloadError> {
        match &mut self.away {
            Some(away) => away.states.take(id),
            None => Ok(self.here.remove(&id)),
        }
    }

    pub(super) fn put(&mut self, id: ParamId, state: DynState) -> Result<(), OffloadError> {
        match &self.away {
            Some(away) => away.states.put(id, state),
            None => {
                self.here.insert(id, state);
                Ok(())
            }
        }
    }

    /// Ends an update.
    pub(super) fn end(&mut self) -> Result<(), OffloadError> {
        self.away.as_ref().map_or(Ok(()), |away| away.states.end())
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.here.clear();
        if let Some(away) = &self.away {
            away.states.clear();
        }
    }

    /// Takes a state from a checkpoint.
    pub(super) fn restore(&mut self, id: ParamId, state: DynState) -> Result<(), OffloadError> {
        match &self.away {
            Some(away) => away.states.put(id, state),
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
            let of_all = names
                .iter()
                .map(|(id, name)| away.states.tensors(*id, name));
            tensors.extend(of_all.flatten());
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        tensors
    }
}

/// Parameters with gradients, and their ranks. One in several layers is met once.
fn with_gradients<L: Layer>(
    layers: &[L],
    gradients: &GradientsParams,
    is_away: impl Fn(ParamId) -> bool,
) -> Vec<(ParamId, usize)> {
    struct Find<'a, P> {
        gradients: &'a GradientsParams,
        is_away: P,
        seen: HashSet<ParamId>,
        found: Vec<(ParamId, usize)>,
    }

    impl<P: Fn(ParamId) -> bool> ModuleVisitor for Find<'_, P> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let has = self.gradients.get::<D>(param.id).is_some() || (self.is_away)(param.id);
            if has && self.seen.insert(param.id) {
                self.found.push((param.id, D));
            }
        }
    }

    let mut find = Find {
        gradients,
        is_away,
        seen: HashSet::new(),
        found: Vec::new(),
    };
    layers.iter().for_each(|layer| layer.visit(&mut find));
    find.found
}
