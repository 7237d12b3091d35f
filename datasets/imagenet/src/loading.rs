use std::{num::NonZero, thread};

use crate::{Augmentation, Decoding, ImagenetError, Interpolation, error::check};

/// How images are loaded, with defaults for ImageNet.
#[derive(Clone, Debug, PartialEq)]
pub struct Loading {
    /// Height and width of the images for the model.
    pub size: u32,
    /// Random changes to training images.
    pub augmentation: Augmentation,
    /// The transform of images for evaluation.
    pub evaluation: EvalTransform,
    /// How pixels are normalised.
    pub normalisation: Normalisation,
    /// How files are decoded.
    pub decoding: Decoding,
    /// The number of loading threads; 0 for as many as the processor runs.
    pub workers: usize,
    /// The number of batches to load ahead, besides one for each worker. A batch takes 12 · size² bytes per image.
    pub ahead: usize,
    /// How many files may be damaged or unreadable. They are skipped and reported
    /// ([`Images::skipped`](crate::Images::skipped)); one more is an error. A file counts once.
    pub skip: usize,
}

impl Default for Loading {
    fn default() -> Self {
        Self {
            size: 224,
            augmentation: Augmentation::default(),
            evaluation: EvalTransform::default(),
            normalisation: Normalisation::default(),
            decoding: Decoding::default(),
            workers: 0,
            ahead: 2,
            skip: 10,
        }
    }
}

/// The transform of images for evaluation: torchvision's `Resize` and `CenterCrop`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EvalTransform {
    /// The length of the shorter side after resizing; at least the [`size`](Loading::size) of the crop.
    pub resize: u32,
    /// How it is resized.
    pub interpolation: Interpolation,
}

impl Default for EvalTransform {
    fn default() -> Self {
        Self {
            resize: 256,
            interpolation: Interpolation::default(),
        }
    }
}

/// The mean and the standard deviation of each channel, with pixels from 0 to 1. The default is that of ImageNet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalisation {
    /// The mean of red, green and blue.
    pub mean: [f32; 3],
    /// Their standard deviations.
    pub std: [f32; 3],
}

impl Default for Normalisation {
    fn default() -> Self {
        Self {
            mean: [0.485, 0.456, 0.406],
            std: [0.229, 0.224, 0.225],
        }
    }
}

impl Loading {
    /// The largest [`size`](Self::size), and the largest size that images are resized to.
    pub const LARGEST: u32 = 1 << 14;

    /// Checks that all settings are in their ranges.
    ///
    /// # Errors
    ///
    /// The first setting that is not.
    ///
    /// ```
    /// use stovepipe_imagenet::Loading;
    ///
    /// let mut loading = Loading { size: 128, ..Loading::default() };
    /// assert!(loading.check().is_ok());
    /// loading.size = 0;
    /// let error = loading.check().unwrap_err();
    /// assert_eq!(error.to_string(), "the size of images cannot be 0: it must be from 1 to 16384");
    /// ```
    pub fn check(&self) -> Result<(), ImagenetError> {
        let is_valid = (1..=Self::LARGEST).contains(&self.size);
        let range = "it must be from 1 to 16384";
        check("the size of images", self.size, is_valid, range)?;
        let resize = self.evaluation.resize;
        let is_valid = (self.size..=Self::LARGEST).contains(&resize);
        let setting = "the size that images are resized to";
        let range = "it must be from the size of the crop to 16384";
        check(setting, resize, is_valid, range)?;
        let Normalisation { mean, std } = self.normalisation;
        let is_valid = mean.into_iter().chain(std).all(f32::is_finite) && !std.contains(&0.0);
        let value = format!("{mean:?} and {std:?}");
        let range = "they must be finite, and the deviation not 0";
        check("the mean and standard deviation", value, is_valid, range)?;
        self.augmentation.check()
    }

    /// The number of threads that load images.
    #[must_use]
    pub fn threads(&self) -> usize {
        match self.workers {
            0 => thread::available_parallelism().map_or(1, NonZero::get),
            workers => workers,
        }
    }
}
