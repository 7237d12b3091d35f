//! Sums of what updates read and write, by which runs are compared.

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
    pub(super) gradients: Checksum,
    pub(super) parameters: Checksum,
}

impl Summing {
    pub(super) fn of_layer(&self, layer: usize) -> LayerSums {
        LayerSums {
            layer,
            gradients: self.gradients.finish(),
            parameters: self.parameters.finish(),
        }
    }
}
