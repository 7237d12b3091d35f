use std::{path::PathBuf, sync::Arc};

use crate::{
    ImageBatch, ImageFolder, ImagenetError, Loading,
    augment::mix,
    pool::{OrderedPool, Stop},
    rng::{batch_rng, sample_rng},
    sample::SampleLoader,
    skipped::Skipped,
};

/// The batches of one pass over the images, loaded ahead by worker threads.
///
/// The batches, their order and all random numbers are the same for any number of workers. A skipped file makes its batch
/// smaller, and empty batches are skipped. After an error there are no more batches. Dropping the iterator stops the
/// workers.
pub struct ImageBatches {
    pool: Option<Pool>,
    /// The error of starting the pool.
    failed: Option<ImagenetError>,
    skipped: Skipped,
    most: usize,
}

type Pool = OrderedPool<Result<LoadedBatch, ImagenetError>>;

/// Loads the batches of a pass.
pub(crate) struct BatchLoader {
    pub folder: ImageFolder,
    pub settings: Arc<Loading>,
    /// The images, in the order of the batches.
    pub order: Vec<usize>,
    /// The number of batches to leave out at the beginning.
    pub first: usize,
    pub batch_size: usize,
    /// Seed and epoch for training; `None` for evaluation.
    pub training: Option<(u64, usize)>,
}

/// A batch, and the files that are missing from it.
struct LoadedBatch {
    batch: ImageBatch,
    damaged: Vec<(PathBuf, ImagenetError)>,
}

impl ImageBatches {
    pub(crate) fn start(loader: BatchLoader, skipped: Skipped) -> Self {
        let most = loader.settings.skip;
        let (pool, failed) = match loader.start() {
            Ok(pool) => (Some(pool), None),
            Err(error) => (None, Some(error)),
        };
        Self {
            pool,
            failed,
            skipped,
            most,
        }
    }

    /// Counts the skipped files. Returns the batch unless it is empty.
    fn accept(&self, loaded: LoadedBatch) -> Result<Option<ImageBatch>, ImagenetError> {
        for (path, error) in loaded.damaged {
            self.skipped.count(&path, error, self.most)?;
        }
        Ok(Some(loaded.batch).filter(|batch| !batch.is_empty()))
    }
}

impl Iterator for ImageBatches {
    type Item = Result<ImageBatch, ImagenetError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.failed.take() {
            return Some(Err(error));
        }
        loop {
            let loaded = self.pool.as_mut()?.next()?;
            let loaded = loaded.unwrap_or_else(|panic| Err(ImagenetError::Worker(panic)));
            match loaded.and_then(|loaded| self.accept(loaded)) {
                Ok(None) => {}
                Ok(Some(batch)) => return Some(Ok(batch)),
                Err(error) => {
                    self.pool = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

impl BatchLoader {
    fn start(self) -> Result<Pool, ImagenetError> {
        let images = self.folder.len();
        if let Some(image) = self.order.iter().find(|&&image| image >= images) {
            return Err(ImagenetError::Setting {
                setting: "an image of the order",
                value: image.to_string(),
                reason: "it must be less than the number of images",
            });
        }
        let first = self.first;
        let batches = self.order.len().div_ceil(self.batch_size);
        let (threads, ahead) = (self.settings.threads(), self.settings.ahead);
        let loader = Arc::new(self);
        let pool = OrderedPool::start(
            batches.saturating_sub(first),
            threads,
            threads.saturating_add(ahead),
            move |stop| {
                let loader = loader.clone();
                let mut samples = SampleLoader::new(loader.settings.clone());
                move |batch| loader.load(first + batch, &mut samples, &stop)
            },
        );
        pool.map_err(ImagenetError::Thread)
    }

    fn load(
        &self,
        number: usize,
        samples: &mut SampleLoader,
        stop: &Stop,
    ) -> Result<LoadedBatch, ImagenetError> {
        let images = self.order.chunks(self.batch_size).nth(number);
        let images = images.unwrap_or_default();
        let mut batch = ImageBatch::new(self.settings.size as usize, images.len());
        let mut damaged = Vec::new();
        for &image in images {
            if stop.is_set() {
                break;
            }
            let path = self.folder.path(image);
            let loaded = match self.training {
                None => samples.load(&path, &mut batch),
                Some((seed, epoch)) => {
                    let mut rng = sample_rng(seed, epoch, self.folder.place(image));
                    samples.load_augmented(&path, &mut rng, &mut batch)
                }
            };
            match loaded {
                Ok(()) => batch.push_label(self.folder.label(image)),
                Err(error) => damaged.push((path, error)),
            }
        }
        if let Some((seed, epoch)) = self.training {
            let alpha = self.settings.augmentation.mixup;
            let mut rng = batch_rng(seed, epoch, number);
            batch.mix_with(|pixels, length| mix(alpha, pixels, length, &mut rng));
        }
        Ok(LoadedBatch { batch, damaged })
    }
}
