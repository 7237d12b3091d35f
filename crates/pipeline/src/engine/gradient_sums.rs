//! The sums of a stage's gradients over micro-batches, on its device or in a store.

use std::sync::Arc;

use burn::{
    optim::{GradientsAccumulator, GradientsParams},
    tensor::Tensor,
};

use crate::{
    api::{
        error::{BoxedError, FailureCause},
        gradient_store::GradientStore,
    },
    engine::{copies, finite::gradient_sum},
    model::layer::Layer,
};

/// A store, and which of the stage's layers have their gradients there. Parameters in several places have them on the device.
pub(crate) struct Stored<L> {
    pub(crate) store: Arc<dyn GradientStore<L>>,
    pub(crate) layers: Vec<bool>,
}

/// The sum of each layer's gradients, by its index in the stage.
pub(crate) struct GradientSums<L: Layer> {
    here: Vec<GradientsAccumulator<L>>,
    stored: Option<Stored<L>>,
    ending: Ending,
    /// Of layers whose sum is in the store: what is not finite if one of its gradients is not.
    checks: Vec<Option<Tensor<1>>>,
    /// Why gradients are lost.
    failed: Option<BoxedError>,
}

/// What is done with sums at the end.
#[derive(Clone, Copy)]
pub(crate) struct Ending {
    /// What they are divided by, if that changes them.
    pub(crate) scale: Option<f64>,
    /// Whether those that are NaN or infinite are to be found.
    pub(crate) checks_finite: bool,
}

impl<L: Layer> GradientSums<L> {
    pub(crate) fn new(layers: usize, stored: Option<Stored<L>>, ending: Ending) -> Self {
        stored.iter().for_each(|stored| stored.store.clear());
        Self {
            here: (0..layers).map(|_| GradientsAccumulator::new()).collect(),
            stored,
            ending,
            checks: vec![None; layers],
            failed: None,
        }
    }

    pub(crate) fn add(&mut self, layer: usize, module: &L, gradients: GradientsParams) {
        let Some(store) = store_of(self.stored.as_ref(), layer) else {
            self.here[layer].accumulate(module, gradients);
            return;
        };
        // A layer without parameters, or a first half that leaves its gradients to the second.
        if gradients.is_empty() {
            return;
        }
        // Where they are scaled, the end takes them once more.
        let is_checked = self.ending.checks_finite && self.ending.scale.is_none();
        let check = &mut self.checks[layer];
        let added = store.take(module).and_then(|before| {
            let mut sum = GradientsAccumulator::new();
            sum.accumulate(module, before);
            sum.accumulate(module, gradients);
            let sum = sum.grads();
            if is_checked {
                *check = gradient_sum(module, &sum);
            }
            store.put(module, sum)
        });
        if let Err(error) = added {
            self.failed.get_or_insert(error);
        }
    }

    /// Whether all gradients were added.
    pub(crate) fn check(&mut self) -> Result<(), FailureCause> {
        self.failed
            .take()
            .map_or(Ok(()), |error| Err(FailureCause::GradientStore(error)))
    }

    /// The sum of a layer that has it here.
    pub(crate) fn take(&mut self, layer: usize) -> GradientsParams {
        self.here[layer].grads()
    }

    /// Ends the sums of all layers, of which `here` has those that were taken. Returns what is not finite, for each layer,
    /// if one of its gradients is not; nothing if nobody asks.
    pub(crate) fn end(
        &self,
        layers: &[&L],
        here: &mut [GradientsParams],
    ) -> Result<Vec<Option<Tensor<1>>>, FailureCause> {
        let Ending {
            scale,
            checks_finite,
        } = self.ending;
        let end = |module: &L, gradients| {
            let gradients = match scale {
                Some(scale) => copies::unscaled(module, gradients, scale),
                None => gradients,
            };
            let sum = checks_finite.then(|| gradient_sum(module, &gradients));
            (gradients, sum)
        };
        let mut sums = Vec::new();
        for (index, (module, here)) in layers.iter().zip(here).enumerate() {
            let sum = match store_of(self.stored.as_ref(), index) {
                None => {
                    let (gradients, sum) = end(module, std::mem::take(here));
                    *here = gradients;
                    sum
                }
                // Nothing changes them.
                Some(_) if scale.is_none() => checks_finite.then(|| self.checks[index].clone()),
                Some(store) => {
                    let ended = store.take(module).and_then(|gradients| {
                        let (gradients, sum) = end(module, gradients);
                        store.put(module, gradients).map(|()| sum)
                    });
                    ended.map_err(FailureCause::GradientStore)?
                }
            };
            sums.extend(sum);
        }
        Ok(sums)
    }
}

fn store_of<L>(stored: Option<&Stored<L>>, layer: usize) -> Option<&Arc<dyn GradientStore<L>>> {
    let stored = stored.filter(|stored| stored.layers[layer])?;
    Some(&stored.store)
}
