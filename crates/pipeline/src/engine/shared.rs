//! Parameters that layers of several processes share: tied ones, and those of replicas on devices of unlike
//! kinds, whose own updates would drift apart.
//!
//! The process of the first place owns the parameter. When layers have changed, it sends the value to the
//! others before the next run; Burn's module mapping, which changes layers, cannot fail and so cannot wait
//! for others. At the end of a run, the others send it the gradient of each of their layers, so that it can
//! add all gradients in the order of layers, as one process does.
//!
//! Nobody waits for such a message: it is sent before a gather, and messages of a rank arrive in order.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use burn::{
    module::{Module, Param},
    optim::GradientsParams,
    tensor::{Float, Tensor},
};
use stovepipe_comm::ProcessError;

use crate::{
    api::error::{BoxedError, FailureCause},
    engine::{
        panic::caught,
        post::{Post, SharedGradient, SharedValue},
    },
    model::{
        packed::{PackError, Packed},
        ties::{Place, PlaceMapper, PlaceVisitor, Ties, map_places, visit_places, with_value},
    },
};

pub(crate) struct Shared {
    post: Arc<Post>,
    /// This process's parameters that others share: the first place of each, and these processes.
    owned: BTreeMap<Place, BTreeSet<usize>>,
    /// This process's places of others' parameters: the first place of each.
    copies: BTreeMap<Place, Place>,
    /// Whose gradient this process sends: the first place of the parameter, and the processes that get it.
    senders: BTreeMap<Place, (Place, BTreeSet<usize>)>,
}

/// The gradients of a layer, of this or another process.
pub(crate) struct GradientsOfLayer {
    pub(crate) layer: usize,
    /// The layer of this process that has their parameters.
    pub(crate) owner: usize,
    pub(crate) gradients: GradientsParams,
}

impl Shared {
    /// Whether a layer has a parameter that others share.
    pub(crate) fn touches(&self, layer: usize) -> bool {
        let own = self
            .owned
            .keys()
            .chain(self.copies.keys())
            .chain(self.senders.keys());
        own.into_iter().any(|place| place.0 == layer)
    }

    /// `None` if no parameter has places in several processes. `processes_of` are those of a layer, one for
    /// each replica. A replica of the owner has its counterpart among the replicas of other layers; replicas
    /// on devices of unlike kinds have one owner, the first.
    pub(crate) fn new(
        ties: &Ties,
        (processes_of, is_unlike): (impl Fn(usize) -> Vec<usize>, impl Fn(usize) -> bool),
        post: &Arc<Post>,
    ) -> Option<Self> {
        let mut shared = Self {
            post: post.clone(),
            owned: BTreeMap::new(),
            copies: BTreeMap::new(),
            senders: BTreeMap::new(),
        };
        let (own, mut is_any_shared) = (post.agreement().comm().rank(), false);
        let tied = ties.places().iter().map(Vec::as_slice);
        for places in tied.chain(ties.single().chunks(1)) {
            let (first, mut owners) = (places[0], processes_of(places[0].0));
            let is_unlike = is_unlike(first.0);
            if is_unlike {
                owners.truncate(1);
            }
            for &place in &places[usize::from(!is_unlike)..] {
                let users = processes_of(place.0);
                for (replica, &user) in users.iter().enumerate() {
                    let owner = owners[replica % owners.len()];
                    if owners.contains(&user) {
                        continue;
                    }
                    is_any_shared = true;
                    if user == own {
                        shared.copies.insert(place, first);
                    }
                    if owner == own {
                        shared.owned.entry(first).or_default().insert(user);
                    }
                }
                let mut known = BTreeSet::new();
                for (replica, &owner) in owners.iter().enumerate() {
                    // A process with several replicas of the owner needs the gradient once.
                    if users.contains(&owner) || !known.insert(owner) {
                        continue;
                    }
                    is_any_shared = true;
                    if users[replica % users.len()] == own {
                        let (_, to) = shared
                            .senders
                            .entry(place)
                            .or_insert((first, BTreeSet::new()));
                        to.insert(owner);
                    }
                }
            }
        }
        is_any_shared.then_some(shared)
    }

    /// Sends the values that this process owns, for the next run.
    pub(crate) fn send_values<M: Module>(&self, layers: &[M]) -> Result<(), ProcessError> {
        struct Send<'a> {
            shared: &'a Shared,
            sent: Result<(), ProcessError>,
        }

        impl PlaceVisitor for Send<'_> {
            fn visit<const D: usize>(&mut self, place: Place, param: &Param<Tensor<D>>) {
                let Some(others) = self.shared.owned.get(&place).filter(|_| self.sent.is_ok())
                else {
                    return;
                };
                let is_trained = param.is_require_grad();
                self.sent = packed(|| param.val().inner()).and_then(|tensor| {
                    let value = SharedValue {
                        owner: place,
                        is_trained,
                        tensor,
                    };
                    Ok(self.shared.post.send_value(others, value)?)
                });
            }
        }

        let mut send = Send {
            shared: self,
            sent: Ok(()),
        };
        visit_places(layers, self.owned.keys(), &mut send);
        send.sent
    }

    /// Takes the values of other processes over, each at the first place of this one.
    pub(crate) fn with_values<M: Module>(&self, layers: Vec<M>) -> Result<Vec<M>, ProcessError> {
        struct Take<'a> {
            copies: &'a BTreeMap<Place, Place>,
            values: HashMap<Place, (Packed, bool)>,
            error: Option<PackError>,
        }

        impl PlaceMapper for Take<'_> {
            fn map<const D: usize>(
                &mut self,
                place: Place,
                param: Param<Tensor<D>>,
            ) -> Param<Tensor<D>> {
                let owner = self.copies.get(&place);
                let value = owner.and_then(|owner| self.values.remove(owner));
                let Some((mut packed, is_trained)) = value else {
                    return param;
                };
                match packed.tensor::<D, Float>(&param.val().device().inner()) {
                    Ok(value) => with_value(&param, param.id, value, is_trained),
                    Err(error) => {
                        self.error = Some(error);
                        param
                    }
                }
            }
        }

        let arrived = self.post.take_values()?.into_iter();
        let values = arrived.map(|value| (value.owner, (value.tensor, value.is_trained)));
        let mut take = Take {
            copies: &self.copies,
            values: values.collect(),
            error: None,
        };
        let mut owners = self.copies.values();
        if owners.any(|owner| !take.values.contains_key(owner)) {
            return Err(unreadable("the value of a shared parameter is missing"));
        }
        let layers = caught(|| map_places(layers, self.copies.keys(), &mut take));
        match take.error {
            Some(error) => Err(unreadable(error)),
            None => layers.map_err(unreadable),
        }
    }

    /// Takes the gradients of others' parameters out of those of a stage's layers, and sends them to the
    /// processes that own these. `first` is the index of the first layer.
    pub(crate) fn send_gradients<M: Module>(
        &self,
        first: usize,
        layers: &[M],
        gradients: &mut [GradientsParams],
    ) -> Result<(), FailureCause> {
        struct Send<'a> {
            shared: &'a Shared,
            first: usize,
            gradients: &'a mut [GradientsParams],
            sent: Result<(), ProcessError>,
        }

        impl PlaceVisitor for Send<'_> {
            fn visit<const D: usize>(&mut self, place: Place, param: &Param<Tensor<D>>) {
                let layer = self.first + place.0;
                let place_of_model = (layer, place.1);
                // A layer has one gradient for all its places.
                let own = &mut self.gradients[place.0];
                let gradient = match self.shared.copies.contains_key(&place_of_model) {
                    true => own.remove::<D>(param.id),
                    false => own.get::<D>(param.id), // this process has the owner, too
                };
                let sender = self.shared.senders.get(&place_of_model);
                let Some(((owner, processes), gradient)) = sender.zip(gradient) else {
                    return;
                };
                let sent = packed(|| gradient).and_then(|tensor| {
                    let send = |&process: &usize| {
                        let gradient = SharedGradient {
                            owner: *owner,
                            layer,
                            tensor: tensor.clone(),
                        };
                        Ok(self.shared.post.send_gradient(process, gradient)?)
                    };
                    processes.iter().try_for_each(send)
                });
                self.sent = std::mem::replace(&mut self.sent, Ok(())).and(sent);
            }
        }

        let own = self.copies.keys().chain(self.senders.keys());
        let own = own.collect::<BTreeSet<_>>().into_iter();
        let own = own.filter_map(|(layer, index)| Some((layer.checked_sub(first)?, *index)));
        let own: Vec<Place> = own.collect();
        let mut send = Send {
            shared: self,
            first,
            gradients,
            sent: Ok(()),
        };
        visit_places(layers, &own, &mut send);
        send.sent.map_err(FailureCause::OtherProcess)
    }

    /// The gradients of this run that other processes computed for parameters of this one.
    pub(crate) fn take_gradients<M: Module>(
        &self,
        layers: &[M],
    ) -> Result<Vec<GradientsOfLayer>, ProcessError> {
        struct Take {
            owner: Place,
            tensor: Packed,
            taken: Result<GradientsParams, PackError>,
        }

        impl PlaceVisitor for Take {
            fn visit<const D: usize>(&mut self, place: Place, param: &Param<Tensor<D>>) {
                if place != self.owner {
                    return;
                }
                let device = param.val().device().inner();
                self.taken = self.tensor.tensor::<D, Float>(&device).map(|gradient| {
                    let mut gradients = GradientsParams::new();
                    gradients.register(param.id, gradient);
                    gradients
                });
            }
        }

        let take = |shared: SharedGradient| {
            let (layer, owner) = (shared.layer, shared.owner);
            let mut take = Take {
                owner,
                tensor: shared.tensor,
                taken: Ok(GradientsParams::new()),
            };
            let visited = caught(|| visit_places(layers, [&owner], &mut take));
            let taken = visited
                .map_err(unreadable)
                .and(take.taken.map_err(unreadable));
            taken.map(|gradients| GradientsOfLayer {
                layer,
                owner: owner.0,
                gradients,
            })
        };
        self.post.take_gradients().into_iter().map(take).collect()
    }
}

/// A tensor that is to be sent.
fn packed<const D: usize>(tensor: impl FnOnce() -> Tensor<D>) -> Result<Packed, ProcessError> {
    let mut packed = Packed::default();
    let pushed = caught(|| packed.push_tensor(tensor()));
    pushed.map_err(unreadable)?.map_err(unreadable)?;
    Ok(packed)
}

fn unreadable(error: impl Into<BoxedError>) -> ProcessError {
    ProcessError::Unreadable(error.into())
}
