//! What is done to images so that a model does not see the same ones again and again.

mod color;
mod crop;
mod geometry;
mod jitter;
mod mixup;
mod rand_augment;
mod tone;

#[cfg(test)]
mod golden;

pub use crop::RandomResizedCrop;
pub use jitter::ColorJitter;
pub use rand_augment::RandAugment;

pub(crate) use mixup::{Mix, mix};

use std::ops::Range;

use rand::{Rng, RngExt};

use crate::{ImagenetError, decode::Decoded, raster::Raster, resize::Resizing};

/// What is done to training images at random.
///
/// The default is what most recipes for ImageNet do: a crop of any size and place, resized, and a flip. Steps follow each
/// other as the fields do here. What is drawn for an image is fixed by seed, epoch and the image's place in its folder.
///
/// # Example
///
/// ```
/// use stovepipe_imagenet::{Augmentation, ColorJitter, RandAugment};
///
/// let strong = Augmentation {
///     rand_augment: Some(RandAugment::default()),
///     mixup: 0.2,
///     ..Augmentation::default()
/// };
/// // For transfer to a small data set.
/// let transfer = Augmentation { jitter: Some(ColorJitter::default()), cutout: 56, ..Augmentation::default() };
/// # let _ = (strong, transfer);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Augmentation {
    /// The part of the image that is shown.
    pub crop: RandomResizedCrop,
    /// Whether half of the images are mirrored, left to right.
    pub flip: bool,
    /// Changes of colours.
    pub jitter: Option<ColorJitter>,
    /// Operations out of a list.
    pub rand_augment: Option<RandAugment>,
    /// Side of the square that is cut out, in pixels of what is shown; 0 for none. Its centre is any pixel with the same
    /// probability, what of it lies outside is lost, and the mean colour takes its place (DeVries & Taylor, *Improved
    /// Regularization of Convolutional Neural Networks with Cutout*, 2017).
    pub cutout: u32,
    /// α of mixup; 0 for none. Each image is λ of itself and 1 − λ of the one before it in its batch, in the pixels and in
    /// the share of its class; λ is drawn from Beta(α, α), once a batch (Zhang et al., *mixup: Beyond Empirical Risk
    /// Minimization*, 2018, which has 0.2 for ImageNet).
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
        check(
            "mixup",
            self.mixup,
            self.mixup >= 0.0 && self.mixup.is_finite(),
            "it must be 0 or above",
        )
    }

    /// Shows an image as the generator draws. What it draws depends on the image's size, and not on how it is shown before.
    pub(crate) fn show(
        &self,
        image: &Decoded,
        resizing: &mut Resizing,
        draws: &mut impl Rng,
        shown: &mut Raster,
    ) -> Result<Finish, String> {
        let part = self.crop.part(image.width, image.height, draws);
        resizing.cut(image, part, self.crop.interpolation, shown)?;
        let flipped = draws.random_bool(0.5) && self.flip;
        if let Some(jitter) = &self.jitter {
            jitter.apply(shown, draws);
        }
        if let Some(augment) = &self.rand_augment {
            augment.apply(shown, draws);
        }
        let (y, x) = (
            draws.random_range(0..shown.height),
            draws.random_range(0..shown.width),
        );
        let hole = (self.hole(y, shown.height), self.hole(x, shown.width));
        Ok(Finish { flipped, hole })
    }

    /// The rows or columns that are cut out around `centre`.
    fn hole(&self, centre: usize, end: usize) -> Range<usize> {
        let side = self.cutout as usize;
        centre.saturating_sub(side / 2)..(centre + side.div_ceil(2)).min(end)
    }
}

/// What is left to do where pixels become numbers. To mirror last is as good as to mirror first: whatever else is done is done
/// as often the other way round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Finish {
    pub flipped: bool,
    /// Rows and columns that are cut out.
    pub hole: (Range<usize>, Range<usize>),
}

/// An error unless a setting is right.
pub(crate) fn check(
    setting: &'static str,
    value: impl ToString,
    right: bool,
    reason: &'static str,
) -> Result<(), ImagenetError> {
    match right {
        true => Ok(()),
        false => Err(ImagenetError::Setting {
            setting,
            value: value.to_string(),
            reason,
        }),
    }
}
