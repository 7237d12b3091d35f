//! Sets whole channels to zero.

use burn::{
    module::{Flag, Module, Param},
    tensor::Tensor,
};

use super::{check_probability, scale};
use crate::model::keyed_rng::KeyedRng;

/// Sets whole channels of a sample to zero with a probability, and scales the others to keep the mean: the
/// pixels of a map are too similar for [`Dropout`](super::Dropout) (Tompson et al., "Efficient Object
/// Localization Using Convolutional Networks", 2015). PyTorch's `Dropout2d`.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_pipeline::{KeyedRng, nn::ChannelDropout};
///
/// let maps = Tensor::<4>::ones([4, 16, 1, 3], &Device::flex());
/// let kept = ChannelDropout::new(0.5).forward(maps, &mut KeyedRng::new(0, 0, 0, 0..4));
/// let kept: Vec<f32> = kept.to_data().try_to_vec()?;
/// assert!(kept.chunks(3).all(|map| map == [0.0; 3] || map == [2.0; 3]));
/// assert!(kept.contains(&0.0) && kept.contains(&2.0));
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
#[derive(Module, Debug)]
pub struct ChannelDropout {
    #[module(skip)]
    probability: f64,
    active: Param<Flag>,
}

impl ChannelDropout {
    /// Drops with this probability.
    ///
    /// # Panics
    ///
    /// If it is not at least 0 and less than 1.
    #[must_use]
    pub fn new(probability: f64) -> Self {
        check_probability("channel dropout", probability);
        let active = Param::from_bool(true);
        Self {
            probability,
            active,
        }
    }

    /// `[samples, channels, height, width]` to the same shape.
    #[must_use]
    pub fn forward(&self, x: Tensor<4>, rng: &mut KeyedRng) -> Tensor<4> {
        if self.probability == 0.0 || !self.active.is_enabled() || !rng.is_training() {
            return x;
        }
        let keep = 1.0 - self.probability;
        let [samples, channels, ..] = x.dims();
        let kept = rng.keep(keep, [samples, channels, 1, 1], &x.device().inner());
        scale(x, kept, 1.0 / keep)
    }
}
