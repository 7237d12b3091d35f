//! Adds noise.

use burn::{
    module::{Flag, Module, Param},
    tensor::Tensor,
};

use super::like;
use crate::model::keyed_rng::KeyedRng;

/// Adds normal noise of mean zero. Replaces Burn's `GaussianNoise` in a pipeline.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_pipeline::{KeyedRng, nn::GaussianNoise};
///
/// let x = Tensor::<2>::zeros([100, 100], &Device::flex());
/// let noise = GaussianNoise::new(0.1).forward(x, &mut KeyedRng::new(0, 0, 0, 0..100));
/// let deviation = noise.powi_scalar(2).mean().sqrt().into_scalar::<f32>();
/// assert!((deviation - 0.1).abs() < 0.01);
/// ```
#[derive(Module, Debug)]
pub struct GaussianNoise {
    #[module(skip)]
    deviation: f64,
    active: Param<Flag>,
}

impl GaussianNoise {
    /// Adds noise with this standard deviation.
    ///
    /// # Panics
    ///
    /// If it is negative or not finite.
    #[must_use]
    pub fn new(deviation: f64) -> Self {
        assert!(
            deviation.is_finite() && deviation >= 0.0,
            "noise: the standard deviation must be finite and at least 0, not {deviation}"
        );
        let active = Param::from_bool(true);
        Self { deviation, active }
    }

    /// `[samples, …]` or `[samples · k, …]` to the same shape.
    #[must_use]
    pub fn forward<const D: usize>(&self, x: Tensor<D>, rng: &mut KeyedRng) -> Tensor<D> {
        if self.deviation == 0.0 || !self.active.is_enabled() || !rng.is_training() {
            return x;
        }
        let noise = rng.normal(x.dims(), &x.device().inner());
        let noise = noise.mul_scalar(self.deviation);
        let noise = like(noise, &x);
        x + noise
    }
}
