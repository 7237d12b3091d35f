use std::fmt;

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::augment::Mix;

/// Images and their labels in host memory.
///
/// ```
/// # mod folder { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/folder/mod.rs")); } use folder::*;
/// # let data = tempfile::tempdir()?;
/// # write(data.path(), &[("cat/1.jpg", &jpeg(8, 8, 1)), ("dog/2.jpg", &jpeg(8, 8, 2))]);
/// # let images = ImageFolder::open(data.path(), &IndexCache::Off)?;
/// use burn::tensor::Device;
/// use stovepipe_imagenet::{Augmentation, ImageFolder, Images, IndexCache, Loading};
///
/// let augmentation = Augmentation { mixup: 0.2, ..Augmentation::default() };
/// let images = Images::new(images, Loading { augmentation, ..Loading::default() })?;
/// let batch = images.train_batches(vec![1, 0], 2, 42, 0).next().ok_or("no batch")??;
/// assert_eq!(batch.labels(), [1, 0]);
/// let (pixels, shares) = batch.into_shares(2, &Device::default());
/// assert_eq!(pixels.dims(), [2, 3, 224, 224]);
/// assert_eq!(shares.dims(), [2, 2]); // the shares of cat and dog in each image
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct ImageBatch {
    pixels: Vec<f32>,
    labels: Vec<i32>,
    side: usize,
    mix: Option<Mix>,
}

impl ImageBatch {
    /// An empty batch with capacity for `images` images.
    pub(crate) fn new(side: usize, images: usize) -> Self {
        Self {
            pixels: Vec::with_capacity(images * 3 * side * side),
            labels: Vec::with_capacity(images),
            side,
            mix: None,
        }
    }

    /// The pixels, to append the red, green and blue rows of an image.
    pub(crate) fn pixels_mut(&mut self) -> &mut Vec<f32> {
        &mut self.pixels
    }

    pub(crate) fn push_label(&mut self, label: usize) {
        self.labels.push(label as i32);
    }

    /// Calls `mix` with the pixels and their number per image.
    pub(crate) fn mix_with(&mut self, mix: impl FnOnce(&mut [f32], usize) -> Option<Mix>) {
        self.mix = mix(&mut self.pixels, 3 * self.side * self.side);
    }

    /// The number of images. It is smaller than the batch size if files were skipped, and at the end of an epoch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are no images, which never holds for a batch of [`ImageBatches`](crate::ImageBatches).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The label of each image; with mixup, that of the image with share λ.
    #[must_use]
    pub fn labels(&self) -> &[i32] {
        &self.labels
    }

    /// Red, green and blue rows of each image, normalised: `[n, 3, size, size]`.
    #[must_use]
    pub fn pixels(&self) -> &[f32] {
        &self.pixels
    }

    /// Images `[n, 3, size, size]` and their labels `[n]`, on a device. With mixup, use
    /// [`into_shares`](Self::into_shares).
    #[must_use]
    pub fn into_classes(self, device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
        let count = self.labels.len();
        let labels = TensorData::new::<i32, _>(self.labels, [count]);
        let labels = Tensor::from_data(labels, device);
        (images(self.pixels, self.side, count, device), labels)
    }

    /// Images `[n, 3, size, size]` and the shares of their classes `[n, classes]`, on a device: 1 for the image's class, or λ
    /// for it and 1 − λ for the class of the image it is mixed with. Labels of `classes` or more are ignored.
    #[must_use]
    pub fn into_shares(self, classes: usize, device: &Device) -> (Tensor<4>, Tensor<2>) {
        let count = self.labels.len();
        let shares = TensorData::new::<f32, _>(self.shares(classes), [count, classes]);
        let shares = Tensor::from_data(shares, device);
        (images(self.pixels, self.side, count, device), shares)
    }

    fn shares(&self, classes: usize) -> Vec<f32> {
        let mut shares = vec![0.0; self.labels.len() * classes];
        let own = self.mix.map_or(1.0, |mix| mix.lambda);
        let last = self.labels.len().saturating_sub(1);
        let before = self.labels.iter().cycle().skip(last);
        let rows = shares.chunks_exact_mut(classes.max(1));
        for ((row, &label), &before) in rows.zip(&self.labels).zip(before) {
            for (label, share) in [(label, own), (before, 1.0 - own)] {
                if let Some(place) = row.get_mut(label as usize) {
                    *place += share;
                }
            }
        }
        shares
    }
}

fn images(pixels: Vec<f32>, side: usize, count: usize, device: &Device) -> Tensor<4> {
    let pixels = TensorData::new::<f32, _>(pixels, [count, 3, side, side]);
    Tensor::from_data(pixels, device)
}

/// Without its pixels.
impl fmt::Debug for ImageBatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("ImageBatch");
        shown.field("side", &self.side);
        shown.field("labels", &self.labels);
        shown.field("mix", &self.mix);
        shown.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_for_an_image_and_the_one_before() {
        let mut batch = ImageBatch::new(1, 3);
        batch.labels = vec![2, 0, 0];
        assert_eq!(batch.shares(3), [0., 0., 1., 1., 0., 0., 1., 0., 0.]);
        batch.mix = Some(Mix { lambda: 0.75 });
        let mixed = [0.25, 0., 0.75, 0.75, 0., 0.25, 1., 0., 0.];
        assert_eq!(batch.shares(3), mixed);
        assert!(batch.shares(0).is_empty());
    }
}
