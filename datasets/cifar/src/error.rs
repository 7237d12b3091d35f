use std::path::PathBuf;

/// Why a CIFAR folder could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CifarError {
    /// The folder or one of its files, from this archive, is missing.
    #[error(
        "{path} is missing: unpack {1}, the binary version from https://www.cs.toronto.edu/~kriz/cifar.html",
        path = .0.display()
    )]
    Missing(PathBuf, &'static str),
    /// The path is a file, perhaps the archive, which unpacks to this folder.
    #[error("{path} is not a folder: give the folder {1} that the archive unpacks to", path = .0.display())]
    NotAFolder(PathBuf, &'static str),
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
    #[error("{path}: {1}", path = .0.display())]
    Unreadable(PathBuf, #[source] std::io::Error),
    /// A file is empty.
    #[error("{} is empty", .0.display())]
    Empty(PathBuf),
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
    #[error("{} must have a class name per line for each of {expected} classes, but has {found}", path.display())]
    Names {
        /// The file.
        path: PathBuf,
        /// Lines that are not blank.
        found: usize,
        /// Classes.
        expected: usize,
    },
    /// A file of class names is not UTF-8.
    #[error("{} is not UTF-8 text: it must have the names of the classes, one per line", .0.display())]
    NotText(PathBuf),
}
