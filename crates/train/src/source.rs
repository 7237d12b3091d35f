//! Where the batches of a training come from.

use std::sync::Arc;

use burn::{
    data::{dataloader::batcher::Batcher, dataset::Dataset},
    tensor::Device,
};
use std::marker::PhantomData;

use crate::{
    error::TrainError,
    loader::{Loader, shuffled},
};

/// The batches of one pass over a set: input and target.
pub type Batches<I, T> = Box<dyn Iterator<Item = Result<(I, T), TrainError>>>;

/// A pass over the training set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Which one, counted from 0.
    pub epoch: usize,
    /// What the order of samples and their augmentation depend on.
    pub seed: u64,
    /// Samples in a batch; the last one may have fewer.
    pub batch_size: usize,
}

/// What a model learns, which says how it is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Task {
    /// The class of a sample: by the share that is right.
    #[default]
    Classes,
    /// The next token of a text: by perplexity. Targets of [`PADDING`] do not count.
    Tokens,
}

/// A target that is none, since a text has ended before its window.
pub const PADDING: i64 = -1;

/// Where the batches of a training come from, and those of its tests: `I` is what the model is given, `T`
/// what it should say. Batches lie on the CPU; the first and the last stage take them to their devices.
pub trait Source<I, T> {
    /// Samples of the training set.
    fn training_samples(&self) -> usize;

    /// Samples of the test set.
    fn test_samples(&self) -> usize;

    /// The batches of a pass over the training set. The pass fixes them and their order.
    fn train(&self, pass: Pass) -> Batches<I, T>;

    /// Those batches without the `first` ones, where a pass goes on that was begun before; a source that can do
    /// without loading them says how.
    fn train_from(&self, first: usize, pass: Pass) -> Batches<I, T>
    where
        I: 'static,
        T: 'static,
    {
        Box::new(self.train(pass).skip(first))
    }

    /// The batches of the test set, always the same.
    fn test(&self, batch_size: usize) -> Batches<I, T>;

    /// What a model learns from it; classes, unless it is said.
    fn task(&self) -> Task {
        Task::Classes
    }
}

/// Makes sure that there is something to train on and to test with, and enough for a batch. Returns the number
/// of training samples.
pub(crate) fn check<I, T>(
    source: &(impl Source<I, T> + ?Sized),
    batch_size: usize,
) -> Result<usize, TrainError> {
    let samples = source.training_samples();
    for (set, name) in [(samples, "training"), (source.test_samples(), "test")] {
        if set == 0 {
            return Err(TrainError::EmptySet(name));
        }
    }
    match batch_size > samples {
        true => Err(TrainError::BatchTooLarge {
            batch_size,
            samples,
        }),
        false => Ok(samples),
    }
}

/// A training set and a test set as Burn has them, and the batchers that make input and target of their items:
/// a [`Source`] that loads a few batches ahead.
pub struct Data<Item, D, B> {
    train: Arc<D>,
    test: Arc<D>,
    training_batcher: Box<dyn Fn(usize) -> Arc<B> + Send + Sync>,
    test_batcher: Arc<B>,
    task: Task,
    item: PhantomData<fn() -> Item>,
}

impl<Item, D, B: Send + Sync + 'static> Data<Item, D, B> {
    /// What is trained on, what is tested with, and the batcher for both.
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
    #[must_use]
    pub fn new(train: D, test: D, batcher: B) -> Self {
        let batcher = Arc::new(batcher);
        Self {
            train: Arc::new(train),
            test: Arc::new(test),
            test_batcher: batcher.clone(),
            training_batcher: Box::new(move |_| batcher.clone()),
            task: Task::Classes,
            item: PhantomData,
        }
    }

    /// Has training use a batcher of its own for each epoch, counted from 0: one that augments, and
    /// draws anew each time.
    ///
    /// ```
    /// use burn::{data::{dataloader::batcher::Batcher, dataset::InMemDataset}, tensor::*};
    /// use stovepipe_train::{Data, Source};
    ///
    /// /// Moves points a little further every epoch.
    /// struct Moved(f32);
    /// impl Batcher<[f32; 2], (Tensor<2>, Tensor<1, Int>)> for Moved {
    ///     fn batch(&self, items: Vec<[f32; 2]>, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
    ///         let points = TensorData::new(items.concat(), [items.len(), 2]);
    ///         let targets = TensorData::new(vec![0; items.len()], [items.len()]);
    ///         let points = Tensor::from_data(points, device) + self.0;
    ///         (points, Tensor::from_data(targets, device))
    ///     }
    /// }
    ///
    /// let set = || InMemDataset::new(vec![[0.0, 1.0], [1.0, 0.0]]);
    /// let data = Data::new(set(), set(), Moved(0.0));
    /// let data = data.with_training_batcher(|epoch| Moved(0.1 * epoch as f32));
    /// assert_eq!(data.test_samples(), 2);
    /// ```
    #[must_use]
    pub fn with_training_batcher(
        mut self,
        of_epoch: impl Fn(usize) -> B + Send + Sync + 'static,
    ) -> Self {
        self.training_batcher = Box::new(move |epoch| Arc::new(of_epoch(epoch)));
        self
    }

    /// Says what a model learns from it.
    #[must_use]
    pub fn with_task(self, task: Task) -> Self {
        Self { task, ..self }
    }
}

impl<Item, D, B, I, T> Source<I, T> for Data<Item, D, B>
where
    Item: 'static,
    D: Dataset<Item> + 'static,
    B: Batcher<Item, (I, T)> + 'static,
    I: Send + 'static,
    T: Send + 'static,
{
    fn training_samples(&self) -> usize {
        self.train.len()
    }

    fn test_samples(&self) -> usize {
        self.test.len()
    }

    fn train(&self, pass: Pass) -> Batches<I, T> {
        self.train_from(0, pass)
    }

    fn train_from(&self, first: usize, pass: Pass) -> Batches<I, T> {
        let mut order = shuffled(self.train.len(), pass.seed, pass.epoch);
        order.drain(..order.len().min(first * pass.batch_size));
        let batcher = (self.training_batcher)(pass.epoch);
        let (set, device) = (self.train.clone(), Device::flex());
        Box::new(Loader::new(set, batcher, order, pass.batch_size, device))
    }

    fn test(&self, batch_size: usize) -> Batches<I, T> {
        let order = (0..self.test.len()).collect();
        let (set, batcher, device) = (self.test.clone(), self.test_batcher.clone(), Device::flex());
        Box::new(Loader::new(set, batcher, order, batch_size, device))
    }

    fn task(&self) -> Task {
        self.task
    }
}
