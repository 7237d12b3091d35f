//! Gives lazy parameters their values, the same ones wherever the model is cut.

use std::sync::{Mutex, PoisonError};

use burn::{
    module::{ModuleVisitor, Param},
    tensor::{Bool, Int, Tensor},
};

use crate::layer::Layer;

/// Initialises the parameters of each layer that have no value yet, on the layer's device.
///
/// Layers are taken in order and each draws from a generator seeded for it alone, so that neither
/// the stages nor the layers before it make a difference.
pub(crate) fn initialise<L: Layer>(layers: &[L], seed: u64) {
    initialise_some(layers, seed, |_| true);
}

/// The same for those layers alone that `which` picks.
pub(crate) fn initialise_some<L: Layer>(layers: &[L], seed: u64, which: impl Fn(&L) -> bool) {
    // Burn's CPU backend has one generator for the whole process: two pipelines that are built at
    // once would draw from each other's.
    static GENERATOR: Mutex<()> = Mutex::new(());
    let _alone = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    let picked = (layers.iter().enumerate()).filter(|(_, layer)| which(layer));
    for (index, layer) in picked {
        for device in layer.devices() {
            device.seed(layer_seed(seed, index));
        }
        layer.visit(&mut Touch);
    }
}

/// SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014) of
/// the seed and the layer: neighbouring seeds and layers give unrelated numbers.
fn layer_seed(seed: u64, layer: usize) -> u64 {
    let mut z = seed.wrapping_add((layer as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Reads every value, which makes it if it was not there.
struct Touch;

impl ModuleVisitor for Touch {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let _ = param.val();
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let _ = param.val();
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let _ = param.val();
    }
}
