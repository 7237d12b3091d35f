use std::{
    io,
    path::{Path, PathBuf},
};

/// Why a folder of images could not be indexed or loaded. Each error names the file or folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImagenetError {
    // Folders
    /// The system would not read a file or folder.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// The path is that of a file.
    #[error("{} is not a folder: give the folder that has train and val, or a folder for each class", path.display())]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },

    /// A folder without class folders.
    #[error(
        "{} has no folders of classes: images lie in a folder for each class, named after it",
        path.display()
    )]
    NoClasses {
        /// The folder.
        path: PathBuf,
    },

    /// A folder of a single class.
    #[error("{} has one class, {class}: there is nothing to tell apart", path.display())]
    OneClass {
        /// The folder.
        path: PathBuf,
        /// The class.
        class: String,
    },

    /// A folder without images, of a class or of a split.
    #[error("{} has no images (files that end in {})", path.display(), crate::index::ENDINGS.join(", "))]
    NoImages {
        /// The folder.
        path: PathBuf,
    },

    /// A folder of several folders with images, where images were expected: a level too many.
    #[error(
        "{} has no images of its own, but {folders} folders with some, such as {first}: if these are the classes, give {}; \
         if they are one class, put its images into one folder",
        path.display(), meant.display()
    )]
    Between {
        /// The folder.
        path: PathBuf,
        /// Folders with images in it.
        folders: usize,
        /// The first of them.
        first: String,
        /// What was probably meant to be opened.
        meant: PathBuf,
    },

    /// A folder among class folders that is called as validation images are.
    #[error(
        "{} has a folder {name}, but none called train with a folder for each class: put the training images there, \
         or rename {name} if it is a class",
        path.display()
    )]
    SplitAmongClasses {
        /// The folder of the class folders.
        path: PathBuf,
        /// The folder in it.
        name: String,
    },

    /// A name that is not Unicode: the index is a text file and could not say it.
    #[error("the name of {} is not valid UTF-8: rename it", path.display())]
    OddName {
        /// The file or folder.
        path: PathBuf,
    },

    /// Folders in folders in folders: most likely a link to a folder around it.
    #[error("{} lies more than {most} folders deep: is there a link that leads back?", path.display())]
    TooDeep {
        /// The folder.
        path: PathBuf,
        /// Folders in each other that a class may have.
        most: usize,
    },

    /// The validation images have other classes than the training images.
    #[error("{} {has} the class {class}, {other}", path.display(), has = if *extra { "has" } else { "lacks" },
        other = if *extra { "which the training images lack" } else { "which the training images have" })]
    OtherClasses {
        /// The folder with the validation images.
        path: PathBuf,
        /// The first class that differs.
        class: String,
        /// Whether it is one more, else it is missing.
        extra: bool,
    },

    /// Nothing is left for a side of the split.
    #[error("{images} images of {} cannot be split: a share of {share} leaves none on one side", path.display())]
    Split {
        /// The folder.
        path: PathBuf,
        /// Images in it.
        images: usize,
        /// The share that is to be validation images.
        share: f64,
    },

    // Label files
    /// Images without class folders, and no file that says their classes.
    #[error(
        "{} has images but no class folders, and there is no file with their labels: name one, or put one of {} beside it",
        path.display(), names.join(", ")
    )]
    NoLabels {
        /// The folder.
        path: PathBuf,
        /// Names under which a file of labels is found by itself.
        names: &'static [&'static str],
    },

    /// A file of labels where no folder of validation images is that they could belong to.
    #[error(
        "{} has no use: there is no folder of validation images, some of the class folders in {} are held out",
        path.display(), folder.display()
    )]
    LabelsOfNone {
        /// The label file.
        path: PathBuf,
        /// The folder of the class folders.
        folder: PathBuf,
    },

    /// A line of a label file that does not say a class, or not of an image that there is.
    #[error("{}, line {line}: {reason}", path.display())]
    Label {
        /// The label file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },

    /// A label file that as a whole does not fit the images.
    #[error("{}: {reason}", path.display())]
    Labels {
        /// The label file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    // Images
    /// A file that is no image, is damaged, or is too large.
    #[error("{}: {reason}", path.display())]
    Image {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// More files than may be skipped that are gone, damaged or no images.
    #[error("more than {most} files cannot be loaded; the last is {}: {reason}", path.display())]
    TooManySkipped {
        /// How many may be skipped.
        most: usize,
        /// The first one that is too many.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    // Loading
    /// A setting that cannot be.
    #[error("{setting} cannot be {value}: {reason}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        reason: &'static str,
    },

    /// A worker could not be started, or failed in a way that is no file's fault.
    #[error("loading images failed: {0}")]
    Worker(String),
}

impl ImagenetError {
    /// The error for a file or folder that could not be read.
    pub(crate) fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Unreadable { path, source }
    }
}
