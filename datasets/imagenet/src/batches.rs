use std::{path::PathBuf, sync::Arc};

use crate::{
    ImageBatch, ImageFolder, ImagenetError, Loading,
    augment::mix,
    draws::{For, draws},
    pool::{Pool, Stop},
    sample::Shower,
    skipped::Skipped,
};

/// The batches of one pass over the images, loaded by workers that are ahead.
///
/// The batches, their order and all that is drawn are the same for any number of workers. A file that is skipped is missing from
/// its batch, which is smaller for it; a batch of which nothing is left is left out. After an error there are no more batches. Dropping
/// it ends the workers.
pub struct Batches {
    pool: Option<Pool<Result<Made, ImagenetError>>>,
    /// Why there is none.
    failed: Option<ImagenetError>,
    skipped: Skipped,
    most: usize,
}

/// What is to be loaded, and how.
pub(crate) struct Plan {
    pub folder: ImageFolder,
    pub settings: Arc<Loading>,
    /// The images, in the order of the batches.
    pub order: Vec<usize>,
    /// Batches at the beginning that are left out.
    pub first: usize,
    pub batch_size: usize,
    /// Seed and epoch of what is drawn for training; nothing is for evaluation.
    pub training: Option<(u64, usize)>,
}

/// A batch, and the files that are missing from it.
struct Made {
    batch: ImageBatch,
    damaged: Vec<(PathBuf, ImagenetError)>,
}

impl Batches {
    pub(crate) fn start(plan: Plan, skipped: Skipped) -> Self {
        let most = plan.settings.skip;
        let (pool, failed) = match plan.start() {
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

    /// The next batch, if anything is left of it.
    fn left_of(&self, made: Made) -> Result<Option<ImageBatch>, ImagenetError> {
        for (path, error) in made.damaged {
            self.skipped.count(&path, error, self.most)?;
        }
        Ok((!made.batch.is_empty()).then_some(made.batch))
    }
}

impl Iterator for Batches {
    type Item = Result<ImageBatch, ImagenetError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.failed.take() {
            return Some(Err(error));
        }
        loop {
            let made = self.pool.as_mut()?.next()?;
            let made = made.unwrap_or_else(|panic| Err(ImagenetError::Worker(panic)));
            match made.and_then(|made| self.left_of(made)) {
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

impl Plan {
    fn start(self) -> Result<Pool<Result<Made, ImagenetError>>, ImagenetError> {
        let images = self.folder.len();
        if let Some(image) = self.order.iter().find(|&&image| image >= images) {
            return Err(ImagenetError::Setting {
                setting: "an image of the order",
                value: image.to_string(),
                reason: "there are not so many",
            });
        }
        let first = self.first;
        let batches = self.order.len().div_ceil(self.batch_size);
        let (threads, ahead) = (self.settings.threads(), self.settings.ahead);
        let plan = Arc::new(self);
        let pool = Pool::start(
            batches.saturating_sub(first),
            threads,
            threads.saturating_add(ahead),
            move |stop| {
                let plan = plan.clone();
                let mut shower = Shower::new(plan.settings.clone());
                move |batch| plan.make(first + batch, &mut shower, &stop)
            },
        );
        pool.map_err(|error| ImagenetError::Worker(error.to_string()))
    }

    fn make(&self, number: usize, shower: &mut Shower, stop: &Stop) -> Result<Made, ImagenetError> {
        let images = self
            .order
            .chunks(self.batch_size)
            .nth(number)
            .unwrap_or_default();
        let mut batch = ImageBatch::new(self.settings.size as usize, images.len());
        let mut damaged = Vec::new();
        for &image in images {
            if stop.is_set() {
                break;
            }
            let path = self.folder.path(image);
            let shown = match self.training {
                None => shower.show(&path, &mut batch),
                Some((seed, epoch)) => {
                    let sample = For::Sample(self.folder.place(image));
                    shower.show_augmented(&path, &mut draws(seed, epoch, sample), &mut batch)
                }
            };
            match shown {
                Ok(()) => batch.push_label(self.folder.label(image)),
                Err(error) => damaged.push((path, error)),
            }
        }
        if let Some((seed, epoch)) = self.training {
            let alpha = self.settings.augmentation.mixup;
            let mut draws = draws(seed, epoch, For::Batch(number));
            batch.mix_with(|pixels, length| mix(alpha, pixels, length, &mut draws));
        }
        Ok(Made { batch, damaged })
    }
}
