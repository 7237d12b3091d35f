use std::sync::Arc;

use crate::{
    Batches, ImageFolder, ImagenetError, Loading, SkippedFile, batches::Plan, skipped::Skipped,
};

/// Images of a folder, to be loaded.
///
/// A clone shares the index, and counts skipped files together with it.
///
/// # Example
///
/// ```
/// # mod folder { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/folder/mod.rs")); } use folder::*;
/// # let data = tempfile::tempdir()?;
/// # write(data.path(), &[("cat/1.jpg", &jpeg(8, 8, 1)), ("cat/2.jpg", b"no image"), ("dog/3.jpg", &jpeg(8, 8, 2))]);
/// # let pets = data.path();
/// use stovepipe_imagenet::{ImageFolder, Images, IndexCache, Loading};
///
/// let folder = ImageFolder::open(pets, &IndexCache::Off)?;
/// let images = Images::new(folder, Loading { workers: 2, ..Loading::default() })?;
/// for batch in images.eval_batches(16) {
///     assert_eq!(batch?.labels(), [0, 1]);
/// }
/// assert_eq!(images.skipped()[0].path, pets.join("cat/2.jpg")); // it was no image
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Images {
    folder: ImageFolder,
    settings: Arc<Loading>,
    skipped: Skipped,
}

impl Images {
    /// Images of a folder with the settings to load them.
    ///
    /// # Errors
    ///
    /// If a setting cannot be.
    pub fn new(folder: ImageFolder, settings: Loading) -> Result<Self, ImagenetError> {
        settings.check()?;
        Ok(Self {
            folder,
            settings: Arc::new(settings),
            skipped: Skipped::default(),
        })
    }

    /// Where the images lie, and what they are.
    #[must_use]
    pub fn folder(&self) -> &ImageFolder {
        &self.folder
    }

    /// How they are loaded.
    #[must_use]
    pub fn settings(&self) -> &Loading {
        &self.settings
    }

    /// How many images there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.folder.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.folder.is_empty()
    }

    /// Loads the images of `order`, augmented, `batch_size` at a time; the last batch may be smaller.
    ///
    /// What is drawn for an image is fixed by seed, epoch and its place in its folder, what is drawn for a batch (mixup) by
    /// seed, epoch and its place in the epoch. A batch size of 0 counts as 1.
    #[must_use]
    pub fn train_batches(
        &self,
        order: Vec<usize>,
        batch_size: usize,
        seed: u64,
        epoch: usize,
    ) -> Batches {
        self.train_batches_from(0, order, batch_size, seed, epoch)
    }

    /// Like [`train_batches`](Self::train_batches), without the `first` ones: where a pass goes on that was begun
    /// before. What is left out is not loaded, and the others are as they would have been.
    #[must_use]
    pub fn train_batches_from(
        &self,
        first: usize,
        order: Vec<usize>,
        batch_size: usize,
        seed: u64,
        epoch: usize,
    ) -> Batches {
        self.batches(first, order, batch_size, Some((seed, epoch)))
    }

    /// Loads all images in their order as for evaluation, `batch_size` at a time; the last batch may be smaller.
    #[must_use]
    pub fn eval_batches(&self, batch_size: usize) -> Batches {
        self.batches(0, (0..self.len()).collect(), batch_size, None)
    }

    /// The files that were skipped so far, by name, over all passes.
    #[must_use]
    pub fn skipped(&self) -> Vec<SkippedFile> {
        let mut files = self.skipped_after(0);
        files.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        files
    }

    /// The files that were skipped after the first `known`, in the order in which they were met: what is new to who knows of
    /// so many.
    #[must_use]
    pub fn skipped_after(&self, known: usize) -> Vec<SkippedFile> {
        self.skipped.after(known)
    }

    /// Counts skipped files together with other images: of both, no more than [`Loading::skip`] may be damaged.
    ///
    /// # Example
    ///
    /// ```
    /// # mod folder { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/folder/mod.rs")); } use folder::*;
    /// # let data = tempfile::tempdir()?;
    /// # for image in 0..9 { write(data.path(), &[(&*format!("{}/{image}.jpg", ["cat", "dog"][image % 2]), b"no image")]); }
    /// # let pets = data.path();
    /// # let settings = FolderSettings { cache: IndexCache::Off, ..FolderSettings::default() };
    /// use stovepipe_imagenet::{FolderSettings, ImageSets, Images, IndexCache, Loading};
    ///
    /// let sets = ImageSets::open(pets, &settings)?; // 9 files, none of them an image
    /// let train = Images::new(sets.train, Loading::default())?;
    /// let validation = Images::new(sets.validation, Loading::default())?.counted_with(&train);
    /// assert_eq!(train.eval_batches(4).count() + validation.eval_batches(4).count(), 0);
    /// assert_eq!(validation.skipped().len(), 9);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    ) -> Batches {
        let plan = Plan {
            folder: self.folder.clone(),
            settings: self.settings.clone(),
            order,
            first,
            batch_size: batch_size.max(1),
            training,
        };
        Batches::start(plan, self.skipped.clone())
    }
}
