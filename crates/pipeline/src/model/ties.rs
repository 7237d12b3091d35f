//! Parameters that several layers share, such as an embedding and an output layer over the same words.
//!
//! Places that held one parameter when the pipeline was built stay tied. On different devices, each has a
//! copy. The first place is the owner: it decides the value, and whether the parameter is trained. The
//! gradients of all places are added in the order of the layers, on the owner's device, and an optimizer
//! updates the owner. Whenever layers change, the other places are copied from the owner.

use std::collections::{HashMap, HashSet};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    optim::GradientsParams,
    tensor::{Tensor, container::TensorContainer},
};

use crate::model::parameters::parameter_ids;

/// The index of a parameter in a visit of all layers. Loading a record changes ids, but not places.
type Place = usize;

/// The parameters with more than one place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ties {
    /// The owner of each other place.
    owners: HashMap<Place, Place>,
    /// Their ids when the pipeline was built.
    ids: HashSet<ParamId>,
}

impl Ties {
    pub(crate) fn of<M: Module>(layers: &[M]) -> Self {
        struct Find {
            place: Place,
            seen: HashMap<ParamId, Place>,
            ties: Ties,
        }

        impl ModuleVisitor for Find {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let place = self.place;
                self.place += 1;
                let owner = *self.seen.entry(param.id).or_insert(place);
                if owner != place {
                    self.ties.owners.insert(place, owner);
                    self.ties.ids.insert(param.id);
                }
            }
        }

        let mut find = Find {
            place: 0,
            seen: HashMap::new(),
            ties: Self::default(),
        };
        layers.iter().for_each(|layer| layer.visit(&mut find));
        find.ties
    }

    /// Whether a layer has such a parameter, before any record is loaded.
    pub(crate) fn touch<M: Module>(&self, layer: &M) -> bool {
        !self.ids.is_empty() && parameter_ids(layer).iter().any(|id| self.ids.contains(id))
    }

    /// Copies the owner's value to all other places, each on its own device.
    pub(crate) fn tie<M: Module>(&self, layers: Vec<M>) -> Vec<M> {
        if self.owners.is_empty() {
            return layers;
        }
        let mut tie = Tie {
            place: 0,
            owners: &self.owners,
            values: TensorContainer::new(),
            of_owner: self.owners.values().map(|&owner| (owner, None)).collect(),
        };
        layers
            .into_iter()
            .map(|layer| layer.map(&mut tie))
            .collect()
    }

    /// Moves the gradients of shared parameters to their owners' devices.
    pub(crate) fn settle<M: Module>(&self, layers: &[M], gradients: &mut GradientsParams) {
        struct Settle<'a> {
            place: Place,
            owners: HashSet<Place>,
            gradients: &'a mut GradientsParams,
        }

        impl ModuleVisitor for Settle<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.place += 1;
                if !self.owners.contains(&(self.place - 1)) {
                    return;
                }
                if let Some(gradient) = self.gradients.remove::<D>(param.id) {
                    let device = param.val().device().inner();
                    self.gradients
                        .register(param.id, gradient.to_device(&device));
                }
            }
        }

        if self.owners.is_empty() {
            return;
        }
        let mut settle = Settle {
            place: 0,
            owners: self.owners.values().copied().collect(),
            gradients,
        };
        layers.iter().for_each(|layer| layer.visit(&mut settle));
    }
}

struct Tie<'a> {
    place: Place,
    owners: &'a HashMap<Place, Place>,
    values: TensorContainer<Place>,
    /// The id of each owner, and whether it is trained.
    of_owner: HashMap<Place, Option<(ParamId, bool)>>,
}

impl ModuleMapper for Tie<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let place = self.place;
        self.place += 1;
        if let Some(of_owner) = self.of_owner.get_mut(&place) {
            *of_owner = Some((param.id, param.is_require_grad()));
            self.values.register(place, param.val().inner());
            return param;
        }
        let Some(owner) = self.owners.get(&place) else {
            return param;
        };
        let value = self.values.get::<Tensor<D>>(owner);
        let Some((value, (id, is_trained))) = value.zip(self.of_owner[owner]) else {
            return param;
        };
        let own = param.val();
        let value = value.to_device(&own.device().inner());
        Param::initialized(
            id,
            if own.is_autodiff() {
                value.autodiff().set_require_grad(is_trained)
            } else {
                value
            },
        )
    }
}

/// Makes the places of a parameter within one layer share a leaf, which sums its gradients.
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
    if ties.owners.is_empty() {
        return layer;
    }
    layer.map(&mut Share {
        shared: &ties.ids,
        leaves: TensorContainer::new(),
    })
}
