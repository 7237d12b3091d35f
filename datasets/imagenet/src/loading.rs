use std::{num::NonZero, path::Path, sync::Arc, thread};

use burn::tensor::{Device, Tensor};

use crate::{
    Augmentation, Decoding, ImageBatch, ImagenetError, Interpolation, augment::check,
    sample::Shower,
};

/// How images are loaded: all settings, with defaults for ImageNet.
///
/// # Example
///
/// ```
/// use stovepipe_imagenet::{Evaluation, Loading};
///
/// let large = Loading {
///     size: 480,
///     evaluation: Evaluation { resize: 512, ..Evaluation::default() },
///     ..Loading::default()
/// };
/// # let _ = large;
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Loading {
    /// Height and width of the images that a model sees.
    pub size: u32,
    /// What is done to images that are trained on.
    pub augmentation: Augmentation,
    /// How images are shown that are not.
    pub evaluation: Evaluation,
    /// How pixels become numbers.
    pub normalisation: Normalisation,
    /// What of a file is decoded.
    pub decoding: Decoding,
    /// Threads that load; 0 for as many as the processor runs.
    pub workers: usize,
    /// Batches that may wait to be taken, or be in the making, beyond one for each worker. A batch takes 12 · size² bytes an image.
    pub ahead: usize,
    /// Files that may be damaged or unreadable. They are skipped and reported ([`Images::skipped`](crate::Images::skipped)); one
    /// more, and loading ends with an error. A file counts once.
    pub skip: usize,
}

impl Default for Loading {
    fn default() -> Self {
        Self {
            size: 224,
            augmentation: Augmentation::default(),
            evaluation: Evaluation::default(),
            normalisation: Normalisation::default(),
            decoding: Decoding::default(),
            workers: 0,
            ahead: 2,
            skip: 10,
        }
    }
}

/// How images are shown that are not trained on: resized until the shorter side is `resize`, then cropped to the middle.
///
/// As torchvision's `Resize` and `CenterCrop`.
///
/// # Example
///
/// ```
/// use stovepipe_imagenet::{Evaluation, Interpolation};
///
/// let sharp = Evaluation { interpolation: Interpolation::Bicubic, ..Evaluation::default() };
/// # let _ = sharp;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Evaluation {
    /// The length of the shorter side; no less than the [`size`](Loading::size) that is cropped.
    pub resize: u32,
    /// How it is resized.
    pub interpolation: Interpolation,
}

impl Default for Evaluation {
    fn default() -> Self {
        Self {
            resize: 256,
            interpolation: Interpolation::default(),
        }
    }
}

/// The mean and the standard deviation of each channel, black being 0 and white 1: what is taken from pixels, and what they are then
/// divided by. The default is that of ImageNet.
///
/// # Example
///
/// ```
/// use stovepipe_imagenet::Normalisation;
///
/// let from_minus_1_to_1 = Normalisation { mean: [0.5; 3], std: [0.5; 3] };
/// # let _ = from_minus_1_to_1;
/// ```
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
    /// The largest [`size`](Self::size), and the largest that images are resized to.
    pub const LARGEST: u32 = 1 << 14;

    /// Loads one image as for evaluation, `[1, 3, size, size]`: to predict its class, say.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or decoded, or a setting is wrong.
    ///
    /// # Example
    ///
    /// ```
    /// # mod folder { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/folder/mod.rs")); } use folder::*;
    /// # let data = tempfile::tempdir()?;
    /// # write(data.path(), &[("cat.jpg", &jpeg(60, 40, 5))]);
    /// # let cat = data.path().join("cat.jpg");
    /// use burn::tensor::Device;
    /// use stovepipe_imagenet::Loading;
    ///
    /// let image = Loading::default().load(&cat, &Device::default())?;
    /// assert_eq!(image.dims(), [1, 3, 224, 224]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn load(&self, file: &Path, device: &Device) -> Result<Tensor<4>, ImagenetError> {
        self.check()?;
        let mut batch = ImageBatch::new(self.size as usize, 1);
        Shower::new(Arc::new(self.clone())).show(file, &mut batch)?;
        batch.push_label(0);
        Ok(batch.into_classes(device).0)
    }

    /// Checks that all settings are in their ranges, as is done before anything is loaded.
    ///
    /// # Errors
    ///
    /// The first setting that is not.
    ///
    /// # Example
    ///
    /// ```
    /// use stovepipe_imagenet::Loading;
    ///
    /// assert!(Loading { size: 128, ..Loading::default() }.check().is_ok());
    /// let error = Loading { size: 0, ..Loading::default() }.check().unwrap_err();
    /// assert_eq!(error.to_string(), "the size of images cannot be 0: it must be from 1 to 16384");
    /// ```
    pub fn check(&self) -> Result<(), ImagenetError> {
        let size = (1..=Self::LARGEST).contains(&self.size);
        check(
            "the size of images",
            self.size,
            size,
            "it must be from 1 to 16384",
        )?;
        let resize = (self.size..=Self::LARGEST).contains(&self.evaluation.resize);
        let reason = "it must be no less than the size that is cropped, and up to 16384";
        check(
            "the size that images are resized to",
            self.evaluation.resize,
            resize,
            reason,
        )?;
        let Normalisation { mean, std } = self.normalisation;
        let finite = mean.into_iter().chain(std).all(f32::is_finite) && !std.contains(&0.0);
        let shown = format!("{mean:?} and {std:?}");
        check(
            "the mean and standard deviation",
            shown,
            finite,
            "they must be finite, the latter not 0",
        )?;
        self.augmentation.check()
    }

    pub(crate) fn threads(&self) -> usize {
        match self.workers {
            0 => thread::available_parallelism().map_or(1, NonZero::get),
            workers => workers,
        }
    }
}
