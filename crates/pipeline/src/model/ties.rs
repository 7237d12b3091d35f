//! Parameters that several layers share, such as an embedding and an output layer over the same words.
//!
//! Places that held one parameter when the pipeline was built stay tied. On different devices, each has a
//! copy. The first place is the owner: it decides the value, and whether the parameter is trained. The
//! gradients of all places are added in the order of the layers, on the owner's device, and an optimizer
//! updates the owner. Whenever layers change, the other places are copied from the owner; those of other
//! processes before the next run ([`shared`](crate::engine::shared)).

use std::collections::{BTreeSet, HashMap, HashSet};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId, list_param_ids},
    optim::GradientsParams,
    tensor::{Tensor, container::TensorContainer},
};

use crate::model::{moved::moved, parameters::is_statistic};

/// A layer, and the index of a float in a visit of it. Loading a record changes ids, but not places. Other
/// processes have other ids, but the same places.
pub(crate) type Place = (usize, usize);

/// The parameters with more than one place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ties {
    /// The places of each, in order: the owner is the first.
    places: Vec<Vec<Place>>,
    /// The other parameters.
    single: Vec<Place>,
    /// Their ids when the pipeline was built.
    ids: HashSet<ParamId>,
    /// Two layers that share running statistics.
    pub(crate) shared_statistics: Option<[usize; 2]>,
}

impl Ties {
    pub(crate) fn of<M: Module>(layers: &[M]) -> Self {
        #[derive(Default)]
        struct Find {
            place: Place,
            places: HashMap<ParamId, Vec<Place>>,
            in_statistics: bool,
            statistics: HashSet<Place>,
        }

        impl ModuleVisitor for Find {
            fn enter_module(&mut self, name: &str, container_type: &str) {
                self.in_statistics |= is_statistic(name, container_type);
            }

            fn exit_module(&mut self, name: &str, container_type: &str) {
                self.in_statistics &= !is_statistic(name, container_type);
            }

            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.places.entry(param.id).or_default().push(self.place);
                if self.in_statistics {
                    self.statistics.insert(self.place);
                }
                self.place.1 += 1;
            }
        }

        let mut find = Find::default();
        for (index, layer) in layers.iter().enumerate() {
            find.place = (index, 0);
            layer.visit(&mut find);
        }
        let (tied, single): (Vec<_>, Vec<_>) =
            (find.places.into_iter()).partition(|(_, places)| places.len() > 1);
        let (ids, mut places): (_, Vec<_>) = tied.into_iter().unzip();
        places.sort_unstable();
        let single = single.into_iter().flat_map(|(_, places)| places);
        let single = single.filter(|place| !find.statistics.contains(place));
        let mut statistics = places.iter().filter_map(|places| {
            let (first, _) = *find.statistics.get(&places[0])?;
            let (second, _) = places.iter().find(|(layer, _)| *layer != first)?;
            Some([first, *second])
        });
        Self {
            shared_statistics: statistics.next(),
            single: single.collect(),
            places,
            ids,
        }
    }

    /// The places of each parameter, in order.
    pub(crate) fn places(&self) -> &[Vec<Place>] {
        &self.places
    }

    /// The places of parameters that have one, running statistics left out.
    pub(crate) fn single(&self) -> &[Place] {
        &self.single
    }

    /// The ties among some layers.
    pub(crate) fn within(&self, is_own: impl Fn(usize) -> bool) -> Self {
        let own = |places: &Vec<Place>| -> Vec<_> {
            let own = places.iter().filter(|(layer, _)| is_own(*layer));
            own.copied().collect()
        };
        let places = self.places.iter().map(own);
        Self {
            places: places.filter(|places| places.len() > 1).collect(),
            ..self.clone()
        }
    }

    /// Whether a layer has such a parameter, before any record is loaded.
    pub(crate) fn touch<M: Module>(&self, layer: &M) -> bool {
        !self.ids.is_empty() && list_param_ids(layer).iter().any(|id| self.ids.contains(id))
    }

    /// Copies the owner's value to all other places, each on its own device.
    pub(crate) fn tie<M: Module>(&self, layers: Vec<M>) -> Vec<M> {
        struct Tie {
            /// The owner of each other place.
            owners: HashMap<Place, Place>,
            values: TensorContainer<Place>,
            /// The id of each owner, and whether it is trained.
            of_owner: HashMap<Place, Option<(ParamId, bool)>>,
        }

        impl PlaceMapper for Tie {
            fn map<const D: usize>(
                &mut self,
                place: Place,
                param: Param<Tensor<D>>,
            ) -> Param<Tensor<D>> {
                if let Some(of_owner) = self.of_owner.get_mut(&place) {
                    *of_owner = Some((param.id, param.is_require_grad()));
                    self.values.register(place, param.val().inner());
                    return param;
                }
                let Some(owner) = self.owners.get(&place) else {
                    return param;
                };
                let value = self.values.get::<Tensor<D>>(owner);
                match value.zip(self.of_owner[owner]) {
                    Some((value, (id, is_trained))) => with_value(&param, id, value, is_trained),
                    None => param,
                }
            }
        }

        let owners = self.places.iter().flat_map(|places| {
            let others = places[1..].iter();
            others.map(|&place| (place, places[0]))
        });
        let mut tie = Tie {
            owners: owners.collect(),
            values: TensorContainer::new(),
            of_owner: (self.places.iter().map(|places| (places[0], None))).collect(),
        };
        map_places(layers, self.places.iter().flatten(), &mut tie)
    }

    /// Moves the gradients of shared parameters to their owners' devices.
    pub(crate) fn settle<M: Module>(&self, layers: &[M], gradients: &mut GradientsParams) {
        struct Settle<'a> {
            owners: HashSet<Place>,
            gradients: &'a mut GradientsParams,
        }

        impl PlaceVisitor for Settle<'_> {
            fn visit<const D: usize>(&mut self, place: Place, param: &Param<Tensor<D>>) {
                if !self.owners.contains(&place) {
                    return;
                }
                if let Some(gradient) = self.gradients.remove::<D>(param.id) {
                    let moved = moved(gradient, &param.val().device().inner());
                    self.gradients.register(param.id, moved);
                }
            }
        }

        let owners = || self.places.iter().map(|places| &places[0]);
        let mut settle = Settle {
            owners: owners().copied().collect(),
            gradients,
        };
        visit_places(layers, owners(), &mut settle);
    }
}

/// The parameter with another value, moved to its device.
pub(crate) fn with_value<const D: usize>(
    param: &Param<Tensor<D>>,
    id: ParamId,
    value: Tensor<D>,
    is_trained: bool,
) -> Param<Tensor<D>> {
    let own = param.val();
    let value = moved(value, &own.device().inner());
    Param::initialized(
        id,
        if own.is_autodiff() {
            value.autodiff().set_require_grad(is_trained)
        } else {
            value
        },
    )
}

/// Visits floats by their place.
pub(crate) trait PlaceVisitor {
    fn visit<const D: usize>(&mut self, place: Place, param: &Param<Tensor<D>>);
}

/// Visits the layers that have some places.
pub(crate) fn visit_places<'a, M: Module>(
    layers: &[M],
    places: impl IntoIterator<Item = &'a Place>,
    visitor: &mut impl PlaceVisitor,
) {
    struct Visit<'a, V>(Place, &'a mut V);

    impl<V: PlaceVisitor> ModuleVisitor for Visit<'_, V> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1.visit(self.0, param);
            self.0.1 += 1;
        }
    }

    let places = places.into_iter();
    for index in places.map(|(layer, _)| *layer).collect::<BTreeSet<_>>() {
        if let Some(layer) = layers.get(index) {
            layer.visit(&mut Visit((index, 0), visitor));
        }
    }
}

/// Maps floats by their place.
pub(crate) trait PlaceMapper {
    fn map<const D: usize>(&mut self, place: Place, param: Param<Tensor<D>>) -> Param<Tensor<D>>;
}

/// Maps the layers that have some places.
pub(crate) fn map_places<'a, M: Module>(
    layers: Vec<M>,
    places: impl IntoIterator<Item = &'a Place>,
    mapper: &mut impl PlaceMapper,
) -> Vec<M> {
    struct Map<'a, V>(Place, &'a mut V);

    impl<V: PlaceMapper> ModuleMapper for Map<'_, V> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            self.0.1 += 1;
            self.1.map((self.0.0, self.0.1 - 1), param)
        }
    }

    let places = places.into_iter();
    let indices: BTreeSet<_> = places.map(|(layer, _)| *layer).collect();
    let layers = layers.into_iter().enumerate();
    let map = |(index, layer): (usize, M)| match indices.contains(&index) {
        true => layer.map(&mut Map((index, 0), mapper)),
        false => layer,
    };
    layers.map(map).collect()
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
    if ties.places.is_empty() {
        return layer;
    }
    layer.map(&mut Share {
        shared: &ties.ids,
        leaves: TensorContainer::new(),
    })
}
