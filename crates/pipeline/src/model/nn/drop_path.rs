//! Sets whole branches to zero.

use burn::{
    module::{Flag, Module, Param},
    tensor::Tensor,
};

use super::{check_probability, scale};
use crate::model::keyed_rng::KeyedRng;

/// Sets all of a sample to zero with a probability, and scales the other samples to keep the mean: for a
/// branch that is added to another one (Huang et al., "Deep Networks with Stochastic Depth", 2016; Larsson
/// et al., "FractalNet", 2017).
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_pipeline::{KeyedRng, nn::DropPath};
///
/// let branch = Tensor::<2>::ones([64, 3], &Device::flex());
/// let kept = DropPath::new(0.5).forward(branch, &mut KeyedRng::new(0, 0, 0, 0..64));
/// let kept: Vec<f32> = kept.to_data().try_to_vec()?;
/// assert!(kept.chunks(3).all(|sample| sample == [0.0; 3] || sample == [2.0; 3]));
/// assert!(kept.contains(&0.0) && kept.contains(&2.0));
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
#[derive(Module, Debug)]
pub struct DropPath {
    #[module(skip)]
    probability: f64,
    #[module(skip)]
    growing: bool,
    active: Param<Flag>,
}

impl DropPath {
    /// Drops with this probability.
    ///
    /// # Panics
    ///
    /// If it is not at least 0 and less than 1.
    #[must_use]
    pub fn new(probability: f64) -> Self {
        check_probability("drop-path", probability);
        let active = Param::from_bool(true);
        Self {
            probability,
            growing: false,
            active,
        }
    }

    /// Lets the probability grow linearly from zero over the [training](crate::Pipeline::set_progress), as in
    /// Zoph et al., "Learning Transferable Architectures for Scalable Image Recognition", 2018.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use stovepipe_pipeline::{KeyedRng, nn::DropPath};
    ///
    /// let branch = Tensor::<2>::ones([1000, 1], &Device::flex());
    /// let drop_path = DropPath::new(0.8).growing();
    /// let dropped = |progress| {
    ///     let mut rng = KeyedRng::new(0, 0, 0, 0..1000).at_progress(progress);
    ///     let kept = drop_path.forward(branch.clone(), &mut rng);
    ///     kept.equal_elem(0.0).int().sum().into_scalar::<i64>()
    /// };
    /// assert_eq!(dropped(0.0), 0);
    /// assert!((350..450).contains(&dropped(0.5)));
    /// assert!((750..850).contains(&dropped(1.0)));
    /// ```
    #[must_use]
    pub fn growing(self) -> Self {
        Self {
            growing: true,
            ..self
        }
    }

    /// `[samples, …]` to the same shape.
    #[must_use]
    pub fn forward<const D: usize>(&self, x: Tensor<D>, rng: &mut KeyedRng) -> Tensor<D> {
        let probability = if self.growing {
            self.probability * rng.progress()
        } else {
            self.probability
        };
        if probability == 0.0 || !self.active.is_enabled() || !rng.is_training() {
            return x;
        }
        let keep = 1.0 - probability;
        let mut shape = [1; D];
        shape[0] = x.dims()[0];
        let kept = rng.keep(keep, shape, &x.device().inner());
        scale(x, kept, 1.0 / keep)
    }
}
