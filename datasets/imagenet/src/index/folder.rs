use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Index, IndexCache, cache, labels,
    names::Names,
    walk::{self, Disk},
};
use crate::ImagenetError;

/// The images of one split: where each lies, and its class.
///
/// An index only: 1.28 million names are about 40 MB, and no image is read before it is loaded. A clone shares it.
#[derive(Clone)]
pub struct ImageFolder {
    root: PathBuf,
    index: Arc<Index>,
    /// Whether images lie in a folder for each class.
    by_class: bool,
    /// The places of these images in the index; all if there is none.
    chosen: Option<Arc<[u32]>>,
}

impl ImageFolder {
    /// The images of a folder that has a folder for each class, named after it.
    ///
    /// Images may lie in a folder within a class's folder (`n01443537/images/n01443537_0.JPEG`), or beside folders within it.
    /// Several folders without an image beside them are taken for a level more than there should be: an error, which names
    /// the folder that was probably meant. What is hidden, what lies beside the class folders, and files whose names do not end in `.jpg`, `.jpeg`, `.png`, `.webp`, `.bmp` or `.gif`, in
    /// letters of either size, are passed over.
    ///
    /// # Errors
    ///
    /// If a folder cannot be read, there are less than two classes, or a class has no images; see [`ImagenetError`].
    ///
    /// # Example
    ///
    /// ```
    /// # mod folder { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/folder/mod.rs")); } use folder::*;
    /// # let data = tempfile::tempdir()?;
    /// # write(data.path(), &[("cat/1.jpg", &jpeg(8, 8, 1)), ("dog/2.JPEG", &jpeg(8, 8, 2))]);
    /// # let pets = data.path();
    /// use stovepipe_imagenet::{ImageFolder, IndexCache};
    ///
    /// let images = ImageFolder::open(pets, &IndexCache::Off)?;
    /// assert_eq!(images.classes(), ["cat", "dog"]);
    /// assert_eq!(images.len(), 2);
    /// assert_eq!((images.label(1), images.path(1)), (1, pets.join("dog/2.JPEG")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(folder: &Path, cache: &IndexCache) -> Result<Self, ImagenetError> {
        check_folder(folder)?;
        let file = cache.file(folder);
        let known = file.as_ref().and_then(|file| cache::read(file, folder));
        let index = match known {
            Some(index) => index,
            None => {
                let (index, stamps) = walk::by_class(&Disk, folder)?;
                if let Some(file) = file {
                    // Without it, folders are read again the next time.
                    let _ = cache::write(&file, &index, &stamps);
                }
                index
            }
        };
        Ok(Self {
            root: folder.to_owned(),
            index: Arc::new(index),
            by_class: true,
            chosen: None,
        })
    }

    /// The images of a folder without folders for classes, which a file of labels says instead, a line for each image.
    ///
    /// `classes` are those of the training images, sorted. A line has one of these forms, the same in all lines; blank
    /// ones are passed over:
    ///
    /// | line | such as |
    /// |---|---|
    /// | an image's name, a tab, comma or blanks, its class | `ILSVRC2012_val_00000001.JPEG n01751748`, Caffe's `val.txt` |
    /// | the same with more after another tab | `val_annotations.txt` of Tiny ImageNet |
    /// | the same after a line `ImageId,PredictionString` | `LOC_val_solution.csv` of Kaggle |
    /// | a class: the first line is that of the first image by name | `imagenet_2012_validation_synset_labels.txt` |
    ///
    /// Names may lack their ending, or the folders that the image lies in. A class is a name out of `classes` or, if one of
    /// them is 0, its place in it, counted from 0. Numbers from 1 are those that ILSVRC gave its classes, which are in no
    /// order of names (`ILSVRC2012_validation_ground_truth.txt`): they need its file `map_clsloc.txt` beside them. The
    /// development kit of 2012 has the same in a `meta.mat`, which is not read; that of 2015 has the file.
    ///
    /// # Errors
    ///
    /// If the folder or file cannot be read, or do not fit each other in every line; see [`ImagenetError`].
    ///
    /// # Example
    ///
    /// ```
    /// # mod folder { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/folder/mod.rs")); } use folder::*;
    /// # let data = tempfile::tempdir()?;
    /// # write(data.path(), &[("val/1.jpg", &jpeg(8, 8, 1)), ("val/2.jpg", &jpeg(8, 8, 2)), ("val.txt", b"2.jpg cat\n1.jpg dog\n")]);
    /// # let (val, labels) = (data.path().join("val"), data.path().join("val.txt"));
    /// use stovepipe_imagenet::ImageFolder;
    ///
    /// let classes = ["cat".to_owned(), "dog".to_owned()];
    /// let images = ImageFolder::open_flat(&val, &labels, &classes)?; // val.txt: "2.jpg cat", "1.jpg dog"
    /// assert_eq!((images.label(0), images.label(1)), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_flat(
        folder: &Path,
        labels: &Path,
        classes: &[String],
    ) -> Result<Self, ImagenetError> {
        check_folder(folder)?;
        let mut names = Names::default();
        walk::flat(&Disk, folder)?
            .iter()
            .for_each(|name| names.push(name));
        let index = Index {
            classes: classes.to_vec(),
            labels: labels::read(labels, &names, classes)?,
            names,
        };
        Ok(Self {
            root: folder.to_owned(),
            index: Arc::new(index),
            by_class: false,
            chosen: None,
        })
    }

    /// The folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// How many images there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.chosen {
            Some(chosen) => chosen.len(),
            None => self.index.names.len(),
        }
    }

    /// Whether there are none, which no folder that opens is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The names of the classes, sorted: a label is a place in it.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.index.classes
    }

    /// The label of an image: the place of its class in [`classes`](Self::classes).
    ///
    /// # Panics
    ///
    /// If there is no such image.
    #[must_use]
    pub fn label(&self, image: usize) -> usize {
        self.index.labels[self.place(image)] as usize
    }

    /// The file of an image.
    ///
    /// # Panics
    ///
    /// If there is no such image.
    #[must_use]
    pub fn path(&self, image: usize) -> PathBuf {
        let place = self.place(image);
        let name = self.index.names.get(place);
        match self.by_class {
            true => {
                let class = &self.index.classes[self.index.labels[place] as usize];
                self.root.join(class).join(name)
            }
            false => self.root.join(name),
        }
    }

    /// An image's path below the folder of the classes, with `/` between its parts.
    pub(super) fn name(&self, image: usize) -> String {
        let place = self.place(image);
        let class = &self.index.classes[self.index.labels[place] as usize];
        format!("{class}/{}", self.index.names.get(place))
    }

    /// An image's place in the folder, of which this may be a part: what its draws depend on.
    pub(crate) fn place(&self, image: usize) -> usize {
        match &self.chosen {
            Some(chosen) => chosen[image] as usize,
            None => image,
        }
    }

    /// The part of it with these images.
    pub(super) fn choose(&self, images: Vec<u32>) -> Self {
        let places = images
            .into_iter()
            .map(|image| self.place(image as usize) as u32);
        Self {
            chosen: Some(places.collect()),
            ..self.clone()
        }
    }
}

/// Without a million names.
impl fmt::Debug for ImageFolder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("ImageFolder");
        shown.field("root", &self.root);
        shown.field("images", &self.len());
        shown.field("classes", &self.classes().len());
        shown.finish_non_exhaustive()
    }
}

pub(super) fn check_folder(path: &Path) -> Result<(), ImagenetError> {
    let metadata = path.metadata().map_err(ImagenetError::unreadable(path))?;
    match metadata.is_dir() {
        true => Ok(()),
        false => Err(ImagenetError::NotAFolder {
            path: path.to_owned(),
        }),
    }
}
