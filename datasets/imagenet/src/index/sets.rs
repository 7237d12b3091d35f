use std::{
    fs,
    path::{Path, PathBuf},
};

use siphasher::sip::SipHasher24;

use super::{
    cache::IndexCache,
    conventions::{LABELS, TRAIN, VALIDATION},
    folder::{ImageFolder, check_folder},
    walk::{Disk, Folders, is_folder},
};
use crate::error::{ImagenetError, check};

/// How to open a data set.
#[derive(Clone, Debug, PartialEq)]
pub struct FolderSettings {
    /// Where indices are cached.
    pub cache: IndexCache,
    /// The label file of validation images without class folders; `None` to find it by its name. See
    /// [`ImageFolder::open_flat`] for its forms.
    pub labels: Option<PathBuf>,
    /// The share of each class to hold out if there is no folder of validation images: above 0 and below 1.
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

/// The training images and the validation images.
#[derive(Clone, Debug)]
pub struct ImageSets {
    /// The training images.
    pub train: ImageFolder,
    /// The validation images, of the same classes.
    pub validation: ImageFolder,
    /// The share of held-out images; `None` if there is a folder of validation images.
    pub held_out: Option<f64>,
}

impl ImageSets {
    /// Opens a data set in one of these layouts:
    ///
    /// - `train` with a folder for each class, and the same for `val` (or `valid`, `validation`, `dev`, `test` and similar
    ///   names, in lower or upper case);
    /// - the same, but `val` has no class folders, and a label file has the classes, see [`ImageFolder::open_flat`]. It is
    ///   `settings.labels`, or in or beside `val` with a usual name such as `val.txt`, `val_annotations.txt` or
    ///   `LOC_val_solution.csv`;
    /// - only a folder for each class, or `train` without validation images: a share of each class is held out. No other
    ///   folder may have one of the names above, except for `train` with images in it, which is a class.
    ///
    /// Held-out images are chosen by name: those of a class whose paths below the folder of the classes (`cat/1.jpg`) have
    /// the lowest SipHash-2-4 with key 0, at least one of two. So they are the same in every run, and an added or removed
    /// image moves at most one other image to the other side.
    ///
    /// # Errors
    ///
    /// If a folder or the label file cannot be opened, classes differ, labels have no images, or the share leaves one side
    /// empty.
    pub fn open(folder: &Path, settings: &FolderSettings) -> Result<Self, ImagenetError> {
        check_folder(folder)?;
        let share = settings.validation;
        let (setting, is_valid) = ("the share of validation images", share > 0.0 && share < 1.0);
        check(setting, share, is_valid, "it must be above 0 and below 1")?;
        let folders = folders(folder)?;
        let named = |names| find(&folders, names).map(|name| folder.join(name));
        // A class may be named train.
        let has_classes =
            |path: &PathBuf| Disk.list(path).is_ok_and(|found| !found.folders.is_empty());
        match (named(TRAIN).filter(has_classes), named(VALIDATION)) {
            (Some(train), Some(validation)) => {
                let train = ImageFolder::open(&train, &settings.cache)?;
                let validation = open_validation(folder, &validation, train.classes(), settings)?;
                let held_out = None;
                Ok(Self {
                    train,
                    validation,
                    held_out,
                })
            }
            (Some(train), None) => Self::hold_out(&train, settings),
            (None, _) => {
                check_no_split(folder, &folders)?;
                Self::hold_out(folder, settings)
            }
        }
    }

    fn hold_out(folder: &Path, settings: &FolderSettings) -> Result<Self, ImagenetError> {
        if let Some(labels) = &settings.labels {
            let folder = folder.to_owned();
            return Err(ImagenetError::LabelsOfNone(labels.clone(), folder));
        }
        let share = settings.validation;
        let (train, validation) = split(&ImageFolder::open(folder, &settings.cache)?, share)?;
        let held_out = Some(share);
        Ok(Self {
            train,
            validation,
            held_out,
        })
    }
}

/// The folders in a folder, sorted. Names that are not UTF-8 are ignored here.
fn folders(path: &Path) -> Result<Vec<String>, ImagenetError> {
    let entries = fs::read_dir(path).map_err(ImagenetError::unreadable(path))?;
    let folders = (entries.flatten()).filter(|entry| is_folder(entry).unwrap_or(false));
    let names = folders.filter_map(|folder| folder.file_name().into_string().ok());
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    Ok(names)
}

/// The folder with the first of these names that exists.
fn find<'a>(folders: &'a [String], names: &[&str]) -> Option<&'a String> {
    let has = |name: &&str| (folders.iter()).find(|folder| folder.eq_ignore_ascii_case(name));
    names.iter().find_map(has)
}

fn check_no_split(path: &Path, folders: &[String]) -> Result<(), ImagenetError> {
    let found = find(folders, VALIDATION).or_else(|| find(folders, &TRAIN[1..]));
    found.map_or(Ok(()), |name| {
        Err(ImagenetError::SplitAmongClasses(
            path.to_owned(),
            name.clone(),
        ))
    })
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
    // The folder in Tiny ImageNet's `val` is not a class.
    let by_class = (folders.iter()).any(|name| classes.binary_search(name).is_ok());
    let named = |place: &Path| LABELS.map(|name| place.join(name));
    let mut files = named(folder).into_iter().chain(named(root));
    match files.find(|file| !by_class && file.is_file()) {
        Some(labels) => ImageFolder::open_flat(folder, &labels, classes),
        None if folders.is_empty() => Err(ImagenetError::NoLabels(folder.to_owned(), &LABELS)),
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

/// Holds out the same share of each class, at least one image of two. Returns training images and validation images.
///
/// Images are ranked by a hash of their names. A random generator would depend on the seed of the run, and on the number of
/// images before each.
fn split(all: &ImageFolder, share: f64) -> Result<(ImageFolder, ImageFolder), ImagenetError> {
    let mut sides = [Vec::new(), Vec::new()];
    let images: Vec<u32> = (0..all.len() as u32).collect();
    for class in images.chunk_by(|&a, &b| all.label(a as usize) == all.label(b as usize)) {
        let ranked = ranked(all, class);
        let (validation, train) = ranked.split_at(held_out(share, class.len()));
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
    Ok((train, validation))
}

fn held_out(share: f64, images: usize) -> usize {
    let rounded = (share * images as f64).round() as usize;
    rounded.clamp(1, images.max(2) - 1).min(images - 1)
}

/// Images of a class by the hashes of their names. The hash must stay the same in all releases.
fn ranked(all: &ImageFolder, class: &[u32]) -> Vec<u32> {
    let hasher = SipHasher24::new();
    let hash = |image: u32| hasher.hash(all.name(image as usize).as_bytes());
    let mut ranked: Vec<_> = class.iter().map(|&image| (hash(image), image)).collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, image)| image).collect()
}
