//! Layers with randomness that a pipeline can replay.
//!
//! Burn's own [`Dropout`](burn::nn::Dropout) and its kin draw from one generator of the whole process: what they draw
//! depends on who drew before, so that a recomputed stage would drop other values than its forward pass
//! did. These draw from the [`Context`](crate::Context) instead, whose numbers depend on nothing but
//! seed, step, layer and sample. In evaluation, and where `freeze` or `valid` was called, they do nothing.
//! The first dimension of what they are given is the batch, as [`KeyedRng`](crate::KeyedRng) has it.

mod channel_dropout;
mod drop_path;
mod dropout;
mod noise;

use burn::tensor::Tensor;

pub use channel_dropout::ChannelDropout;
pub use drop_path::DropPath;
pub use dropout::Dropout;
pub use noise::GaussianNoise;

/// A probability that may be one of dropping. Those of the layers here are checked when they are made.
fn check_probability(what: &str, probability: f64) {
    assert!(
        (0.0..1.0).contains(&probability),
        "{what}: the probability to drop must be at least 0 and less than 1, not {probability}"
    );
}

/// Multiplies by what was drawn and by a number.
fn scale<const D: usize>(x: Tensor<D>, drawn: Tensor<D>, by: f64) -> Tensor<D> {
    times(x, drawn.mul_scalar(by))
}

/// Multiplies by what has no gradient.
fn times<const D: usize>(x: Tensor<D>, factors: Tensor<D>) -> Tensor<D> {
    let factors = like(factors, &x);
    x * factors
}

/// Gives what was drawn a place beside `x` in a graph, and its type.
fn like<const D: usize>(drawn: Tensor<D>, x: &Tensor<D>) -> Tensor<D> {
    let drawn = drawn.cast(x.dtype());
    match x.is_autodiff() {
        true => drawn.autodiff(),
        false => drawn,
    }
}
