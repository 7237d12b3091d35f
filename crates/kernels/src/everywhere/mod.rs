//! What the CPU has kernels for, on every backend and in every precision: Burn's operations, with
//! gradients of weights that can wait, and scores that are never all in memory.

mod attention;
mod biased;
mod convolution;
mod linear;
mod linear_cross_entropy;
mod norm;
mod sums;

pub(crate) use attention::attention;
pub(crate) use convolution::convolve;
pub(crate) use linear::linear;
pub(crate) use linear_cross_entropy::{linear_cross_entropy, rows_at_once};
pub(crate) use norm::normalize;

/// Normally distributed values, those of the seed: Burn's generator is shared by all threads.
#[cfg(test)]
fn normal<const D: usize>(seed: u64, shape: [usize; D], mean: f64) -> burn::tensor::Tensor<D> {
    use burn::tensor::{Device, Distribution, Tensor, TensorData};
    use rand::SeedableRng;

    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let data = TensorData::random::<f32, _, _>(shape, Distribution::Normal(mean, 1.0), &mut rng);
    Tensor::from_data(data, &Device::flex())
}
