//! Data sets of images, as one kind of source.

use std::rc::Rc;

use burn::{
    data::{dataloader::batcher::Batcher, dataset::Dataset},
    tensor::{Device, Int, Tensor},
};
use stovepipe::train::Source;
use stovepipe_imagenet::{EvalTransform, Loading, Normalisation};

use super::labels::Labels;

/// Images to train on and to test with, and the names of their classes.
pub struct ImageSets {
    pub source: Rc<dyn Source<Tensor<4>, Labels>>,
    pub classes: Vec<String>,
    /// The name of a test image, given its place among those that are shown.
    pub names: Box<dyn Fn(usize) -> String>,
}

impl ImageSets {
    /// Images without names.
    pub fn new(
        source: impl Source<Tensor<4>, Labels> + 'static,
        classes: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            source: Rc::new(source),
            classes: classes.into_iter().map(Into::into).collect(),
            names: Box::new(|place| format!("test image {}", place + 1)),
        }
    }
}

/// The first samples of a set as a batch.
pub fn first<I>(
    set: &impl Dataset<I>,
    batcher: &impl Batcher<I, (Tensor<4>, Tensor<1, Int>)>,
    samples: usize,
) -> (Tensor<4>, Tensor<1, Int>) {
    let items = (0..samples).filter_map(|index| set.get(index).ok());
    batcher.batch(items.collect(), &Device::flex())
}

/// A picture's way to 32 × 32 pixels with this mean and deviation.
pub fn small_view(mean: [f32; 3], std: [f32; 3]) -> Loading {
    Loading {
        size: 32,
        evaluation: EvalTransform {
            resize: 32,
            ..EvalTransform::default()
        },
        normalisation: Normalisation { mean, std },
        ..Loading::default()
    }
}

/// Makes batches whose images have a class each.
pub struct Classes<B>(pub B);

impl<I, B: Batcher<I, (Tensor<4>, Tensor<1, Int>)>> Batcher<I, (Tensor<4>, Labels)> for Classes<B> {
    fn batch(&self, items: Vec<I>, device: &Device) -> (Tensor<4>, Labels) {
        let (images, classes) = self.0.batch(items, device);
        (images, Labels::Classes(classes))
    }
}
