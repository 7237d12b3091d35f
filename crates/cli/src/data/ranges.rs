//! What settings of images may be. Errors call them as flags and configurations do.

use stovepipe::train::TrainError;
use stovepipe_imagenet::Loading;

use super::DataSettings;
use crate::error::CliError;

/// The side of CIFAR's images: more would only be a mistake.
const MOST_PIXELS: u16 = 32;

/// Threads that load: more would be a mistake, too.
const MOST_LOADERS: usize = 1024;

/// Operations of RandAugment: each is a pass over the image.
const MOST_OPERATIONS: usize = 100;

impl DataSettings {
    /// Whether settings of CIFAR are in their ranges.
    pub(super) fn check_cifar(&self) -> Result<(), TrainError> {
        let pixels = |side: u16| side <= MOST_PIXELS;
        let range = "from 0 to 32";
        let padding = self.crop_padding.map(u16::from);
        check("crop-padding", padding, pixels, range)?;
        check("cutout", self.cutout, pixels, range)
    }

    /// Whether settings of folders of images are in their ranges, wherever the images are.
    pub(super) fn check_folders(&self) -> Result<(), CliError> {
        let (size, largest) = (self.image_size.unwrap_or(1), Loading::LARGEST);
        let sides = |side: u32| (1..=largest).contains(&side);
        check("image-size", self.image_size, sides, "from 1 to 16384")?;
        let sides = |side: u32| (size..=largest).contains(&side);
        check("resize", self.resize, sides, "from image-size to 16384")?;
        self.check_augmentation()?;
        let share = |share: f64| share > 0.0 && share < 1.0;
        check("val-share", self.val_share, share, "above 0 and below 1")?;
        let threads = |threads: usize| threads <= MOST_LOADERS;
        check("loaders", self.loaders, threads, "from 0 to 1024")?;
        // All that there is besides.
        Ok(self.loading().check()?)
    }

    fn check_augmentation(&self) -> Result<(), TrainError> {
        let share = |share: f64| share > 0.0 && share <= 1.0;
        check("crop-area", self.crop_area, share, "above 0 and up to 1")?;
        let not_negative = |strength: f64| strength >= 0.0 && strength.is_finite();
        let strength = self.color_jitter;
        check("color-jitter", strength, not_negative, "0 or above")?;
        let few = |operations: usize| operations <= MOST_OPERATIONS;
        check("rand-augment", self.rand_augment, few, "from 0 to 100")?;
        let magnitudes = |magnitude: usize| magnitude <= 30;
        check("magnitude", self.magnitude, magnitudes, "from 0 to 30")?;
        check("mixup", self.mixup, not_negative, "0 or above")
    }
}

/// An error unless a setting that is given is right.
fn check<T: Copy + ToString>(
    setting: &'static str,
    value: Option<T>,
    right: impl FnOnce(T) -> bool,
    range: &'static str,
) -> Result<(), TrainError> {
    match value.filter(|&value| !right(value)) {
        None => Ok(()),
        Some(value) => Err(TrainError::Setting {
            setting,
            value: value.to_string(),
            range,
        }),
    }
}
