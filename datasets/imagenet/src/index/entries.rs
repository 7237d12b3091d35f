use super::names::Names;

/// The images of a folder, and their classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    /// The names of the classes, sorted.
    pub classes: Vec<String>,
    /// The class of each image.
    pub labels: Vec<u32>,
    /// The path of each image in its class's folder, with `/` between its parts.
    pub names: Names,
}

/// The times of folders when they were read, to notice changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamps {
    /// Each folder, by its path in the root, with the time of its last change.
    pub folders: Vec<(String, Nanoseconds)>,
    /// When reading began.
    pub read: Nanoseconds,
}

/// A time, as nanoseconds since 1970.
pub(super) type Nanoseconds = i128;
