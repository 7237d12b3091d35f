use std::path::{Path, PathBuf};

use rand::{SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

use super::{
    ImageFolder, IndexCache,
    folder::check_folder,
    walk::{Disk, Folders},
};
use crate::ImagenetError;

/// What a folder of training images may be called.
const TRAIN: &[&str] = &["train", "training"];

/// What a folder of validation images may be called; the first that there is counts.
const VALIDATION: &[&str] = &["val", "valid", "validation", "test"];

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
    /// The share of each class that becomes validation images where there is no folder of them: above 0 and below 1.
    pub validation: f64,
    /// Which images these are.
    pub seed: u64,
}

impl Default for FolderSettings {
    fn default() -> Self {
        Self {
            cache: IndexCache::default(),
            labels: None,
            validation: 0.1,
            seed: 0,
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
}

impl ImageSets {
    /// Opens a data set in one of the layouts that people have.
    ///
    /// - `train` with a folder for each class, and `val` (or `valid`, `validation`, `test`) likewise;
    /// - the same, but `val` has no folders for classes: a file of labels says them, see [`ImageFolder::open_flat`]. It is
    ///   `settings.labels`, or in `val` or beside it under a name that data sets give it, such as `val.txt`,
    ///   `val_annotations.txt` or `LOC_val_solution.csv`;
    /// - a folder for each class and nothing else, or `train` without the other: of each class a share becomes validation images,
    ///   always the same ones for a seed.
    ///
    /// # Errors
    ///
    /// If a folder or the file of labels does not open, classes differ, or the share leaves nothing on one side.
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
    /// let settings = FolderSettings { validation: 0.2, cache: IndexCache::Off, ..FolderSettings::default() };
    /// let sets = ImageSets::open(pets, &settings)?; // 20 images in the folders cat and dog
    /// assert_eq!((sets.train.len(), sets.validation.len()), (16, 4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(folder: &Path, settings: &FolderSettings) -> Result<Self, ImagenetError> {
        check_folder(folder)?;
        let inside = |names: &[&str]| {
            let mut paths = names.iter().map(|name| folder.join(name));
            paths.find(|path| path.is_dir())
        };
        // A class may be called train: there are pictures of them.
        let has_classes =
            |path: &PathBuf| Disk.list(path).is_ok_and(|found| !found.folders.is_empty());
        match (inside(TRAIN).filter(has_classes), inside(VALIDATION)) {
            (Some(train), Some(validation)) => {
                let train = ImageFolder::open(&train, &settings.cache)?;
                let validation = open_validation(folder, &validation, train.classes(), settings)?;
                Ok(Self { train, validation })
            }
            (Some(train), None) => split(&ImageFolder::open(&train, &settings.cache)?, settings),
            (None, _) => split(&ImageFolder::open(folder, &settings.cache)?, settings),
        }
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

/// Takes the same share of each class, at least one image of those that have two.
fn split(all: &ImageFolder, settings: &FolderSettings) -> Result<ImageSets, ImagenetError> {
    let share = settings.validation;
    if !(share > 0.0 && share < 1.0) {
        return Err(ImagenetError::Setting {
            setting: "the share of validation images",
            value: share.to_string(),
            reason: "it must be above 0 and below 1",
        });
    }
    let mut draws = ChaCha8Rng::seed_from_u64(settings.seed);
    let mut sides = [Vec::new(), Vec::new()];
    let images: Vec<u32> = (0..all.len() as u32).collect();
    for class in images.chunk_by(|&a, &b| all.label(a as usize) == all.label(b as usize)) {
        let mut class = class.to_vec();
        class.shuffle(&mut draws);
        let wanted = (share * class.len() as f64).round() as usize;
        let taken = wanted.clamp(1, class.len().max(2) - 1).min(class.len() - 1);
        let (validation, train) = class.split_at(taken);
        sides[0].extend_from_slice(train);
        sides[1].extend_from_slice(validation);
    }
    if sides.iter().any(Vec::is_empty) {
        return Err(ImagenetError::Split {
            path: all.root().to_owned(),
            images: all.len(),
            share,
        });
    }
    let [train, validation] = sides.map(|mut images| {
        images.sort_unstable();
        all.choose(images)
    });
    Ok(ImageSets { train, validation })
}
