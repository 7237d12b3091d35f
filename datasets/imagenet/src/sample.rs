//! From a file to the numbers that a model sees.

use std::{array, path::Path, sync::Arc};

use rand::Rng;

use crate::{
    Evaluation, ImageBatch, ImagenetError, Loading, Normalisation,
    augment::Finish,
    decode::Decoded,
    raster::Raster,
    resize::{Rectangle, Resizing},
};

/// Shows images one after the other, in the same memory.
pub(crate) struct Shower {
    settings: Arc<Loading>,
    /// For each channel, the number that each value becomes.
    numbers: [[f32; 256]; 3],
    decoded: Decoded,
    resizing: Resizing,
    shown: Raster,
}

impl Shower {
    pub fn new(settings: Arc<Loading>) -> Self {
        let side = settings.size as usize;
        Self {
            numbers: numbers(&settings.normalisation),
            settings,
            decoded: Decoded::default(),
            resizing: Resizing::default(),
            shown: Raster::new(side, side),
        }
    }

    /// Appends the image as it is shown to a model that is not trained.
    pub fn show(&mut self, path: &Path, batch: &mut ImageBatch) -> Result<(), ImagenetError> {
        self.decoded.read(path, &self.settings.decoding)?;
        let Evaluation { interpolation, .. } = self.settings.evaluation;
        let middle = self
            .settings
            .middle(self.decoded.width, self.decoded.height);
        self.resizing
            .part(&self.decoded, middle, interpolation, &mut self.shown)
            .map_err(failed(path))?;
        self.append(&Finish::default(), batch);
        Ok(())
    }

    /// Appends the image, augmented as the generator draws.
    pub fn show_augmented(
        &mut self,
        path: &Path,
        draws: &mut impl Rng,
        batch: &mut ImageBatch,
    ) -> Result<(), ImagenetError> {
        self.decoded.read(path, &self.settings.decoding)?;
        let augmentation = &self.settings.augmentation;
        let finish = augmentation
            .show(&self.decoded, &mut self.resizing, draws, &mut self.shown)
            .map_err(failed(path))?;
        self.append(&finish, batch);
        Ok(())
    }

    /// Makes numbers of what is shown, channel by channel.
    fn append(&self, finish: &Finish, batch: &mut ImageBatch) {
        let pixels = batch.pixels_mut();
        let (rows, columns) = &finish.hole;
        for (channel, numbers) in self.numbers.iter().enumerate() {
            let number = |pixel: &[u8; 3]| numbers[usize::from(pixel[channel])];
            for (y, row) in self.shown.pixels.chunks_exact(self.shown.width).enumerate() {
                let begin = pixels.len();
                match finish.flipped {
                    true => pixels.extend(row.iter().rev().map(number)),
                    false => pixels.extend(row.iter().map(number)),
                }
                if rows.contains(&y) {
                    pixels[begin..][columns.clone()].fill(0.0);
                }
            }
        }
    }
}

impl Loading {
    /// The size that an image is resized to, and where in it the crop lies.
    pub(crate) fn middle(&self, width: u32, height: u32) -> Rectangle {
        let (short, size) = (self.evaluation.resize, self.size);
        let long = |long: u32, over: u32| {
            let scaled = u64::from(short) * u64::from(long) / u64::from(over);
            u32::try_from(scaled).unwrap_or(u32::MAX)
        };
        let (width, height) = match width <= height {
            true => (short, long(height, width)),
            false => (long(width, height), short),
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

fn numbers(normalisation: &Normalisation) -> [[f32; 256]; 3] {
    let Normalisation { mean, std } = normalisation;
    array::from_fn(|channel| {
        array::from_fn(|value| (value as f32 / 255.0 - mean[channel]) / std[channel])
    })
}

fn failed(path: &Path) -> impl FnOnce(String) -> ImagenetError {
    let path = path.to_owned();
    move |reason| ImagenetError::Image { path, reason }
}
