use std::{
    fmt, fs,
    hash::Hasher,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use siphasher::sip::SipHasher24;

use super::{
    cache::{self, IndexCache},
    entries::{Index, Names},
    labels,
    walk::{self, Disk},
};
use crate::ImagenetError;

/// Threads that ask for the sizes of files: on network disks each answer takes long.
const THREADS: usize = 16;

/// The images of one split: their paths and classes.
///
/// This is an index; images are read when they are loaded. 1.28 million names take about 40 MB. A clone shares them.
///
/// ```
/// # mod folder { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/folder/mod.rs")); } use folder::*;
/// # let data = tempfile::tempdir()?;
/// # write(data.path(), &[("train/cat/1.jpg", &jpeg(8, 8, 1)), ("train/dog/2.JPEG", &jpeg(8, 8, 2))]);
/// # write(data.path(), &[("val/1.jpg", b""), ("val/2.jpg", b""), ("val.txt", b"2.jpg cat\n1.jpg dog\n")]);
/// # let data = data.path();
/// use stovepipe_imagenet::{ImageFolder, IndexCache};
///
/// let train = data.join("train"); // class folders
/// let images = ImageFolder::open(&train, &IndexCache::Off)?;
/// assert_eq!(images.classes(), ["cat", "dog"]);
/// assert_eq!(images.len(), 2);
/// assert_eq!((images.label(1), images.path(1)), (1, train.join("dog/2.JPEG")));
///
/// let (val, labels) = (data.join("val"), data.join("val.txt")); // "2.jpg cat", "1.jpg dog"
/// let images = ImageFolder::open_flat(&val, &labels, images.classes())?;
/// assert_eq!((images.label(0), images.label(1)), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ImageFolder {
    root: PathBuf,
    index: Arc<Index>,
    by_class: bool,
    /// The chosen images of the index; `None` for all.
    chosen: Option<Arc<[u32]>>,
}

impl ImageFolder {
    /// The images of a folder with a folder for each class, named after it.
    ///
    /// Images may be in subfolders of a class's folder (`n01443537/images/n01443537_0.JPEG`). Several subfolders without an
    /// image beside them are an error, since there is probably one level too many. Hidden files, files beside the class
    /// folders, and files whose names do not end in `.jpg`, `.jpeg`, `.png`, `.webp`, `.bmp` or `.gif`, in lower or upper
    /// case, are ignored.
    ///
    /// # Errors
    ///
    /// If a folder cannot be read, there are fewer than two classes, or a class has no images.
    pub fn open(folder: &Path, cache: &IndexCache) -> Result<Self, ImagenetError> {
        check_folder(folder)?;
        let file = cache.file(folder);
        let cached = file.as_ref().and_then(|file| cache::read(file, folder));
        if let Some(index) = cached {
            return Ok(Self::new(folder, index, true));
        }
        let (index, stamps) = walk::by_class(&Disk, folder)?;
        if let Some(file) = file {
            // Without a cache, folders are read again the next time.
            let _ = cache::write(&file, &index, &stamps);
        }
        Ok(Self::new(folder, index, true))
    }

    /// The images of a folder without class folders, with the classes from a label file.
    ///
    /// `classes` are those of the training images, sorted. All lines of the label file have the same form; blank lines are
    /// ignored:
    ///
    /// | line | for instance |
    /// |---|---|
    /// | an image's name, a tab, comma or space, its class | `ILSVRC2012_val_00000001.JPEG n01751748`, Caffe's `val.txt` |
    /// | the same with more after another tab | `val_annotations.txt` of Tiny ImageNet |
    /// | the same after a line `ImageId,PredictionString` | `LOC_val_solution.csv` of Kaggle |
    /// | a class: the first line is for the first image by name | `imagenet_2012_validation_synset_labels.txt` |
    ///
    /// Names may lack their ending or folders. A class is a name of `classes` or, if one of them is 0, an index counted from
    /// 0. Numbers from 1 are ILSVRC's numbers of classes, which are not sorted by name
    /// (`ILSVRC2012_validation_ground_truth.txt`); they need the file `map_clsloc.txt` of the development kit of 2015 beside
    /// them.
    ///
    /// # Errors
    ///
    /// If the folder or the file cannot be read, or a line does not match the images.
    pub fn open_flat(
        folder: &Path,
        labels: &Path,
        classes: &[String],
    ) -> Result<Self, ImagenetError> {
        check_folder(folder)?;
        let mut names = Names::default();
        for name in walk::flat(&Disk, folder)? {
            names.push(&name);
        }
        let index = Index {
            classes: classes.to_vec(),
            labels: labels::read(labels, &names, classes)?,
            names,
        };
        Ok(Self::new(folder, index, false))
    }

    fn new(root: &Path, index: Index, by_class: bool) -> Self {
        Self {
            root: root.to_owned(),
            index: Arc::new(index),
            by_class,
            chosen: None,
        }
    }

    /// The folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The number of images.
    #[must_use]
    pub fn len(&self) -> usize {
        let all = self.index.names.len();
        self.chosen.as_ref().map_or(all, |chosen| chosen.len())
    }

    /// Whether there are no images, which never holds for an opened folder.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The names of the classes, sorted. Labels are indices of it.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.index.classes
    }

    /// The label of an image: the index of its class in [`classes`](Self::classes).
    ///
    /// # Panics
    ///
    /// If `image` is out of bounds.
    #[must_use]
    pub fn label(&self, image: usize) -> usize {
        self.index.labels[self.place(image)] as usize
    }

    /// The file of an image.
    ///
    /// # Panics
    ///
    /// If `image` is out of bounds.
    #[must_use]
    pub fn path(&self, image: usize) -> PathBuf {
        let name = self.index.names.get(self.place(image));
        if self.by_class {
            self.root.join(self.class(image)).join(name)
        } else {
            self.root.join(name)
        }
    }

    /// The number of images of each class, and a hash of their names and sizes: it shows whether the images are the same.
    #[must_use]
    pub fn fingerprints(&self) -> Vec<(usize, u64)> {
        let mut sizes = vec![0; self.len()];
        let share = self.len().div_ceil(THREADS).max(1);
        thread::scope(|scope| {
            for (part, sizes) in sizes.chunks_mut(share).enumerate() {
                scope.spawn(move || {
                    for (image, size) in (part * share..).zip(sizes) {
                        // A file that is missing is reported when it is loaded.
                        *size = fs::metadata(self.path(image)).map_or(0, |file| file.len());
                    }
                });
            }
        });
        let mut classes = vec![(0, SipHasher24::new()); self.classes().len()];
        for (image, size) in sizes.into_iter().enumerate() {
            let (images, hasher) = &mut classes[self.label(image)];
            *images += 1;
            hasher.write(self.name(image).as_bytes());
            hasher.write(&[0]);
            hasher.write(&size.to_le_bytes());
        }
        let hashed = |(images, hasher): (usize, SipHasher24)| (images, hasher.finish());
        classes.into_iter().map(hashed).collect()
    }

    /// An image's path below the folder of the classes, with `/` between its parts.
    pub(super) fn name(&self, image: usize) -> String {
        let name = self.index.names.get(self.place(image));
        format!("{}/{name}", self.class(image))
    }

    fn class(&self, image: usize) -> &str {
        &self.index.classes[self.label(image)]
    }

    /// An image's index in the whole folder, of which this may be a part. It is the key of random numbers.
    pub(crate) fn place(&self, image: usize) -> usize {
        let chosen = self.chosen.as_ref();
        chosen.map_or(image, |chosen| chosen[image] as usize)
    }

    pub(super) fn choose(&self, images: Vec<u32>) -> Self {
        let images = images.into_iter();
        let places = images.map(|image| self.place(image as usize) as u32);
        Self {
            chosen: Some(places.collect()),
            ..self.clone()
        }
    }
}

/// Without the names.
impl fmt::Debug for ImageFolder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("ImageFolder");
        shown.field("root", &self.root);
        shown.field("images", &self.len());
        shown.field("classes", &self.classes().len());
        shown.finish_non_exhaustive()
    }
}

/// The files of the images in a folder and its subfolders, sorted. Names are as in [`ImageFolder::open`].
///
/// # Errors
///
/// If a folder cannot be read, or there are no images.
pub fn images_in(folder: &Path) -> Result<Vec<PathBuf>, ImagenetError> {
    let names = walk::flat(&Disk, folder)?;
    Ok(names.iter().map(|name| folder.join(name)).collect())
}

pub(super) fn check_folder(path: &Path) -> Result<(), ImagenetError> {
    let metadata = path.metadata().map_err(ImagenetError::unreadable(path))?;
    if !metadata.is_dir() {
        return Err(ImagenetError::NotAFolder(path.to_owned()));
    }
    Ok(())
}
