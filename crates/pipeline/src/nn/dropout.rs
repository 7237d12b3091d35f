//! Drops single numbers.

use burn::{
    module::{Flag, Module, Param},
    tensor::Tensor,
};

use super::{check_probability, scale};
use crate::draws::Draws;

/// Sets numbers to zero with a probability, and scales the others so that the mean stays (Srivastava et
/// al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", 2014): in place of Burn's
/// `Dropout` in a pipelined model.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_pipeline::{Draws, nn::Dropout};
///
/// let dropout = Dropout::new(0.5);
/// let x = Tensor::<2>::ones([2, 100], &Device::flex());
/// let forward = dropout.forward(x.clone(), &mut Draws::new(0, 1, 2, 0..2));
/// let again = dropout.forward(x.clone(), &mut Draws::new(0, 1, 2, 0..2));
/// assert_eq!(forward.to_data(), again.to_data()); // zeros and twos
/// assert_ne!(forward.to_data(), x.to_data());
/// let evaluated = dropout.forward(x.clone(), &mut Draws::none());
/// assert_eq!(evaluated.to_data(), x.to_data());
/// ```
#[derive(Module, Debug)]
pub struct Dropout {
    #[module(skip)]
    probability: f64,
    active: Param<Flag>,
}

impl Dropout {
    /// Drops with a probability.
    ///
    /// # Panics
    ///
    /// If it is not at least 0 and less than 1.
    #[must_use]
    pub fn new(probability: f64) -> Self {
        check_probability("dropout", probability);
        let active = Param::from_bool(true);
        Self {
            probability,
            active,
        }
    }

    /// `[samples, …]` or `[samples · k, …]` to the same shape.
    #[must_use]
    pub fn forward<const D: usize>(&self, x: Tensor<D>, draws: &mut Draws) -> Tensor<D> {
        if self.probability == 0.0 || !self.active.is_enabled() || !draws.is_training() {
            return x;
        }
        let keep = 1.0 - self.probability;
        let kept = draws.keep(keep, x.dims(), &x.device().inner());
        scale(x, kept, 1.0 / keep)
    }
}
