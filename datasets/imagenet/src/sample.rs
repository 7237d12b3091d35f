//! Loads images into batches.

use std::{array, path::Path, sync::Arc};

use burn::tensor::{Device, Tensor};
use rand::Rng;

use crate::{
    EvalTransform, ImageBatch, ImagenetError, Loading, Normalisation,
    augment::FinalSteps,
    decode::Decoded,
    raster::Raster,
    resize::{Rectangle, Resizing},
};

/// Loads images one after the other, in the same memory.
pub(crate) struct SampleLoader {
    settings: Arc<Loading>,
    /// The normalised value of each byte, by channel.
    normalised: [[f32; 256]; 3],
    decoded: Decoded,
    resizing: Resizing,
    shown: Raster,
}

impl SampleLoader {
    pub fn new(settings: Arc<Loading>) -> Self {
        let side = settings.size as usize;
        Self {
            normalised: normalised(&settings.normalisation),
            settings,
            decoded: Decoded::default(),
            resizing: Resizing::default(),
            shown: Raster::new(side, side),
        }
    }

    /// Appends an image for evaluation.
    pub fn load(&mut self, path: &Path, batch: &mut ImageBatch) -> Result<(), ImagenetError> {
        self.decoded.read(path, &self.settings.decoding)?;
        let EvalTransform { interpolation, .. } = self.settings.evaluation;
        let (width, height) = (self.decoded.width, self.decoded.height);
        let centre = self.settings.centre_crop(width, height);
        let (decoded, shown) = (&self.decoded, &mut self.shown);
        let resized = self.resizing.part(decoded, centre, interpolation, shown);
        resized.map_err(ImagenetError::image(path))?;
        self.append(&FinalSteps::default(), batch);
        Ok(())
    }

    /// Appends an augmented image for training.
    pub fn load_augmented(
        &mut self,
        path: &Path,
        rng: &mut impl Rng,
        batch: &mut ImageBatch,
    ) -> Result<(), ImagenetError> {
        self.decoded.read(path, &self.settings.decoding)?;
        let augmentation = &self.settings.augmentation;
        let (decoded, shown) = (&self.decoded, &mut self.shown);
        let steps = augmentation.apply(decoded, &mut self.resizing, rng, shown);
        let steps = steps.map_err(ImagenetError::image(path))?;
        self.append(&steps, batch);
        Ok(())
    }

    /// Appends the normalised pixels, channel by channel.
    fn append(&self, steps: &FinalSteps, batch: &mut ImageBatch) {
        let pixels = batch.pixels_mut();
        let (rows, columns) = &steps.hole;
        for (channel, normalised) in self.normalised.iter().enumerate() {
            let value = |pixel: &[u8; 3]| normalised[usize::from(pixel[channel])];
            for (y, row) in self.shown.pixels.chunks_exact(self.shown.width).enumerate() {
                let begin = pixels.len();
                if steps.flipped {
                    pixels.extend(row.iter().rev().map(value));
                } else {
                    pixels.extend(row.iter().map(value));
                }
                if rows.contains(&y) {
                    pixels[begin..][columns.clone()].fill(0.0);
                }
            }
        }
    }
}

impl Loading {
    /// Loads one image for evaluation, `[1, 3, size, size]`.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or decoded, or a setting is out of its range.
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
        SampleLoader::new(Arc::new(self.clone())).load(file, &mut batch)?;
        batch.push_label(0);
        Ok(batch.into_classes(device).0)
    }

    /// The size that an image is resized to, and the position of the crop in it.
    pub(crate) fn centre_crop(&self, width: u32, height: u32) -> Rectangle {
        let (short, size) = (self.evaluation.resize, self.size);
        let long = |long: u32, over: u32| {
            let scaled = u64::from(short) * u64::from(long) / u64::from(over);
            u32::try_from(scaled).unwrap_or(u32::MAX)
        };
        let (width, height) = if width <= height {
            (short, long(height, width))
        } else {
            (long(width, height), short)
        };
        let begin = |length: u32| (f64::from(length - size) / 2.0).round_ties_even() as u32;
        Rectangle {
            left: begin(width),
            top: begin(height),
            width,
            height,
        }
    }
}

fn normalised(normalisation: &Normalisation) -> [[f32; 256]; 3] {
    let Normalisation { mean, std } = normalisation;
    let value = |value, channel: usize| (value as f32 / 255.0 - mean[channel]) / std[channel];
    array::from_fn(|channel| array::from_fn(|byte: usize| value(byte, channel)))
}
