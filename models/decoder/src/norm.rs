//! Norms.

use burn::{
    module::{Module, Param},
    tensor::{Device, Tensor},
};
use stovepipe_kernels::rms_norm;

use crate::linear::{Values, frozen, like};

/// A norm by the root of the mean square.
#[derive(Module, Debug)]
pub struct DecoderNorm {
    weight: Param<Tensor<1>>,
    #[module(skip)]
    epsilon: f64,
}

impl DecoderNorm {
    pub(crate) fn new(width: usize, epsilon: f64, values: Values, device: &Device) -> Self {
        Self {
            weight: values.gamma(width, device),
            epsilon,
        }
    }

    /// Of each row of `[…, width]`, in the type of the norm's weight.
    pub(crate) fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let gamma = self.weight.val();
        let x = like(x, &gamma);
        rms_norm(x, gamma, self.epsilon)
    }

    /// In the type of its weight, in which the layers after it compute.
    pub(crate) fn cast<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        like(x, &self.weight.val())
    }

    pub(crate) fn frozen(self) -> Self {
        Self {
            weight: frozen(self.weight),
            ..self
        }
    }
}
