use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::{CifarAugmentation, CifarImage, PIXELS, SHAPE, SIDE, augmentation::View};

/// Images `[n, 3, 32, 32]` and their labels `[n]`.
pub type CifarBatch = (Tensor<4>, Tensor<1, Int>);

/// Batches images of CIFAR for a model: images `[n, 3, 32, 32]` and labels `[n]`.
///
/// Pixels are scaled to 0 to 1 and normalised by the [mean](crate::CifarLabels::mean) and [standard
/// deviation](crate::CifarLabels::std) of their channel. `CifarBatcher::default()` is for evaluation, and
/// [`augmented`](Self::augmented) for training. The tensors have the device's default element types.
///
/// ```
/// # mod folder { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/folder/mod.rs")); } use folder::*;
/// # let data = tempfile::tempdir()?;
/// # write_cifar10(data.path(), |_| record(&[6], |_, y, x| (8 * (y % 8) + x) as u8).repeat(8));
/// # let data = data.path();
/// use burn::{data::{dataloader::batcher::Batcher, dataset::Dataset}, tensor::Device};
/// use stovepipe_cifar::{Cifar, CifarAugmentation, CifarBatcher, CifarLabels};
///
/// let test = Cifar::test(CifarLabels::Cifar10, data)?;
/// let first = test.get_many((0..8).collect())?;
/// let (images, labels) = CifarBatcher::default().batch(first, &Device::default());
/// assert_eq!(images.dims(), [8, 3, 32, 32]);
/// assert_eq!(labels.dims(), [8]);
///
/// let train = Cifar::train(CifarLabels::Cifar10, data)?;
/// let images = |epoch| {
///     let batcher = CifarBatcher::augmented(CifarAugmentation::default(), 42, epoch);
///     let items = train.get_many(vec![5]).unwrap();
///     batcher.batch(items, &Device::default()).0.into_data()
/// };
/// assert_eq!(images(3), images(3));
/// assert_ne!(images(3), images(4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct CifarBatcher {
    /// The random changes, and the seed and epoch of their key.
    augmented: Option<(CifarAugmentation, u64, usize)>,
}

impl CifarBatcher {
    /// A batcher for one epoch of training.
    ///
    /// The changes to an image depend only on `seed`, `epoch` and the image's index in its set, not on its batch, the
    /// order of images or the thread.
    #[must_use]
    pub fn augmented(augmentation: CifarAugmentation, seed: u64, epoch: usize) -> Self {
        let augmented = Some((augmentation, seed, epoch));
        Self { augmented }
    }

    fn view(&self, image: &CifarImage) -> View {
        match &self.augmented {
            None => View::PLAIN,
            Some((changes, seed, epoch)) => {
                changes.view(*seed, *epoch as u64, image.index() as u64)
            }
        }
    }
}

impl Batcher<CifarImage, CifarBatch> for CifarBatcher {
    fn batch(&self, items: Vec<CifarImage>, device: &Device) -> CifarBatch {
        let [channels, height, width] = SHAPE;
        let mut pixels = Vec::with_capacity(items.len() * PIXELS);
        for image in &items {
            show(image, &self.view(image), &mut pixels);
        }
        let labels = items.iter().map(|image| i32::from(image.label())).collect();

        let images = TensorData::new::<f32, _>(pixels, [items.len(), channels, height, width]);
        let labels = TensorData::new::<i32, _>(labels, [items.len()]);
        let images = Tensor::from_data(images, device);
        (images, Tensor::from_data(labels, device))
    }
}

/// Appends an image as `view` shows it.
fn show(image: &CifarImage, view: &View, shown: &mut Vec<f32>) {
    let colours = image.labels().mean().into_iter().zip(image.labels().std());
    for (channel, (mean, std)) in colours.enumerate() {
        let plane = image.plane(channel);
        for y in 0..SIDE {
            let row = view.row(plane, y);
            let mut row = row.map(|pixel| (f32::from(pixel) / 255.0 - mean) / std);
            row[view.hole(y)].fill(0.0);
            shown.extend(row);
        }
    }
}
