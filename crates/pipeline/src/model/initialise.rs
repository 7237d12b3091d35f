//! Initialises lazy parameters, with the same values for any cut and any devices.

use std::sync::{Mutex, PoisonError};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Bool, Device, Int, Tensor},
};

use crate::model::{
    layer::Layer,
    ties::{Place, PlaceMapper, PlaceVisitor, map_places, visit_places},
};

/// Draws the lazy parameters of a layer on the CPU: with one seed, each backend would draw other numbers. The
/// generator is seeded for each layer, so the values do not depend on stages or earlier layers.
pub(crate) fn initialise<L: Layer>(layer: L, index: usize, seed: u64) -> L {
    let host = Device::flex();
    alone(|| {
        host.seed(layer_seed(seed, index));
        layer.map(&mut Draw(host))
    })
}

/// Draws the parameters on the device where the layer was built, as shared lazy parameters require.
pub(crate) fn initialise_in_place<L: Layer>(layer: &L, index: usize, seed: u64) {
    alone(|| {
        for device in layer.devices() {
            device.seed(layer_seed(seed, index));
        }
        layer.visit(&mut Touch);
    });
}

/// Draws a parameter that a layer of another process owns, before the layers of this one that share it. Its
/// value is not kept; but with it, they would draw other numbers.
pub(crate) fn initialise_place<L: Layer>(layers: &[L], place: Place) {
    struct Draw(Place);

    impl PlaceVisitor for Draw {
        fn visit<const D: usize>(&mut self, place: Place, param: &Param<Tensor<D>>) {
            if place == self.0 {
                let _ = param.val();
            }
        }
    }

    alone(|| visit_places(layers, [&place], &mut Draw(place)));
}

/// Makes parameters lazy again, so that this process does not hold what others draw.
pub(crate) fn release<L: Layer>(layers: Vec<L>, places: &[Place]) -> Vec<L> {
    struct Release<'a>(&'a [Place]);

    impl PlaceMapper for Release<'_> {
        fn map<const D: usize>(
            &mut self,
            place: Place,
            param: Param<Tensor<D>>,
        ) -> Param<Tensor<D>> {
            if !self.0.contains(&place) {
                return param;
            }
            let (shape, is_trained) = (param.lazy_shape(), param.is_require_grad());
            let zeros = {
                let shape = shape.clone();
                move |device: &Device, is_trained| {
                    Tensor::zeros(shape, device).set_require_grad(is_trained)
                }
            };
            Param::uninitialized(param.id, zeros, param.lazy_device(), is_trained, shape)
        }
    }

    map_places(layers, places, &mut Release(places))
}

/// Burn's CPU backend has one generator per process, so only one pipeline may draw at a time.
fn alone<R>(draw: impl FnOnce() -> R) -> R {
    static GENERATOR: Mutex<()> = Mutex::new(());
    let _alone = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    draw()
}

/// SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014) of the seed
/// and the layer: close seeds and layers give unrelated numbers.
fn layer_seed(seed: u64, layer: usize) -> u64 {
    let mut z = seed.wrapping_add((layer as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Moves lazy parameters to a device and draws them there.
struct Draw(Device);

impl Draw {
    fn drawn<P: Module>(&self, param: P, is_initialized: bool, value: impl FnOnce(&P)) -> P {
        if is_initialized {
            return param;
        }
        let param = param.fork(&self.0);
        value(&param);
        param
    }
}

impl ModuleMapper for Draw {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let is_initialized = param.is_initialized();
        self.drawn(param, is_initialized, |param| drop(param.val()))
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let is_initialized = param.is_initialized();
        self.drawn(param, is_initialized, |param| drop(param.val()))
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        let is_initialized = param.is_initialized();
        self.drawn(param, is_initialized, |param| drop(param.val()))
    }
}

/// Reads every value, which draws lazy ones.
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
