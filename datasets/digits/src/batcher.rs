use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::{Digit, SHAPE};

/// The mean pixel of the enlarged training images, which range from 0 to 16.
pub const MEAN: f32 = 4.883_438;

/// The standard deviation of the pixels of the enlarged training images.
pub const STD: f32 = 5.185_4;

/// Images `[n, 3, 32, 32]` and their labels `[n]`.
pub type DigitBatch = (Tensor<4>, Tensor<1, Int>);

/// Batches digits for an image model: images `[n, 3, 32, 32]` and labels `[n]`.
///
/// Each scan is [enlarged](Digit::enlarged) to 32×32, normalised by [`MEAN`] and [`STD`], and repeated in three equal
/// channels. The tensors have the device's default element types.
///
/// ```
/// use burn::data::dataloader::batcher::Batcher;
/// use burn::tensor::Device;
/// use stovepipe_digits::{DigitBatcher, Digits};
///
/// let test = Digits::test()?;
/// let (images, labels) = DigitBatcher.batch(test.as_slice()[..8].to_vec(), &Device::default());
/// assert_eq!(images.dims(), [8, 3, 32, 32]);
/// assert_eq!(labels.dims(), [8]);
/// # Ok::<(), stovepipe_digits::DigitsError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct DigitBatcher;

impl Batcher<Digit, DigitBatch> for DigitBatcher {
    fn batch(&self, items: Vec<Digit>, device: &Device) -> DigitBatch {
        let [channels, height, width] = SHAPE;
        let pixels = items.iter().flat_map(Digit::enlarged);
        let pixels = pixels.map(|pixel| (pixel - MEAN) / STD).collect();
        let labels = items.iter().map(|digit| i32::from(digit.label)).collect();

        let images = TensorData::new::<f32, _>(pixels, [items.len(), 1, height, width]);
        let labels = TensorData::new::<i32, _>(labels, [items.len()]);
        let images = Tensor::from_data(images, device).repeat_dim(1, channels);
        (images, Tensor::from_data(labels, device))
    }
}
