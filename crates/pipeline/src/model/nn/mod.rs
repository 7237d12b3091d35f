//! Layers with random numbers that a pipeline can draw again.
//!
//! Burn's own [`Dropout`](burn::nn::Dropout) and the like draw from one generator of the whole process. A
//! recomputed layer would drop other values than its forward pass. These layers draw from a
//! [`KeyedRng`](crate::KeyedRng), whose numbers depend on seed, step, layer and sample only. They do nothing
//! in evaluation, and after `freeze` or `valid`. The first dimension of their input is the batch.

mod channel_dropout;
mod drop_path;
mod dropout;
mod noise;

use burn::tensor::Tensor;

pub use channel_dropout::ChannelDropout;
pub use drop_path::DropPath;
pub use dropout::Dropout;
pub use noise::GaussianNoise;

fn check_probability(what: &str, probability: f64) {
    assert!(
        (0.0..1.0).contains(&probability),
        "{what}: the probability to drop must be at least 0 and less than 1, not {probability}"
    );
}

/// Multiplies by drawn numbers, which have no gradient, and by a scalar.
fn scale<const D: usize>(x: Tensor<D>, drawn: Tensor<D>, by: f64) -> Tensor<D> {
    times(x, drawn.mul_scalar(by))
}

/// Multiplies by factors that have no gradient.
fn times<const D: usize>(x: Tensor<D>, factors: Tensor<D>) -> Tensor<D> {
    let factors = like(factors, &x);
    x * factors
}

/// Gives drawn numbers the type of `x`, and makes them constants of its graph.
fn like<const D: usize>(drawn: Tensor<D>, x: &Tensor<D>) -> Tensor<D> {
    let drawn = drawn.cast(x.dtype());
    if x.is_autodiff() {
        drawn.autodiff()
    } else {
        drawn
    }
}
