use std::{
    any::Any,
    error::Error,
    io,
    path::{Path, PathBuf},
};

/// Why a folder of images could not be indexed or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImagenetError {
    // Folders
    /// A file or folder cannot be read.
    #[error("{path}: {1}", path = .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
    /// The path is a file.
    #[error("{} is not a folder: give the folder that has train and val, or a folder for each class", .0.display())]
    NotAFolder(PathBuf),
    /// A folder has no class folders.
    #[error("{} has no class folders: put the images of each class into a folder named after it", .0.display())]
    NoClasses(PathBuf),
    /// A folder has only this class.
    #[error("{path} has only one class, {1}: training needs two or more", path = .0.display())]
    OneClass(PathBuf, String),
    /// A class or a split has no images, which have these endings.
    #[error("{} has no images (files that end in {})", .0.display(), .1.join(", "))]
    NoImages(PathBuf, &'static [&'static str]),
    /// A folder has several folders with images where images were expected: probably one level too many.
    #[error(
        "{} has no images of its own, but {folders} folders with images, such as {first}: if these are the classes, \
         give {}; if they are one class, put its images into one folder",
        path.display(), meant.display()
    )]
    Between {
        /// The folder.
        path: PathBuf,
        /// The number of folders with images.
        folders: usize,
        /// The first of them.
        first: String,
        /// The folder that was probably meant.
        meant: PathBuf,
    },
    /// A folder of class folders has one with the name of a validation split.
    #[error(
        "{path} has a folder {1}, but no folder train with a folder for each class: put the training images there, \
         or rename {1} if it is a class",
        path = .0.display()
    )]
    SplitAmongClasses(PathBuf, String),
    /// A name is not UTF-8 or has a line break, so lists of names, a line each, could not contain it.
    #[error("the name of {:?} is not valid UTF-8 or has a line break: rename it", .0)]
    OddName(PathBuf),
    /// Folders are nested more deeply than this in a class, probably because of a link to a parent.
    #[error("{path} is more than {1} folders deep: is there a link to a parent folder?", path = .0.display())]
    TooDeep(PathBuf, usize),
    /// The validation images have other classes than the training images.
    #[error("{} {} the class {class}, which the training images {}", path.display(),
        if *extra { "has" } else { "lacks" }, if *extra { "lack" } else { "have" })]
    OtherClasses {
        /// The folder of the validation images.
        path: PathBuf,
        /// The first class that differs.
        class: String,
        /// Whether it is an extra class; otherwise it is missing.
        extra: bool,
    },
    /// One side of the split would be empty.
    #[error("the images of {} cannot be split: a share of {share} of {images} leaves none on one side", path.display())]
    Split {
        /// The folder.
        path: PathBuf,
        /// Images in it.
        images: usize,
        /// The share of validation images.
        share: f64,
    },

    // Label files
    /// Validation images have neither class folders nor a label file, which has one of these names.
    #[error(
        "{} has images but no class folders and no label file: name one, or put one of {} beside the folder",
        .0.display(), .1.join(", ")
    )]
    NoLabels(PathBuf, &'static [&'static str]),
    /// A label file was given, but there are no validation images, only this folder of class folders.
    #[error(
        "{} is not used: there is no folder of validation images; a share of the images in {} is held out instead",
        .0.display(), .1.display()
    )]
    LabelsOfNone(PathBuf, PathBuf),
    /// A line of a label file is wrong.
    #[error("{}, line {line}: {reason}", path.display())]
    Label {
        /// The label file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A label file does not match the images, for this reason.
    #[error("{path}: {1}", path = .0.display())]
    Labels(PathBuf, String),

    // Images
    /// An image cannot be decoded.
    #[error("{path}: {1}", path = .0.display())]
    Image(PathBuf, #[source] ImageError),
    /// More files than allowed cannot be loaded; the error is that of the last.
    #[error("more than {0} files cannot be loaded; the last is {1}")]
    TooManySkipped(usize, #[source] Box<ImagenetError>),

    // Loading
    /// A setting is out of its range.
    #[error("{setting} cannot be {value}: {reason}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// Its range.
        reason: &'static str,
    },
    /// A worker thread could not be started.
    #[error("loading images failed: {0}")]
    Thread(#[source] io::Error),
    /// A worker thread panicked.
    #[error("loading images failed: {0}")]
    Worker(String),
}

/// Why an image cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The file is empty.
    #[error("is empty")]
    Empty,
    /// The path is something else than a file.
    #[error("is not a file but a folder, a pipe or a device")]
    NotAFile,
    /// The file is too large.
    #[error("has more than {0} bytes")]
    TooManyBytes(u64),
    /// The format is unknown.
    #[error("is not an image of a known format (JPEG, PNG, WebP, BMP, GIF)")]
    UnknownFormat,
    /// The image's width or height is 0.
    #[error("has no pixels")]
    NoPixels,
    /// The image has too many pixels.
    #[error("claims {width}×{height} pixels, but at most {most} are allowed")]
    TooManyPixels {
        /// The width.
        width: u32,
        /// The height.
        height: u32,
        /// The allowed number of pixels.
        most: u64,
    },
    /// A JPEG has no end marker.
    #[error("is truncated: the JPEG has no end")]
    Truncated,
    /// The decoder failed.
    #[error("{0}")]
    Decoder(#[source] Box<dyn Error + Send + Sync>),
    /// The decoder panicked.
    #[error("the decoder panicked: {0}")]
    Panic(String),
    /// The part of the image to be shown is too long.
    #[error(
        "cannot be resized: the part to show is {length:.0} pixels long, but at most {most} are allowed"
    )]
    TooLong {
        /// The length in pixels.
        length: f64,
        /// The allowed length.
        most: f64,
    },
    /// Resizing failed.
    #[error("cannot be resized: {0}")]
    Resize(#[source] Box<dyn Error + Send + Sync>),
}

impl ImagenetError {
    pub(crate) fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Unreadable(path, source)
    }

    pub(crate) fn image(path: &Path) -> impl FnOnce(ImageError) -> Self {
        let path = path.to_owned();
        move |source| Self::Image(path, source)
    }
}

impl ImageError {
    pub(crate) fn decoder(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Decoder(Box::new(error))
    }

    pub(crate) fn resize(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Resize(Box::new(error))
    }
}

pub(crate) fn check(
    setting: &'static str,
    value: impl ToString,
    is_valid: bool,
    reason: &'static str,
) -> Result<(), ImagenetError> {
    if is_valid {
        return Ok(());
    }
    Err(ImagenetError::Setting {
        setting,
        value: value.to_string(),
        reason,
    })
}

pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message")
}
