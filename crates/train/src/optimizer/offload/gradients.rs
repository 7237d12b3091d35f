//! Gradients that lie off their device, and visit it one layer at a time.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use burn::{
    module::{ModuleVisitor, Param, ParamId, list_param_ids},
    optim::GradientsParams,
    store::burn_pack,
    tensor::{Device, Tensor, TensorData},
};
use stovepipe_pipeline::{GradientStore, Layer, error::BoxedError};

use super::{
    error::OffloadError,
    mover::{Coming, Mover, lock},
    shelf::{Item, Kept, Shelf},
};

/// The gradients of a stage's parameters off their device.
pub(in crate::optimizer) struct OffloadedGradients {
    mover: Arc<Mover>,
    /// What is there, or on its way there.
    there: Mutex<HashSet<Item>>,
    ahead: Mutex<Ahead>,
}

/// What comes before it is asked for: while a layer is computed, the gradients of the one after the two last ones.
#[derive(Default)]
struct Ahead {
    /// The parameters of the layer that was taken after two others, each of which is named by its first parameter.
    after: HashMap<[ParamId; 2], Vec<ParamId>>,
    last: [Option<ParamId>; 2],
    /// How many layers were taken in this step, and in the one before.
    taken: [usize; 2],
    coming: Option<(ParamId, Fetched)>,
}

impl Ahead {
    /// What comes of this layer, which is taken now.
    fn take(&mut self, parameters: &[ParamId]) -> Option<Fetched> {
        let first = *parameters.first()?;
        if let [Some(one), Some(other)] = self.last {
            self.after.insert([one, other], parameters.to_vec());
        }
        self.last = [self.last[1], Some(first)];
        self.taken[0] += 1;
        let (layer, coming) = self.coming.take()?;
        (layer == first).then_some(coming)
    }

    /// The parameters of the layer that was taken next when these two were, unless the step is over.
    fn next(&self) -> Option<Vec<ParamId>> {
        let [Some(one), Some(other)] = self.last else {
            return None;
        };
        if self.taken[0] == self.taken[1] {
            return None;
        }
        self.after.get(&[one, other]).cloned()
    }

    /// A step begins or has ended.
    fn rest(&mut self) {
        (self.last, self.coming) = ([None; 2], None);
        if self.taken[0] > 0 {
            self.taken = [0, self.taken[0]];
        }
    }
}

impl OffloadedGradients {
    pub(in crate::optimizer) fn new(mover: Arc<Mover>) -> Self {
        let (there, ahead) = Default::default();
        Self {
            mover,
            there,
            ahead,
        }
    }

    pub(in crate::optimizer) fn has(&self, what: Kept, parameter: ParamId) -> bool {
        self.there().contains(&(what, parameter))
    }

    /// Reads or takes what is there of these layers, one after the other.
    pub(in crate::optimizer) fn in_order<L: Layer>(
        self: &Arc<Self>,
        what: Kept,
        layers: &[L],
        is_taken: bool,
    ) -> InOrder {
        lock(&self.ahead).rest();
        let rest = layers.iter().map(list_param_ids).collect();
        let mut in_order = InOrder {
            gradients: self.clone(),
            what,
            is_taken,
            rest,
            next: None,
        };
        in_order.ask_for_next();
        in_order
    }

    /// Moves the gradients of a layer there.
    pub(in crate::optimizer) fn put<L: Layer>(
        &self,
        what: Kept,
        layer: &L,
        gradients: &mut GradientsParams,
    ) -> Result<(), OffloadError> {
        struct Take<'a> {
            what: Kept,
            gradients: &'a mut GradientsParams,
            items: Vec<Item>,
            writes: Vec<WriteLater>,
        }

        impl ModuleVisitor for Take<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(gradient) = self.gradients.remove::<D>(param.id) {
                    let item = (self.what, param.id);
                    let write = move |shelf: &mut Shelf| shelf.write_from_device(item, gradient);
                    self.items.push(item);
                    self.writes.push(Box::new(write));
                }
            }
        }

        let mut take = Take {
            what,
            gradients,
            items: Vec::new(),
            writes: Vec::new(),
        };
        layer.visit(&mut take);
        self.there().extend(take.items);
        let writes = take.writes;
        (self.mover).put(move |shelf| writes.into_iter().try_for_each(|write| write(shelf)))
    }

    /// Puts the gradient of a parameter there, from a file.
    pub(in crate::optimizer) fn put_data(
        &self,
        what: Kept,
        parameter: ParamId,
        data: TensorData,
    ) -> Result<(), OffloadError> {
        self.there().insert((what, parameter));
        self.mover
            .put(move |shelf| shelf.write_tensor((what, parameter), data))
    }

    pub(in crate::optimizer) fn clear(&self, what: Kept) {
        lock(&self.ahead).rest();
        self.there().retain(|item| item.0 != what);
        self.mover.forget(what);
    }

    /// Waits until all is there.
    pub(in crate::optimizer) fn settle(&self) -> Result<(), OffloadError> {
        self.mover.settle()
    }

    /// What is there of a parameter, under its name.
    pub(in crate::optimizer) fn tensors(
        &self,
        what: Kept,
        parameter: ParamId,
        name: &str,
    ) -> Vec<burn_pack::Tensor> {
        match self.has(what, parameter) {
            true => self.mover.tensors((what, parameter), name),
            false => Vec::new(),
        }
    }

    fn fetch(&self, what: Kept, parameters: Vec<ParamId>, is_taken: bool) -> Option<Fetched> {
        let items = self.known(what, parameters, is_taken);
        (!items.is_empty()).then(|| {
            self.mover.fetch(move |shelf| {
                let mut found = HashMap::new();
                for item in items {
                    found.extend(shelf.read_tensor(item)?.map(|data| (item.1, data)));
                    if is_taken {
                        shelf.remove(item);
                    }
                }
                Ok(found)
            })
        })
    }

    /// What is there of these parameters; no more, if it is taken.
    fn known(&self, what: Kept, parameters: Vec<ParamId>, is_taken: bool) -> Vec<Item> {
        let mut there = self.there();
        let items = parameters.into_iter().map(|parameter| (what, parameter));
        let items: Vec<_> = items.filter(|item| there.contains(item)).collect();
        if is_taken {
            items.iter().for_each(|item| {
                there.remove(item);
            });
        }
        items
    }

    fn there(&self) -> MutexGuard<'_, HashSet<Item>> {
        lock(&self.there)
    }
}

type WriteLater = Box<dyn FnOnce(&mut Shelf) -> Result<(), OffloadError> + Send>;
type Fetched = Coming<HashMap<ParamId, TensorData>>;

impl<L: Layer> GradientStore<L> for OffloadedGradients {
    fn take(&self, layer: &L) -> Result<GradientsParams, BoxedError> {
        let parameters = list_param_ids(layer);
        let coming = lock(&self.ahead).take(&parameters);
        let fetched = match coming {
            // What was read stays there until the sum replaces it.
            Some(coming) => {
                self.known(Kept::Gradient, parameters, true);
                Some(coming)
            }
            None => self.fetch(Kept::Gradient, parameters, true),
        };
        Ok(arrived(fetched, layer, self.mover.device())?)
    }

    fn put(&self, layer: &L, mut gradients: GradientsParams) -> Result<(), BoxedError> {
        Self::put(self, Kept::Gradient, layer, &mut gradients)?;
        let mut ahead = lock(&self.ahead);
        if let Some(next) = ahead.next()
            && let Some(&first) = next.first()
        {
            let coming = self.fetch(Kept::Gradient, next, false);
            ahead.coming = coming.map(|coming| (first, coming));
        }
        Ok(())
    }

    fn clear(&self) {
        Self::clear(self, Kept::Gradient);
    }
}

/// Gradients of layers, of which those of the next one are on their way.
pub(in crate::optimizer) struct InOrder {
    gradients: Arc<OffloadedGradients>,
    what: Kept,
    is_taken: bool,
    rest: VecDeque<Vec<ParamId>>,
    next: Option<Fetched>,
}

impl InOrder {
    /// Those of the next layer, which is this one.
    pub(in crate::optimizer) fn next<L: Layer>(
        &mut self,
        layer: &L,
    ) -> Result<GradientsParams, OffloadError> {
        let own = self.next.take();
        self.ask_for_next();
        arrived(own, layer, self.gradients.mover.device())
    }

    fn ask_for_next(&mut self) {
        let parameters = self.rest.pop_front().unwrap_or_default();
        self.next = self.gradients.fetch(self.what, parameters, self.is_taken);
    }
}

/// Gradients on the device of their layer.
fn arrived<L: Layer>(
    fetched: Option<Fetched>,
    layer: &L,
    device: &Device,
) -> Result<GradientsParams, OffloadError> {
    struct Place<'a> {
        found: HashMap<ParamId, TensorData>,
        device: &'a Device,
        gradients: GradientsParams,
    }

    impl ModuleVisitor for Place<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(data) = self.found.remove(&param.id) {
                let dtype = data.dtype();
                let gradient = Tensor::<D>::from_data(data, (self.device, dtype));
                self.gradients.register(param.id, gradient);
            }
        }
    }

    let found = fetched.map_or_else(|| Ok(HashMap::new()), Coming::wait)?;
    let gradients = GradientsParams::new();
    let mut place = Place {
        found,
        device,
        gradients,
    };
    layer.visit(&mut place);
    Ok(place.gradients)
}
