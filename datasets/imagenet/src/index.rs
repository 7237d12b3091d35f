//! What images there are, and of which class each is.

mod cache;
mod folder;
mod labels;
mod names;
mod sets;
mod split;
mod walk;

#[cfg(test)]
mod memory;

pub use cache::IndexCache;
pub use folder::ImageFolder;
pub use sets::{FolderSettings, ImageSets};

use names::Names;

/// How the names of images end, in letters of either size. What a file is, its content says.
pub(crate) const ENDINGS: &[&str] = &["jpg", "jpeg", "png", "webp", "bmp", "gif"];

/// The images of a folder, by name, and their classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Index {
    /// The names of the classes, sorted.
    pub classes: Vec<String>,
    /// The class of each image.
    pub labels: Vec<u32>,
    /// Each image's path in the folder, with `/` between its parts.
    pub names: Names,
}

/// What was seen of the folders when they were read: enough to tell whether they changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamps {
    /// Each folder that was read, by its path in the outermost, with the time of its last change.
    pub folders: Vec<(String, Nanoseconds)>,
    /// When reading began.
    pub read: Nanoseconds,
}

/// A time, as nanoseconds since 1970.
pub(crate) type Nanoseconds = i128;
