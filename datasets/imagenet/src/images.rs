use std::sync::Arc;

use crate::{
    ImageBatches, ImageFolder, ImagenetError, Loading, SkippedFile, batches::BatchLoader,
    skipped::Skipped,
};

/// Loads the images of a folder. A clone shares the index and the count of skipped files.
///
/// ```
/// # mod folder { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/folder/mod.rs")); } use folder::*;
/// # let data = tempfile::tempdir()?;
/// # write(data.path(), &[("cat/1.jpg", &jpeg(8, 8, 1)), ("cat/2.jpg", b"no image"), ("dog/3.jpg", &jpeg(8, 8, 2))]);
/// # let pets = data.path();
/// use stovepipe_imagenet::{ImageFolder, Images, IndexCache, Loading};
///
/// let folder = ImageFolder::open(pets, &IndexCache::Off)?;
/// let images = Images::new(folder.clone(), Loading { workers: 2, ..Loading::default() })?;
/// for batch in images.eval_batches(16) {
///     assert_eq!(batch?.labels(), [0, 1]);
/// }
/// assert_eq!(images.skipped()[0].path, pets.join("cat/2.jpg")); // not an image
/// let more = Images::new(folder, Loading::default())?.counted_with(&images);
/// assert_eq!(more.skipped().len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Images {
    folder: ImageFolder,
    settings: Arc<Loading>,
    skipped: Skipped,
}

impl Images {
    /// Images of a folder, with the settings for loading.
    ///
    /// # Errors
    ///
    /// If a setting is out of its range.
    pub fn new(folder: ImageFolder, settings: Loading) -> Result<Self, ImagenetError> {
        settings.check()?;
        Ok(Self {
            folder,
            settings: Arc::new(settings),
            skipped: Skipped::default(),
        })
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &ImageFolder {
        &self.folder
    }

    /// The settings for loading.
    #[must_use]
    pub fn settings(&self) -> &Loading {
        &self.settings
    }

    /// The number of images.
    #[must_use]
    pub fn len(&self) -> usize {
        self.folder.len()
    }

    /// Whether there are no images.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.folder.is_empty()
    }

    /// Loads the images of `order` with augmentation. The last batch may be smaller.
    ///
    /// Augmentation depends only on seed, epoch and the image's index in its folder, mixup on seed, epoch and the batch's
    /// index in the epoch. A batch size of 0 counts as 1.
    #[must_use]
    pub fn train_batches(
        &self,
        order: Vec<usize>,
        batch_size: usize,
        seed: u64,
        epoch: usize,
    ) -> ImageBatches {
        self.train_batches_from(0, order, batch_size, seed, epoch)
    }

    /// Like [`train_batches`](Self::train_batches), without the `first` batches, to resume an epoch. These are not loaded; the
    /// others are unchanged.
    #[must_use]
    pub fn train_batches_from(
        &self,
        first: usize,
        order: Vec<usize>,
        batch_size: usize,
        seed: u64,
        epoch: usize,
    ) -> ImageBatches {
        self.batches(first, order, batch_size, Some((seed, epoch)))
    }

    /// Loads all images in order for evaluation. The last batch may be smaller.
    #[must_use]
    pub fn eval_batches(&self, batch_size: usize) -> ImageBatches {
        self.batches(0, (0..self.len()).collect(), batch_size, None)
    }

    /// The files skipped so far in all passes, sorted by path.
    #[must_use]
    pub fn skipped(&self) -> Vec<SkippedFile> {
        let mut files = self.skipped_after(0);
        files.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        files
    }

    /// The files skipped after the first `known`, in the order in which they were skipped.
    #[must_use]
    pub fn skipped_after(&self, known: usize) -> Vec<SkippedFile> {
        self.skipped.after(known)
    }

    /// Counts skipped files together with other images: [`Loading::skip`] limits their sum.
    #[must_use]
    pub fn counted_with(self, other: &Self) -> Self {
        Self {
            skipped: other.skipped.clone(),
            ..self
        }
    }

    fn batches(
        &self,
        first: usize,
        order: Vec<usize>,
        batch_size: usize,
        training: Option<(u64, usize)>,
    ) -> ImageBatches {
        let loader = BatchLoader {
            folder: self.folder.clone(),
            settings: self.settings.clone(),
            order,
            first,
            batch_size: batch_size.max(1),
            training,
        };
        ImageBatches::start(loader, self.skipped.clone())
    }
}
