//! Parameters that are made when they are first used.

use burn::{
    module::Param,
    nn::{Initializer, Linear},
    tensor::{Device, Tensor},
};

/// Normal numbers of mean 0.
pub(crate) fn normal<const D: usize>(
    shape: [usize; D],
    deviation: f64,
    device: &Device,
) -> Param<Tensor<D>> {
    let initializer = Initializer::Normal {
        mean: 0.0,
        std: deviation,
    };
    initializer.init(shape, device)
}

/// A linear layer with normal weights, and biases of 0.
pub(crate) fn linear([from, to]: [usize; 2], deviation: f64, device: &Device) -> Linear {
    Linear {
        weight: normal([from, to], deviation, device),
        bias: Some(Initializer::Zeros.init([to], device)),
    }
}
