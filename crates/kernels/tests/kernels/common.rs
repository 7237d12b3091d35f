//! Inputs of the tests.

use std::cell::RefCell;

use burn::tensor::{Device, Distribution, FloatDType, Int, Tensor, TensorData};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use stovepipe_kernels::random::{Draw, Mask};

thread_local! {
    /// Burn's generator is shared by all threads: its values would depend on the tests that run at the
    /// same time.
    static GENERATOR: RefCell<ChaCha8Rng> = RefCell::new(ChaCha8Rng::seed_from_u64(0));
}

/// Normally distributed values, the same in every run of a test.
pub fn normal<const D: usize>(shape: [usize; D], mean: f64, deviation: f64) -> Tensor<D> {
    let distribution = Distribution::Normal(mean, deviation);
    let data = GENERATOR.with_borrow_mut(|generator| {
        TensorData::random::<f32, _, _>(shape, distribution, generator)
    });
    Tensor::from_data(data, &Device::flex())
}

/// Of so many samples with so many numbers each.
pub fn mask([samples, each]: [usize; 2]) -> Mask {
    let (key, first) = ([5, samples as u32], 3);
    let draw = Draw {
        key,
        first,
        samples,
        each,
    };
    Mask::new(draw, 0.625, 1.6)
}

pub fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
    let floats = tensor.into_data().try_to_vec::<f32>().unwrap();
    floats.into_iter().map(f32::to_bits).collect()
}

/// A loss that weighs every value of `y` differently.
pub fn loss<const D: usize>(y: Tensor<D>) -> Tensor<1> {
    let count = y.shape().num_elements() as i64;
    let slopes = Tensor::<1, Int>::arange(1..count + 1, &y.device());
    let slopes = slopes.float().sin().cast(FloatDType::from(y.dtype()));
    (y.clone() * slopes.reshape(y.dims())).sum()
}

pub fn pool(threads: usize) -> rayon::ThreadPool {
    let builder = rayon::ThreadPoolBuilder::new();
    builder.num_threads(threads).build().unwrap()
}
