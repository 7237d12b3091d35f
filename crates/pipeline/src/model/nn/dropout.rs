//! Sets single numbers to zero.

use burn::{
    module::{Flag, Module, Param},
    tensor::{Device, Tensor},
};

use super::{check_probability, times};
use crate::model::keyed_rng::KeyedRng;

/// Sets numbers to zero with a probability, and scales the others to keep the mean (Srivastava et al.,
/// "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", 2014). Replaces Burn's `Dropout` in
/// a pipeline.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_pipeline::{KeyedRng, nn::Dropout};
///
/// let dropout = Dropout::new(0.5);
/// let x = Tensor::<2>::ones([2, 100], &Device::flex());
/// let forward = dropout.forward(x.clone(), &mut KeyedRng::new(0, 1, 2, 0..2));
/// let again = dropout.forward(x.clone(), &mut KeyedRng::new(0, 1, 2, 0..2));
/// assert_eq!(forward.to_data(), again.to_data()); // zeros and twos
/// assert_ne!(forward.to_data(), x.to_data());
/// let evaluated = dropout.forward(x.clone(), &mut KeyedRng::none());
/// assert_eq!(evaluated.to_data(), x.to_data());
/// ```
#[derive(Module, Debug)]
pub struct Dropout {
    #[module(skip)]
    probability: f64,
    active: Param<Flag>,
}

impl Dropout {
    /// Drops with this probability.
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
    pub fn forward<const D: usize>(&self, x: Tensor<D>, rng: &mut KeyedRng) -> Tensor<D> {
        match self.factors(x.dims(), rng, &x.device()) {
            Some(factors) => times(x, factors),
            None => x,
        }
    }

    /// The factors of [`forward`](Self::forward) for this shape: 0, or 1 / (1 − p), without a gradient; `None`
    /// if nothing is dropped. For layers that multiply by them in another way.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use stovepipe_pipeline::{KeyedRng, nn::Dropout};
    ///
    /// let (dropout, device) = (Dropout::new(0.5), Device::flex());
    /// let rng = || KeyedRng::new(0, 1, 2, 0..2);
    /// let factors = dropout.factors::<2>([2, 100], &mut rng(), &device).unwrap();
    /// let ones = dropout.forward(Tensor::<2>::ones([2, 100], &device), &mut rng());
    /// assert_eq!(factors.to_data(), ones.to_data());
    /// assert!(dropout.factors([2, 100], &mut KeyedRng::none(), &device).is_none());
    /// ```
    #[must_use]
    pub fn factors<const D: usize>(
        &self,
        shape: [usize; D],
        rng: &mut KeyedRng,
        device: &Device,
    ) -> Option<Tensor<D>> {
        if self.probability == 0.0 || !self.active.is_enabled() || !rng.is_training() {
            return None;
        }
        let keep = 1.0 - self.probability;
        let kept = rng.keep(keep, shape, &device.clone().inner());
        Some(kept.mul_scalar(1.0 / keep))
    }
}
