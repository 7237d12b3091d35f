//! Loads batches ahead of training.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{Builder, JoinHandle},
};

use burn::{
    data::{dataloader::batcher::Batcher, dataset::Dataset},
    tensor::Device,
};
use rand::{SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use stovepipe_pipeline::caught;

use crate::error::TrainError;

const AHEAD: usize = 2;

/// The order in which an epoch visits the samples of a set. It depends on seed and epoch only.
///
/// ```
/// use stovepipe_train::data::shuffled;
///
/// assert_eq!(shuffled(100, 1, 0), shuffled(100, 1, 0));
/// assert_ne!(shuffled(100, 1, 0), shuffled(100, 1, 1));
/// let mut sorted = shuffled(100, 1, 0);
/// sorted.sort();
/// assert!(sorted.into_iter().eq(0..100));
/// ```
#[must_use]
pub fn shuffled(samples: usize, seed: u64, epoch: usize) -> Vec<usize> {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(epoch as u64);
    let mut order: Vec<_> = (0..samples).collect();
    order.shuffle(&mut generator);
    order
}

/// The batches of one pass over a set, loaded in advance by a thread.
///
/// Their order and content depend on `order` only. Dropping the loader ends the thread.
pub struct Loader<O> {
    batches: Option<Receiver<Result<O, TrainError>>>,
    thread: Option<JoinHandle<()>>,
}

impl<O: Send + 'static> Loader<O> {
    /// Starts to load the samples of `order`, `batch_size` at a time. The last batch may be smaller.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
    /// use burn::tensor::{Device, Tensor};
    /// use stovepipe_train::data::Loader;
    ///
    /// struct Floats;
    /// impl Batcher<f32, Tensor<1>> for Floats {
    ///     fn batch(&self, items: Vec<f32>, device: &Device) -> Tensor<1> {
    ///         Tensor::from_floats(items.as_slice(), device)
    ///     }
    /// }
    ///
    /// let set = Arc::new(InMemDataset::new(vec![0.0, 1.0, 2.0, 3.0, 4.0]));
    /// let loader = Loader::new(set, Arc::new(Floats), vec![4, 3, 2, 1, 0], 2, Device::flex());
    /// let sizes: Vec<_> = loader.map(|batch| batch.unwrap().dims()[0]).collect();
    /// assert_eq!(sizes, [2, 2, 1]);
    /// ```
    #[must_use]
    pub fn new<I, D, B>(
        set: Arc<D>,
        batcher: Arc<B>,
        order: Vec<usize>,
        batch_size: usize,
        device: Device,
    ) -> Self
    where
        I: 'static,
        D: Dataset<I> + 'static,
        B: Batcher<I, O> + 'static,
    {
        let (sender, batches) = sync_channel(AHEAD);
        let load = move |indices: &[usize]| {
            let items = set.get_many(indices.to_vec());
            items
                .map(|items| batcher.batch(items, &device))
                .map_err(TrainError::data)
        };
        let spare = sender.clone();
        let thread = Builder::new()
            .name("loader".to_owned())
            .spawn(move || send_all(&order, batch_size.max(1), &load, &sender));
        let not_started = |error| spare.send(Err(TrainError::data(error)));
        Self {
            batches: Some(batches),
            thread: thread.map_err(not_started).ok(),
        }
    }
}

fn send_all<O>(
    order: &[usize],
    batch_size: usize,
    load: &dyn Fn(&[usize]) -> Result<O, TrainError>,
    sender: &SyncSender<Result<O, TrainError>>,
) {
    for indices in order.chunks(batch_size) {
        // A panic in the user's code becomes an error.
        let batch = caught(|| load(indices)).unwrap_or_else(|panicked| {
            let (first, message) = (indices.first().unwrap_or(&0), panicked.message);
            let text = format!("a panic in the batch that starts with sample {first}: {message}");
            Err(TrainError::data(text))
        });
        let failed = batch.is_err();
        // Without a receiver, training has ended.
        if sender.send(batch).is_err() || failed {
            return;
        }
    }
}

impl<O> Iterator for Loader<O> {
    type Item = Result<O, TrainError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.batches.as_ref()?.recv().ok()
    }
}

impl<O> Drop for Loader<O> {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
