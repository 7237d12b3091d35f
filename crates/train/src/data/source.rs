//! The batches of a training set and a test set.

use std::sync::Arc;

use burn::{
    data::{dataloader::batcher::Batcher, dataset::Dataset},
    tensor::Device,
};
use stovepipe_pipeline::Batch;

use super::loader::{Loader, shuffled};
use crate::error::TrainError;

/// The batches of one pass over a set: inputs, targets and side inputs.
pub type Batches<I, T, S = ()> = Box<dyn Iterator<Item = Result<Batch<I, T, S>, TrainError>>>;

/// A pass over the training set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochPass {
    /// The epoch, counted from 0.
    pub epoch: usize,
    /// Seed of the order of samples and of their augmentation.
    pub seed: u64,
    /// Samples in a batch; the last one may have fewer.
    pub batch_size: usize,
}

/// The batches of a training and of its tests: inputs `I` of the model, targets `T`, and side inputs
/// `S`. Batches are on the CPU; stages copy them to their devices.
pub trait Source<I, T, S = ()> {
    /// Samples of the training set.
    fn training_samples(&self) -> usize;

    /// Samples of the test set.
    fn test_samples(&self) -> usize;

    /// The batches of a pass over the training set, which depend on `pass` only.
    fn train(&self, pass: EpochPass) -> Batches<I, T, S>;

    /// Those batches without the `first` ones, to resume a pass. Override it if they need not be
    /// loaded.
    fn train_from(&self, first: usize, pass: EpochPass) -> Batches<I, T, S>
    where
        I: 'static,
        T: 'static,
        S: 'static,
    {
        Box::new(self.train(pass).skip(first))
    }

    /// The batches of the test set, always the same.
    fn test(&self, batch_size: usize) -> Batches<I, T, S>;
}

/// Checks that neither set is empty, and that there are enough samples for a batch. Returns the
/// number of training samples.
pub(crate) fn check<I, T, S>(
    source: &dyn Source<I, T, S>,
    batch_size: usize,
) -> Result<usize, TrainError> {
    let samples = source.training_samples();
    for (set, name) in [(samples, "training"), (source.test_samples(), "test")] {
        if set == 0 {
            return Err(TrainError::EmptySet(name));
        }
    }
    if batch_size > samples {
        return Err(TrainError::BatchTooLarge {
            batch_size,
            samples,
        });
    }
    Ok(samples)
}

/// Two of Burn's datasets, for training and for tests, with the batchers that make batches of their
/// items: a [`Source`] that loads a few batches ahead.
pub struct Data<I, T, S = ()> {
    train: Set<I, T, S>,
    test: Set<I, T, S>,
}

/// Loads samples: the epoch, their order, and the size of a batch.
type Load<I, T, S> = dyn Fn(usize, Vec<usize>, usize) -> Batches<I, T, S> + Send + Sync;

/// A dataset: its size, and what loads it.
struct Set<I, T, S> {
    samples: usize,
    load: Box<Load<I, T, S>>,
}

impl<I, T, S> Set<I, T, S>
where
    I: Send + 'static,
    T: Send + 'static,
    S: Send + 'static,
{
    fn new<D, B, Item, O>(set: D, batcher: impl Fn(usize) -> Arc<B> + Send + Sync + 'static) -> Self
    where
        D: Dataset<Item> + 'static,
        B: Batcher<Item, O> + 'static,
        Item: 'static,
        O: Into<Batch<I, T, S>> + Send + 'static,
    {
        let (samples, set) = (set.len(), Arc::new(set));
        let load = move |epoch, order, batch_size| -> Batches<I, T, S> {
            let (set, batcher) = (set.clone(), batcher(epoch));
            let batches = Loader::new(set, batcher, order, batch_size, Device::flex());
            Box::new(batches.map(|batch| batch.map(Into::into)))
        };
        Self {
            samples,
            load: Box::new(load),
        }
    }
}

impl<I, T, S> Data<I, T, S>
where
    I: Send + 'static,
    T: Send + 'static,
    S: Send + 'static,
{
    /// A training set and a test set with one batcher, which returns an input and a target, or a
    /// [`Batch`] with side inputs.
    ///
    /// ```
    /// use burn::{data::{dataloader::batcher::Batcher, dataset::InMemDataset}, tensor::*};
    /// use stovepipe_train::{Data, Source};
    ///
    /// struct Points;
    /// impl Batcher<[f32; 2], (Tensor<2>, Tensor<1, Int>)> for Points {
    ///     fn batch(&self, items: Vec<[f32; 2]>, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
    ///         let points = TensorData::new(items.concat(), [items.len(), 2]);
    ///         let targets = TensorData::new(vec![0; items.len()], [items.len()]);
    ///         (Tensor::from_data(points, device), Tensor::from_data(targets, device))
    ///     }
    /// }
    ///
    /// let set = || InMemDataset::new(vec![[0.0, 1.0], [1.0, 0.0]]);
    /// let data = Data::new(set(), set(), Points);
    /// assert_eq!(data.training_samples(), 2);
    /// ```
    pub fn new<D, B, Item, O>(train: D, test: D, batcher: B) -> Self
    where
        D: Dataset<Item> + 'static,
        B: Batcher<Item, O> + 'static,
        Item: 'static,
        O: Into<Batch<I, T, S>> + Send + 'static,
    {
        let batcher = Arc::new(batcher);
        let same = batcher.clone();
        Self {
            train: Set::new(train, move |_| same.clone()),
            test: Set::new(test, move |_| batcher.clone()),
        }
    }

    /// Like [`new`](Self::new), with another batcher for each epoch of training, counted from 0: one
    /// that augments samples differently each time. `batcher` is for tests.
    ///
    /// ```
    /// # use burn::{data::{dataloader::batcher::Batcher, dataset::InMemDataset}, tensor::*};
    /// # use stovepipe_train::{Data, Source};
    /// /// Moves points a little further every epoch.
    /// struct Moved(f32);
    /// impl Batcher<f32, (Tensor<1>, Tensor<1>)> for Moved {
    ///     fn batch(&self, items: Vec<f32>, device: &Device) -> (Tensor<1>, Tensor<1>) {
    ///         let points = Tensor::from_floats(items.as_slice(), device);
    ///         (points.clone() + self.0, points)
    ///     }
    /// }
    ///
    /// let set = || InMemDataset::new(vec![0.0, 1.0]);
    /// let data = Data::augmented(set(), set(), |epoch| Moved(0.1 * epoch as f32), Moved(0.0));
    /// assert_eq!(data.test_samples(), 2);
    /// ```
    pub fn augmented<D, B, Item, O>(
        train: D,
        test: D,
        of_epoch: impl Fn(usize) -> B + Send + Sync + 'static,
        batcher: B,
    ) -> Self
    where
        D: Dataset<Item> + 'static,
        B: Batcher<Item, O> + 'static,
        Item: 'static,
        O: Into<Batch<I, T, S>> + Send + 'static,
    {
        let batcher = Arc::new(batcher);
        Self {
            train: Set::new(train, move |epoch| Arc::new(of_epoch(epoch))),
            test: Set::new(test, move |_| batcher.clone()),
        }
    }
}

impl<I, T, S> Source<I, T, S> for Data<I, T, S> {
    fn training_samples(&self) -> usize {
        self.train.samples
    }

    fn test_samples(&self) -> usize {
        self.test.samples
    }

    fn train(&self, pass: EpochPass) -> Batches<I, T, S> {
        self.train_after(0, pass)
    }

    fn train_from(&self, first: usize, pass: EpochPass) -> Batches<I, T, S> {
        self.train_after(first, pass)
    }

    fn test(&self, batch_size: usize) -> Batches<I, T, S> {
        (self.test.load)(0, (0..self.test.samples).collect(), batch_size)
    }
}

impl<I, T, S> Data<I, T, S> {
    fn train_after(&self, first: usize, pass: EpochPass) -> Batches<I, T, S> {
        let mut order = shuffled(self.train.samples, pass.seed, pass.epoch);
        order.drain(..order.len().min(first * pass.batch_size));
        (self.train.load)(pass.epoch, order, pass.batch_size)
    }
}
