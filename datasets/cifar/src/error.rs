use std::path::PathBuf;

/// Why a CIFAR folder could not be read. Each error names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CifarError {
    /// The folder, or a file that belongs in it, is not there.
    #[error(
        "{} is missing: unpack {archive}, the binary version from https://www.cs.toronto.edu/~kriz/cifar.html",
        path.display()
    )]
    Missing {
        /// The folder or file.
        path: PathBuf,
        /// The archive that has it.
        archive: &'static str,
    },

    /// The path is that of a file, perhaps of the archive.
    #[error("{} is not a folder: give the folder {folder} that the archive unpacks to", path.display())]
    NotAFolder {
        /// The path.
        path: PathBuf,
        /// The folder that the archive unpacks to.
        folder: &'static str,
    },

    /// The folder is empty, or holds something else.
    #[error(
        "{} has no file of {name}: it must be or hold the folder {folder} that {archive}, \
         the binary version from https://www.cs.toronto.edu/~kriz/cifar.html, unpacks to",
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

    /// The system would not read a file or folder.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },

    /// A file without a record.
    #[error("{} is empty", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },

    /// A file that does not end with a record.
    #[error(
        "{} is truncated: record {record}, counted from 0, has {found} of {expected} bytes",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The last record, counted from 0.
        record: usize,
        /// Bytes that are left for it.
        found: usize,
        /// Bytes that it needs.
        expected: usize,
    },

    /// A file that goes on after the last record that it may have.
    #[error("{} is too long: it may have {most} records of {bytes} bytes", path.display())]
    Oversized {
        /// The file.
        path: PathBuf,
        /// Records that it may have.
        most: usize,
        /// Bytes of a record.
        bytes: usize,
    },

    /// A label that is none.
    #[error(
        "{}: record {record}, counted from 0, has the {kind} {value}, but there are {classes} classes",
        path.display()
    )]
    Label {
        /// The file.
        path: PathBuf,
        /// The record within the file, counted from 0.
        record: usize,
        /// Which label: `label`, `coarse label` or `fine label`.
        kind: &'static str,
        /// The label.
        value: u8,
        /// Classes that there are, counted from 0.
        classes: usize,
    },

    /// A file of class names that has too few or too many of them.
    #[error("{} has {found} class names, a line each, but there are {expected} classes", path.display())]
    Names {
        /// The file.
        path: PathBuf,
        /// Lines that are not blank.
        found: usize,
        /// Classes.
        expected: usize,
    },

    /// A file of class names that is no text.
    #[error("{} is no text: it should have the names of the classes, a line each", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
}
