use std::path::PathBuf;

/// Why a CIFAR folder could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CifarError {
    /// The folder or one of its files is missing.
    #[error(
        "{} is missing: unpack {archive}, the binary version from https://www.cs.toronto.edu/~kriz/cifar.html",
        path.display()
    )]
    Missing {
        /// The folder or file.
        path: PathBuf,
        /// The archive that contains it.
        archive: &'static str,
    },

    /// The path is a file, perhaps the archive.
    #[error("{} is not a folder: give the folder {folder} that the archive unpacks to", path.display())]
    NotAFolder {
        /// The path.
        path: PathBuf,
        /// The folder that the archive unpacks to.
        folder: &'static str,
    },

    /// The folder has no files of the data set.
    #[error(
        "{} has no file of {name}: give the folder {folder} that {archive} unpacks to, or the folder that \
         contains it; {archive} is the binary version from https://www.cs.toronto.edu/~kriz/cifar.html",
        path.display()
    )]
    OtherFolder {
        /// The folder.
        path: PathBuf,
        /// The data set.
        name: &'static str,
        /// The folder that the archive unpacks to.
        folder: &'static str,
        /// The archive.
        archive: &'static str,
    },

    /// A file or folder cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },

    /// A file is empty.
    #[error("{} is empty", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },

    /// A file ends within a record.
    #[error(
        "{} is truncated: record {record}, counted from 0, has {found} of {expected} bytes",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The last record, counted from 0.
        record: usize,
        /// Bytes in the file.
        found: usize,
        /// Bytes of a record.
        expected: usize,
    },

    /// A file is longer than the published one.
    #[error("{} is too long: it must have at most {most} records of {bytes} bytes", path.display())]
    Oversized {
        /// The file.
        path: PathBuf,
        /// The largest number of records.
        most: usize,
        /// Bytes of a record.
        bytes: usize,
    },

    /// A label is out of range.
    #[error(
        "{}: record {record}, counted from 0, has the {kind} {value}, but there are {classes} classes",
        path.display()
    )]
    Label {
        /// The file.
        path: PathBuf,
        /// The record within the file, counted from 0.
        record: usize,
        /// `label`, `coarse label` or `fine label`.
        kind: &'static str,
        /// The label.
        value: u8,
        /// The number of classes.
        classes: usize,
    },

    /// A file has the wrong number of class names.
    #[error("{} has {found} class names, one per line, but there are {expected} classes", path.display())]
    Names {
        /// The file.
        path: PathBuf,
        /// Lines that are not blank.
        found: usize,
        /// Classes.
        expected: usize,
    },

    /// A file of class names is not UTF-8.
    #[error("{} is not UTF-8 text: it must have the names of the classes, one per line", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
}
