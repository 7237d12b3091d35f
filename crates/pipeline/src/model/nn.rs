//! Layers with random numbers that a pipeline can draw again.
//!
//! Burn's own [`Dropout`](burn::nn::Dropout) and the like draw from one generator of the whole process. A
//! recomputed layer would drop other values than its forward pass. These layers draw from a [`KeyedRng`],
//! whose numbers depend on seed, step, layer and sample only. They do nothing in evaluation, and after
//! `freeze` or `valid`. The first dimension of their input is the batch.

use burn::{
    module::{Flag, Module, Param},
    tensor::Tensor,
};
use stovepipe_kernels::dropout;
pub use stovepipe_kernels::random::Mask;

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
/// let forward = || dropout.forward(x.clone(), &mut KeyedRng::new(0, 1, 2, 0..2));
/// assert_eq!(forward().to_data(), forward().to_data()); // zeros and twos
/// assert_ne!(forward().to_data(), x.to_data());
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
        Self {
            probability: checked("dropout", probability),
            active: Param::from_bool(true),
        }
    }

    /// `[samples, …]` or `[samples · k, …]` to the same shape. For what is kept for a backward pass, see [`Mask`].
    #[must_use]
    pub fn forward<const D: usize>(&self, x: Tensor<D>, rng: &mut KeyedRng) -> Tensor<D> {
        match self.mask(&x.dims(), rng) {
            Some(mask) => dropout(x, mask),
            None => x,
        }
    }

    /// The factors of [`forward`](Self::forward) for this shape: 0, or 1 / (1 − p), without a gradient; `None`
    /// if nothing is dropped. For layers that multiply by them in another way, as
    /// [`attention`](stovepipe_kernels::attention()) does.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use stovepipe_pipeline::{KeyedRng, nn::Dropout};
    ///
    /// let (dropout, device) = (Dropout::new(0.5), Device::flex());
    /// let rng = || KeyedRng::new(0, 1, 2, 0..2);
    /// let factors = dropout.mask(&[2, 100], &mut rng()).unwrap().factors(&device);
    /// let ones = dropout.forward(Tensor::<2>::ones([2, 100], &device), &mut rng());
    /// assert_eq!(factors.to_data(), ones.to_data());
    /// assert!(dropout.mask(&[2, 100], &mut KeyedRng::none()).is_none());
    /// ```
    #[must_use]
    pub fn mask(&self, shape: &[usize], rng: &mut KeyedRng) -> Option<Mask> {
        mask((self.probability, &self.active), shape, rng)
    }
}

/// Sets whole channels of a sample to zero with a probability, and scales the others to keep the mean: the
/// pixels of a map are too similar for [`Dropout`] (Tompson et al., "Efficient Object Localization Using
/// Convolutional Networks", 2015). PyTorch's `Dropout2d`.
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
        Self {
            probability: checked("channel dropout", probability),
            active: Param::from_bool(true),
        }
    }

    /// `[samples, channels, height, width]` to the same shape.
    #[must_use]
    pub fn forward(&self, x: Tensor<4>, rng: &mut KeyedRng) -> Tensor<4> {
        let [samples, channels, ..] = x.dims();
        let shape = [samples, channels, 1, 1];
        let mask = mask((self.probability, &self.active), &shape, rng);
        times(x, mask, shape)
    }
}

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
        Self {
            probability: checked("drop-path", probability),
            growing: false,
            active: Param::from_bool(true),
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
    pub fn growing(mut self) -> Self {
        self.growing = true;
        self
    }

    /// `[samples, …]` to the same shape.
    #[must_use]
    pub fn forward<const D: usize>(&self, x: Tensor<D>, rng: &mut KeyedRng) -> Tensor<D> {
        let grown = if self.growing { rng.progress() } else { 1.0 };
        let mut shape = [1; D];
        shape[0] = x.dims()[0];
        let drop = (self.probability * grown, &self.active);
        let mask = mask(drop, &shape, rng);
        times(x, mask, shape)
    }
}

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
        let noise = noise.mul_scalar(self.deviation).cast(x.dtype());
        x + noise
    }
}

/// A probability to drop.
fn checked(what: &str, probability: f64) -> f64 {
    assert!(
        (0.0..1.0).contains(&probability),
        "{what}: the probability to drop must be at least 0 and less than 1, not {probability}"
    );
    probability
}

/// 0 with this probability, otherwise what keeps the mean; `None` if nothing is dropped.
fn mask(
    (probability, active): (f64, &Param<Flag>),
    shape: &[usize],
    rng: &mut KeyedRng,
) -> Option<Mask> {
    if probability == 0.0 || !active.is_enabled() || !rng.is_training() {
        return None;
    }
    let keep = 1.0 - probability;
    rng.mask((keep, 1.0 / keep), shape)
}

/// Multiplies by a mask of this shape, which has few numbers.
fn times<const D: usize>(x: Tensor<D>, mask: Option<Mask>, shape: [usize; D]) -> Tensor<D> {
    match mask {
        Some(mask) => {
            let factors = mask.factors(&x.device().inner()).cast(x.dtype());
            x * factors.reshape(shape)
        }
        None => x,
    }
}
