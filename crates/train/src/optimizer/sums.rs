//! Sums of what updates read and write, by which runs are compared.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};
use stovepipe_pipeline::measure::Checksum;

/// The sums of a layer's gradients, before they are clipped, and of its parameters after the update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerSums {
    pub(crate) layer: usize,
    pub(crate) gradients: u64,
    pub(crate) parameters: u64,
}

/// Those of the layer that is updated.
#[derive(Default)]
pub(super) struct Summing {
    gradients: Checksum,
    parameters: Checksum,
    has_some: bool,
}

impl Summing {
    pub(super) fn gradient<const D: usize>(&mut self, gradient: &Tensor<D>) {
        self.gradients.add(gradient);
        self.has_some = true;
    }

    pub(super) fn parameter<const D: usize>(&mut self, parameter: &Tensor<D>) {
        self.parameters.add(parameter);
    }

    /// `None` if nothing of the layer was updated here.
    pub(super) fn of_layer(&self, layer: usize) -> Option<LayerSums> {
        self.has_some.then(|| LayerSums {
            layer,
            gradients: self.gradients.finish(),
            parameters: self.parameters.finish(),
        })
    }
}
