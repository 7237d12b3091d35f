//! Parameters that several layers share, such as an embedding and the softmax over the same words.
//!
//! A parameter is known by its id. Where layers that share one lie on different devices, each has a copy
//! of it there; the first of them owns it. The gradients of all are added up, in the order of the
//! layers, and belong to the owner: that is the one an optimizer updates. Whenever layers have
//! changed, the others' copies are made anew of the owner's.

use std::collections::HashSet;

use burn::{
    module::{Module, ModuleMapper, Param, ParamId},
    tensor::{Tensor, container::TensorContainer},
};

use crate::parameters::parameter_ids;

/// The parameters that are found in more than one place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ties(HashSet<ParamId>);

impl Ties {
    pub(crate) fn of<M: Module>(layers: &[M]) -> Self {
        let mut seen = HashSet::new();
        let ids = layers.iter().flat_map(parameter_ids);
        Self(ids.filter(|id| !seen.insert(*id)).collect())
    }

    /// Whether a layer holds such a parameter.
    pub(crate) fn touch<M: Module>(&self, layer: &M) -> bool {
        !self.0.is_empty() && parameter_ids(layer).iter().any(|id| self.0.contains(id))
    }

    /// Gives every place of a shared parameter the owner's value, on its own device.
    pub(crate) fn tie<M: Module>(&self, layers: Vec<M>) -> Vec<M> {
        if self.0.is_empty() {
            return layers;
        }
        let mut tie = Tie {
            shared: &self.0,
            owners: TensorContainer::new(),
        };
        layers
            .into_iter()
            .map(|layer| layer.map(&mut tie))
            .collect()
    }
}

struct Tie<'a> {
    shared: &'a HashSet<ParamId>,
    owners: TensorContainer<ParamId>,
}

impl ModuleMapper for Tie<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !self.shared.contains(&param.id) {
            return param;
        }
        match self.owners.get::<Tensor<D>>(&param.id) {
            None => {
                self.owners.register(param.id, param.val().inner());
                param
            }
            Some(owner) => param.map(|own| {
                let value = owner.to_device(&own.device().inner());
                match own.is_autodiff() {
                    true => value.autodiff().set_require_grad(own.is_require_grad()),
                    false => value,
                }
            }),
        }
    }
}

/// Has the places of a parameter within one layer share a leaf, so that its gradients meet there.
pub(crate) fn share_leaves<M: Module>(layer: M) -> M {
    struct Share<'a> {
        shared: &'a HashSet<ParamId>,
        leaves: TensorContainer<ParamId>,
    }

    impl ModuleMapper for Share<'_> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if !self.shared.contains(&param.id) {
                return param;
            }
            match self.leaves.get::<Tensor<D>>(&param.id) {
                None => {
                    self.leaves.register(param.id, param.val());
                    param
                }
                Some(leaf) => Param::initialized(param.id, leaf),
            }
        }
    }

    let ties = Ties::of(std::slice::from_ref(&layer));
    if ties.0.is_empty() {
        return layer;
    }
    layer.map(&mut Share {
        shared: &ties.0,
        leaves: TensorContainer::new(),
    })
}
