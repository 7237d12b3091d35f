//! The batches of a training set and a test set.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use burn::{
    data::{dataloader::batcher::Batcher, dataset::Dataset},
    tensor::Device,
};
use stovepipe_pipeline::Batch;

use super::loader::{Loader, shuffled};
use crate::error::TrainError;

/// The batches of one pass over a set: inputs, targets and side inputs.
pub type Batches<I, T, S = ()> = Box<dyn Iterator<Item = Result<Batch<I, T, S>, TrainError>>>;

/// What shows whether data are the same: each part by its name, and what is in it, such as `class 3`
/// and `dog`, or `test images` and a hash. Names of parts that only training sees begin with
/// `training`.
pub type Fingerprint = BTreeMap<String, String>;

/// What has changed between two fingerprints: the first part that differs, and the number of others.
/// `None` if nothing has, or one of them is empty.
#[must_use]
pub fn changes(then: &Fingerprint, now: &Fingerprint) -> Option<String> {
    if then.is_empty() || now.is_empty() {
        return None;
    }
    let parts: BTreeSet<_> = then.keys().chain(now.keys()).collect();
    let mut differing = (parts.into_iter()).filter(|part| then.get(*part) != now.get(*part));
    let part = differing.next()?;
    let shown = |all: &Fingerprint| all.get(part).map_or("none", String::as_str).to_owned();
    let (was, is) = (shown(then), shown(now));
    let others = match differing.count() {
        0 => String::new(),
        others => format!(" (and {others} more)"),
    };
    Some(format!("{part}: {was} then, {is} now{others}"))
}

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

    /// What checkpoints hold of the data: a training resumes with the same data only. Nothing is
    /// compared if it is empty, as by default.
    ///
    /// # Errors
    ///
    /// If data cannot be read.
    fn fingerprint(&self) -> Result<Fingerprint, TrainError> {
        Ok(Fingerprint::new())
    }
}

/// Checks that neither set is empty, and that there are enough samples for a batch. Returns the
/// number of training samples.
///
/// # Errors
///
/// If a set is empty, or a batch has more samples than the training set.
pub fn check<I, T, S>(
    source: &dyn Source<I, T, S>,
    batch_size: usize,
) -> Result<usize, TrainError> {
    let samples = source.training_samples();
    for (set, name) in [(samples, "training"), (source.test_samples(), "test")] {
        if set == 0 {
            return Err(TrainError::EmptySet(name));
        }
    }
    check_batch(batch_size, samples)?;
    Ok(samples)
}

/// Checks that a training set has enough samples for a batch.
///
/// ```
/// assert!(stovepipe_train::data::check_batch(64, 100).is_ok());
/// ```
///
/// # Errors
///
/// If it has fewer.
pub fn check_batch(batch_size: usize, samples: usize) -> Result<(), TrainError> {
    if batch_size > samples {
        return Err(TrainError::BatchTooLarge {
            batch_size,
            samples,
        });
    }
    Ok(())
}

/// The first batches of another source, to try a training quickly.
///
/// ```
/// # use burn::{data::{dataloader::batcher::Batcher, dataset::InMemDataset}, tensor::*};
/// use stovepipe_train::{Data, Source, data::FirstBatches};
///
/// # struct Points;
/// # impl Batcher<f32, (Tensor<1>, Tensor<1>)> for Points {
/// #     fn batch(&self, items: Vec<f32>, device: &Device) -> (Tensor<1>, Tensor<1>) {
/// #         let points = Tensor::from_floats(items.as_slice(), device);
/// #         (points.clone(), points)
/// #     }
/// # }
/// let set = || InMemDataset::new(vec![0.0; 100]);
/// let data = Data::new(set(), set(), Points);
/// let first = FirstBatches { source: &data, batches: 2, batch_size: 8 };
/// assert_eq!((first.training_samples(), first.test(8).count()), (16, 2));
/// ```
pub struct FirstBatches<'a, I, T, S = ()> {
    /// The other source.
    pub source: &'a dyn Source<I, T, S>,
    /// Batches of each pass and of the test set.
    pub batches: usize,
    /// Samples in a batch.
    pub batch_size: usize,
}

impl<I: 'static, T: 'static, S: 'static> Source<I, T, S> for FirstBatches<'_, I, T, S> {
    fn training_samples(&self) -> usize {
        let samples = self.source.training_samples();
        samples.min(self.batches * self.batch_size)
    }

    fn test_samples(&self) -> usize {
        self.source
            .test_samples()
            .min(self.batches * self.batch_size)
    }

    fn train(&self, pass: EpochPass) -> Batches<I, T, S> {
        Box::new(self.source.train(pass).take(self.batches))
    }

    fn test(&self, batch_size: usize) -> Batches<I, T, S> {
        Box::new(self.source.test(batch_size).take(self.batches))
    }

    fn fingerprint(&self) -> Result<Fingerprint, TrainError> {
        self.source.fingerprint()
    }
}

/// Two of Burn's datasets, for training and for tests, with the batchers that make batches of their
/// items: a [`Source`] that loads a few batches ahead.
pub struct Data<I, T, S = ()> {
    train: Set<I, T, S>,
    test: Set<I, T, S>,
    fingerprint: Fingerprint,
}

/// Loads samples: the epoch, their order, and the size of a batch.
type Load<I, T, S> = dyn Fn(usize, Vec<usize>, usize) -> Batches<I, T, S> + Send + Sync;

/// A dataset: its size, and what loads it.
struct Set<I, T, S> {
    samples: usize,
    load: Box<Load<I, T, S>>,
}

impl<I: Send + 'static, T: Send + 'static, S: Send + 'static> Set<I, T, S> {
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
        let load = Box::new(load);
        Self { samples, load }
    }
}

impl<I: Send + 'static, T: Send + 'static, S: Send + 'static> Data<I, T, S> {
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
    pub fn new<Item: 'static, O: Into<Batch<I, T, S>> + Send + 'static>(
        train: impl Dataset<Item> + 'static,
        test: impl Dataset<Item> + 'static,
        batcher: impl Batcher<Item, O> + 'static,
    ) -> Self {
        let batcher = Arc::new(batcher);
        let same = batcher.clone();
        let train = Set::new(train, move |_| same.clone());
        let test = Set::new(test, move |_| batcher.clone());
        let fingerprint = Fingerprint::new();
        Self {
            train,
            test,
            fingerprint,
        }
    }

    /// Like [`new`](Self::new), with another batcher for each epoch of training, counted from 0: one
    /// that augments samples differently each time. `batcher` is for tests.
    ///
    /// ```
    /// # use burn::{data::{dataloader::batcher::Batcher, dataset::InMemDataset}, tensor::*};
    /// # use stovepipe_train::{Data, Source};
    /// struct Moved(f32); // a little further every epoch
    /// impl Batcher<f32, (Tensor<1>, Tensor<1>)> for Moved {
    ///     fn batch(&self, items: Vec<f32>, device: &Device) -> (Tensor<1>, Tensor<1>) {
    ///         let points = Tensor::from_floats(items.as_slice(), device);
    ///         (points.clone() + self.0, points)
    ///     }
    /// }
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
        let train = Set::new(train, move |epoch| Arc::new(of_epoch(epoch)));
        let test = Set::new(test, move |_| batcher.clone());
        let fingerprint = Fingerprint::new();
        Self {
            train,
            test,
            fingerprint,
        }
    }

    /// Sets what checkpoints hold of the data, see [`Source::fingerprint`].
    #[must_use]
    pub fn with_fingerprint(mut self, fingerprint: Fingerprint) -> Self {
        self.fingerprint = fingerprint;
        self
    }
}

impl<I: 'static, T: 'static, S: 'static> Source<I, T, S> for Data<I, T, S> {
    fn training_samples(&self) -> usize {
        self.train.samples
    }

    fn test_samples(&self) -> usize {
        self.test.samples
    }

    fn train(&self, pass: EpochPass) -> Batches<I, T, S> {
        self.train_from(0, pass)
    }

    fn train_from(&self, first: usize, pass: EpochPass) -> Batches<I, T, S> {
        let mut order = shuffled(self.train.samples, pass.seed, pass.epoch);
        order.drain(..order.len().min(first * pass.batch_size));
        (self.train.load)(pass.epoch, order, pass.batch_size)
    }

    fn test(&self, batch_size: usize) -> Batches<I, T, S> {
        (self.test.load)(0, (0..self.test.samples).collect(), batch_size)
    }

    fn fingerprint(&self) -> Result<Fingerprint, TrainError> {
        Ok(self.fingerprint.clone())
    }
}
