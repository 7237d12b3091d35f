//! Lazy parameters.

use burn::{
    module::Param,
    nn::{Initializer, Linear},
    tensor::{Device, Tensor},
};

pub(crate) fn normal<const D: usize>(
    shape: [usize; D],
    deviation: f64,
    device: &Device,
) -> Param<Tensor<D>> {
    let (mean, std) = (0.0, deviation);
    Initializer::Normal { mean, std }.init(shape, device)
}

/// A linear layer with normal weights, and biases of 0.
pub(crate) fn linear([from, to]: [usize; 2], deviation: f64, device: &Device) -> Linear {
    Linear {
        weight: normal([from, to], deviation, device),
        bias: Some(Initializer::Zeros.init([to], device)),
    }
}
