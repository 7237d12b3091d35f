use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    ImageFolder, IndexCache,
    folder::check_folder,
    split::{check_share, split},
    walk::{Disk, Folders, is_folder},
};
use crate::ImagenetError;

/// What a folder of training images may be called, in letters of either size.
const TRAIN: &[&str] = &["train", "training", "train_set", "training_set"];

/// What a folder of validation images may be called, likewise; the first that there is counts.
const VALIDATION: &[&str] = &[
    "val",
    "valid",
    "validation",
    "dev",
    "eval",
    "test",
    "testing",
    "val_set",
    "validation_set",
    "test_set",
];

/// What a file of labels may be called that lies in the folder of validation images or beside it.
const LABELS: &[&str] = &[
    "val.txt",
    "val_annotations.txt",
    "val_labels.txt",
    "LOC_val_solution.csv",
    "imagenet_2012_validation_synset_labels.txt",
    "ILSVRC2012_validation_ground_truth.txt",
];

/// How a data set is found in its folder.
#[derive(Clone, Debug, PartialEq)]
pub struct FolderSettings {
    /// Where indices are kept.
    pub cache: IndexCache,
    /// The file with the labels of validation images that do not lie in a folder for each class; otherwise it is looked for. See
    /// [`ImageFolder::open_flat`] for what it may be.
    pub labels: Option<PathBuf>,
    /// The share of each class that is held out as validation images where there is no folder of them: above 0 and below 1.
    pub validation: f64,
}

impl Default for FolderSettings {
    fn default() -> Self {
        Self {
            cache: IndexCache::default(),
            labels: None,
            validation: 0.2,
        }
    }
}

/// The images to train on and those to validate with.
#[derive(Clone, Debug)]
pub struct ImageSets {
    /// The images to train on.
    pub train: ImageFolder,
    /// The images to validate with, of the same classes.
    pub validation: ImageFolder,
    /// The share that these were held out by; none if they have a folder of their own.
    pub held_out: Option<f64>,
}

impl ImageSets {
    /// Opens a data set in one of the layouts that people have.
    ///
    /// - `train` with a folder for each class, and `val` (or `valid`, `validation`, `dev`, `test` and the like) likewise, in
    ///   letters of either size;
    /// - the same, but `val` has no folders for classes: a file of labels says them, see [`ImageFolder::open_flat`]. It is
    ///   `settings.labels`, or in `val` or beside it under a name that data sets give it, such as `val.txt`,
    ///   `val_annotations.txt` or `LOC_val_solution.csv`;
    /// - a folder for each class and nothing else, or `train` without the other: of each class a share is held out as validation
    ///   images. No other folder may be called as those above, but for `train`, which may be a class if images lie in it.
    ///
    /// Which images are held out, their names say: of a class, those whose paths below the folder of the classes (`cat/1.jpg`)
    /// have the lowest SipHash-2-4 (by the key 0), at least one where there are two. So they are the same in every run, and an image
    /// more or less changes the side of one other at most.
    ///
    /// # Errors
    ///
    /// If a folder or the file of labels does not open, classes differ, labels have no images, or the share leaves nothing on
    /// one side.
    ///
    /// # Example
    ///
    /// ```
    /// # mod folder { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/folder/mod.rs")); } use folder::*;
    /// # let data = tempfile::tempdir()?;
    /// # for image in 0..20 { write(data.path(), &[(&*format!("{}/{image}.jpg", ["cat", "dog"][image % 2]), b"")]); }
    /// # let pets = data.path();
    /// use stovepipe_imagenet::{FolderSettings, ImageSets, IndexCache};
    ///
    /// let settings = FolderSettings { cache: IndexCache::Off, ..FolderSettings::default() };
    /// let sets = ImageSets::open(pets, &settings)?; // 20 images in the folders cat and dog
    /// assert_eq!((sets.train.len(), sets.validation.len()), (16, 4));
    /// assert_eq!(sets.held_out, Some(0.2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(folder: &Path, settings: &FolderSettings) -> Result<Self, ImagenetError> {
        check_folder(folder)?;
        check_share(settings.validation)?;
        let folders = folders(folder)?;
        let named = |names| find(&folders, names).map(|name| folder.join(name));
        // A class may be called train: there are pictures of them.
        let has_classes =
            |path: &PathBuf| Disk.list(path).is_ok_and(|found| !found.folders.is_empty());
        match (named(TRAIN).filter(has_classes), named(VALIDATION)) {
            (Some(train), Some(validation)) => {
                let train = ImageFolder::open(&train, &settings.cache)?;
                let validation = open_validation(folder, &validation, train.classes(), settings)?;
                Ok(Self {
                    train,
                    validation,
                    held_out: None,
                })
            }
            (Some(train), None) => Self::hold_out(&train, settings),
            (None, _) => {
                check_no_split(folder, &folders)?;
                Self::hold_out(folder, settings)
            }
        }
    }

    /// Splits the images of class folders.
    fn hold_out(folder: &Path, settings: &FolderSettings) -> Result<Self, ImagenetError> {
        if let Some(labels) = &settings.labels {
            return Err(ImagenetError::LabelsOfNone {
                path: labels.clone(),
                folder: folder.to_owned(),
            });
        }
        let share = settings.validation;
        let (train, validation) = split(&ImageFolder::open(folder, &settings.cache)?, share)?;
        Ok(Self {
            train,
            validation,
            held_out: Some(share),
        })
    }
}

/// The folders in a folder, sorted. What has a name that is no text is none of those that are looked for.
fn folders(path: &Path) -> Result<Vec<String>, ImagenetError> {
    let entries = fs::read_dir(path).map_err(ImagenetError::unreadable(path))?;
    let folders = entries
        .flatten()
        .filter(|entry| is_folder(entry).unwrap_or(false));
    let mut names: Vec<_> = folders
        .filter_map(|folder| folder.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    Ok(names)
}

/// The folder that has one of these names, the first name first.
fn find<'a>(folders: &'a [String], names: &[&str]) -> Option<&'a String> {
    let has = |name: &&str| {
        folders
            .iter()
            .find(|folder| folder.eq_ignore_ascii_case(name))
    };
    names.iter().find_map(has)
}

/// Whether a folder is called as one side of a split is.
pub(super) fn names_a_split(folder: &str) -> bool {
    let mut names = TRAIN.iter().chain(VALIDATION);
    names.any(|name| name.eq_ignore_ascii_case(folder))
}

/// Refuses class folders one of which looks like validation images, or like training images of another layout.
fn check_no_split(path: &Path, folders: &[String]) -> Result<(), ImagenetError> {
    let found = find(folders, VALIDATION).or_else(|| find(folders, &TRAIN[1..]));
    match found {
        None => Ok(()),
        Some(name) => Err(ImagenetError::SplitAmongClasses {
            path: path.to_owned(),
            name: name.clone(),
        }),
    }
}

fn open_validation(
    root: &Path,
    folder: &Path,
    classes: &[String],
    settings: &FolderSettings,
) -> Result<ImageFolder, ImagenetError> {
    if let Some(labels) = &settings.labels {
        return ImageFolder::open_flat(folder, labels, classes);
    }
    let folders = Disk.list(folder)?.folders;
    // Tiny ImageNet has a single folder there, which is no class's.
    let by_class = folders
        .iter()
        .any(|name| classes.binary_search(name).is_ok());
    let mut files = [folder, root]
        .into_iter()
        .flat_map(|place| LABELS.iter().map(move |name| place.join(name)));
    match files.find(|file| !by_class && file.is_file()) {
        Some(labels) => ImageFolder::open_flat(folder, &labels, classes),
        None if folders.is_empty() => Err(ImagenetError::NoLabels {
            path: folder.to_owned(),
            names: LABELS,
        }),
        None => {
            let validation = ImageFolder::open(folder, &settings.cache)?;
            check_classes(&validation, classes)?;
            Ok(validation)
        }
    }
}

fn check_classes(validation: &ImageFolder, classes: &[String]) -> Result<(), ImagenetError> {
    let differs = |class: &str, extra| ImagenetError::OtherClasses {
        path: validation.root().to_owned(),
        class: class.to_owned(),
        extra,
    };
    let found = validation.classes();
    if let Some(extra) = found.iter().find(|class| !classes.contains(class)) {
        return Err(differs(extra, true));
    }
    match classes.iter().find(|class| !found.contains(class)) {
        Some(missing) => Err(differs(missing, false)),
        None => Ok(()),
    }
}
