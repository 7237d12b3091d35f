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
