//! Random changes to training images.

mod color;
mod crop;
mod geometry;
mod jitter;
mod mixup;
mod rand_augment;
mod tone;

pub use crop::RandomResizedCrop;
pub use jitter::ColorJitter;
pub use rand_augment::RandAugment;

pub(crate) use mixup::{Mix, mix};

use std::ops::Range;

use rand::{Rng, RngExt};

use crate::{
    decode::Decoded,
    error::{ImageError, ImagenetError, check},
    raster::Raster,
    resize::Resizing,
};

/// Random changes to training images, in the order of the fields.
///
/// The default is that of most recipes for ImageNet: a random resized crop and a flip. The changes to an image depend only
/// on seed, epoch and the image's index in its folder.
///
/// ```
/// use stovepipe_imagenet::{Augmentation, ColorJitter, RandAugment};
///
/// let strong = Augmentation {
///     rand_augment: Some(RandAugment { magnitude: 5, ..RandAugment::default() }),
///     jitter: Some(ColorJitter { hue: 0.0, ..ColorJitter::default() }),
///     mixup: 0.2,
///     ..Augmentation::default()
/// };
/// # let _ = strong;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Augmentation {
    /// The crop.
    pub crop: RandomResizedCrop,
    /// Whether half of the images are flipped horizontally.
    pub flip: bool,
    /// Changes of colours.
    pub jitter: Option<ColorJitter>,
    /// Random operations.
    pub rand_augment: Option<RandAugment>,
    /// Side of the square that is set to the mean colour, in pixels after resizing; 0 for none. Its centre is a random
    /// pixel, and it is clipped at the image's edges (DeVries & Taylor, *Improved Regularization of Convolutional Neural
    /// Networks with Cutout*, 2017).
    pub cutout: u32,
    /// α of mixup; 0 for none. Each image and its label are mixed with those of the image before it in the batch, with
    /// shares λ and 1 − λ. λ is drawn from Beta(α, α) for each batch (Zhang et al., *mixup: Beyond Empirical Risk
    /// Minimization*, 2018, which uses 0.2 for ImageNet).
    pub mixup: f64,
}

impl Default for Augmentation {
    fn default() -> Self {
        Self {
            crop: RandomResizedCrop::default(),
            flip: true,
            jitter: None,
            rand_augment: None,
            cutout: 0,
            mixup: 0.0,
        }
    }
}

impl Augmentation {
    pub(crate) fn check(&self) -> Result<(), ImagenetError> {
        self.crop.check()?;
        self.jitter.map_or(Ok(()), |jitter| jitter.check())?;
        self.rand_augment
            .map_or(Ok(()), |augment| augment.check())?;
        let is_valid = self.mixup >= 0.0 && self.mixup.is_finite();
        check("mixup", self.mixup, is_valid, "it must be 0 or above")
    }

    /// Writes the augmented image to `shown`. The random numbers depend on the image's size, but not on the image before.
    pub(crate) fn apply(
        &self,
        image: &Decoded,
        resizing: &mut Resizing,
        rng: &mut impl Rng,
        shown: &mut Raster,
    ) -> Result<FinalSteps, ImageError> {
        let part = self.crop.part(image.width, image.height, rng);
        resizing.cut(image, part, self.crop.interpolation, shown)?;
        let flipped = rng.random_bool(0.5) && self.flip;
        if let Some(jitter) = &self.jitter {
            jitter.apply(shown, rng);
        }
        if let Some(augment) = &self.rand_augment {
            augment.apply(shown, rng);
        }
        let mut hole = |end| self.hole(rng.random_range(0..end), end);
        let hole = (hole(shown.height), hole(shown.width));
        Ok(FinalSteps { flipped, hole })
    }

    /// The rows or columns of the cutout around `centre`.
    fn hole(&self, centre: usize, end: usize) -> Range<usize> {
        let side = self.cutout as usize;
        centre.saturating_sub(side / 2)..(centre + side.div_ceil(2)).min(end)
    }
}

/// Steps left for normalisation. Flipping last is equivalent to flipping first, since all other steps are symmetric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FinalSteps {
    pub flipped: bool,
    /// Rows and columns of the cutout.
    pub hole: (Range<usize>, Range<usize>),
}
