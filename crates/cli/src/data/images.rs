//! Data sets of images, as one kind of source, and their labels.

use std::{fmt::Display, rc::Rc};

use burn::{
    data::{dataloader::batcher::Batcher, dataset::Dataset},
    tensor::{Device, Int, Tensor},
};
use stovepipe::{
    Flow,
    pipeline::{CrossEntropy, Objective},
    schedule::count,
    train::{Data, Source, data::Fingerprint},
};
use stovepipe_imagenet::{EvalTransform, Loading, Normalisation};

use super::fingerprint::of_classes;

pub struct ImageSets {
    pub source: Rc<dyn Source<Tensor<4>, Labels>>,
    pub classes: Vec<String>,
    /// What was loaded, in a line.
    pub about: String,
    /// The name of a test image, given its place among those that are shown.
    pub names: Box<dyn Fn(usize) -> String>,
}

impl ImageSets {
    /// Images without names, from a place, with what shows whether they are the same as before.
    pub fn new(
        place: impl Display,
        data: Data<Tensor<4>, Labels>,
        classes: Vec<String>,
        mut fingerprint: Fingerprint,
    ) -> Self {
        fingerprint.extend(of_classes(&classes));
        let (train, test) = (data.training_samples(), data.test_samples());
        Self {
            about: format!("{place}: {}, {test} to test with", found(&classes, train)),
            source: Rc::new(data.with_fingerprint(fingerprint)),
            classes,
            names: Box::new(|place| format!("test image {}", place + 1)),
        }
    }
}

/// The beginning of a line about images.
pub fn found(classes: &[String], train: usize) -> String {
    let classes = count(classes.len(), "class");
    format!("{classes}, {} to train on", count(train, "image"))
}

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

/// What images show: a class each, or shares of several where images are mixed.
#[derive(Clone, Debug, Flow)]
pub enum Labels {
    /// The class of each `[n]`.
    Classes(Tensor<1, Int>),
    /// The share of each class `[n, classes]`.
    Shares(Tensor<2>),
}

impl Objective<Tensor<2>, Labels> for CrossEntropy {
    fn loss(&self, logits: Tensor<2>, labels: Labels) -> Tensor<1> {
        match labels {
            Labels::Classes(classes) => self.loss(logits, classes),
            Labels::Shares(shares) => self.loss(logits, shares),
        }
    }

    fn weight(&self, labels: &Labels) -> f64 {
        match labels {
            Labels::Classes(classes) => Objective::<Tensor<2>, _>::weight(self, classes),
            Labels::Shares(shares) => Objective::<Tensor<2>, _>::weight(self, shares),
        }
    }

    fn auxiliary_loss(&self, logits: Tensor<2>, labels: Labels) -> Tensor<1> {
        match labels {
            Labels::Classes(classes) => self.auxiliary_loss(logits, classes),
            Labels::Shares(shares) => self.auxiliary_loss(logits, shares),
        }
    }

    fn scores(&self, logits: Tensor<2>, labels: Labels) -> Option<Tensor<1>> {
        match labels {
            Labels::Classes(classes) => self.scores(logits, classes),
            Labels::Shares(shares) => self.scores(logits, shares),
        }
    }
}
