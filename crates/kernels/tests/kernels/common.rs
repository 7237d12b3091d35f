//! Inputs of the tests.

use std::cell::RefCell;

use burn::tensor::{Device, Distribution, Tensor, TensorData};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

thread_local! {
    /// Burn's own generator is one for all threads, so that what a test drew would depend on which
    /// others run beside it.
    static GENERATOR: RefCell<ChaCha8Rng> = RefCell::new(ChaCha8Rng::seed_from_u64(0));
}

/// Normally distributed numbers, the same in every run of a test.
pub fn normal<const D: usize>(shape: [usize; D], mean: f64, deviation: f64) -> Tensor<D> {
    let distribution = Distribution::Normal(mean, deviation);
    let data = GENERATOR.with_borrow_mut(|generator| {
        TensorData::random::<f32, _, _>(shape, distribution, generator)
    });
    Tensor::from_data(data, &Device::flex())
}
