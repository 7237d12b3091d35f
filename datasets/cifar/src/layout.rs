//! The files in the official archives.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use crate::{CifarError, PIXELS};

#[derive(Debug)]
pub(crate) struct ArchiveLayout {
    /// The data set's name.
    pub name: &'static str,
    /// The archive to download.
    pub archive: &'static str,
    /// The folder that it unpacks to.
    pub folder: &'static str,
    pub train: SplitFiles,
    pub test: SplitFiles,
    /// The label bytes that a record begins with, in order.
    pub labels: &'static [LabelByte],
}

#[derive(Debug)]
pub(crate) struct SplitFiles {
    pub names: &'static [&'static str],
    /// The largest number of records of a file, that of the published one.
    pub records: usize,
}

#[derive(Debug)]
pub(crate) struct LabelByte {
    /// Its name in errors.
    pub kind: &'static str,
    pub classes: usize,
    /// The file with the names of the classes, one per line.
    pub names: &'static str,
}

pub(crate) const CIFAR_10: ArchiveLayout = ArchiveLayout {
    name: "CIFAR-10",
    archive: "cifar-10-binary.tar.gz",
    folder: "cifar-10-batches-bin",
    train: SplitFiles {
        names: &[
            "data_batch_1.bin",
            "data_batch_2.bin",
            "data_batch_3.bin",
            "data_batch_4.bin",
            "data_batch_5.bin",
        ],
        records: 10_000,
    },
    test: one_file(&["test_batch.bin"], 10_000),
    labels: &[label("label", 10, "batches.meta.txt")],
};

pub(crate) const CIFAR_100: ArchiveLayout = ArchiveLayout {
    name: "CIFAR-100",
    archive: "cifar-100-binary.tar.gz",
    folder: "cifar-100-binary",
    train: one_file(&["train.bin"], 50_000),
    test: one_file(&["test.bin"], 10_000),
    labels: &[
        label("coarse label", 20, "coarse_label_names.txt"),
        label("fine label", 100, "fine_label_names.txt"),
    ],
};

const fn one_file(names: &'static [&'static str; 1], records: usize) -> SplitFiles {
    SplitFiles { names, records }
}

const fn label(kind: &'static str, classes: usize, names: &'static str) -> LabelByte {
    LabelByte {
        kind,
        classes,
        names,
    }
}

impl ArchiveLayout {
    /// Bytes of a record.
    pub fn record(&self) -> usize {
        self.labels.len() + PIXELS
    }

    /// The folder with the files: `path`, or the unpacked folder in it.
    pub fn locate(&'static self, path: &Path) -> Result<PathBuf, CifarError> {
        let metadata = fs::metadata(path).map_err(self.failed(path))?;
        if !metadata.is_dir() {
            return Err(CifarError::NotAFolder(path.to_owned(), self.folder));
        }
        let inner = path.join(self.folder);
        if self.files().any(|name| path.join(name).exists()) {
            Ok(path.to_owned())
        } else if inner.is_dir() {
            Ok(inner)
        } else {
            Err(CifarError::OtherFolder {
                path: path.to_owned(),
                name: self.name,
                folder: self.folder,
                archive: self.archive,
            })
        }
    }

    /// The error for a file or folder that cannot be read.
    pub fn failed(&'static self, path: &Path) -> impl FnOnce(std::io::Error) -> CifarError {
        let path = path.to_owned();
        move |source| match source.kind() {
            ErrorKind::NotFound => CifarError::Missing(path, self.archive),
            _ => CifarError::Unreadable(path, source),
        }
    }

    fn files(&self) -> impl Iterator<Item = &'static str> {
        let records = self.train.names.iter().chain(self.test.names).copied();
        records.chain(self.labels.iter().map(|label| label.names))
    }
}
