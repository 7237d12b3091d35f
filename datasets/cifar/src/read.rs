//! Reads files of records and of class names, up to their largest valid size.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use crate::{
    CifarError,
    layout::{ArchiveLayout, LabelByte, SplitFiles},
};

/// The largest size of a file of class names.
const MOST_TEXT: usize = 1 << 16;

/// All records of a split.
pub(crate) fn records(
    layout: &'static ArchiveLayout,
    folder: &Path,
    files: &SplitFiles,
) -> Result<Vec<u8>, CifarError> {
    let mut records = Vec::new();
    for name in files.names {
        let (path, begin) = (folder.join(name), records.len());
        let most = files.records * layout.record();
        append(&path, most, &mut records).map_err(layout.failed(&path))?;
        check_length(layout, &path, files.records, records.len() - begin)?;
        check_labels(layout, &path, &records[begin..])?;
    }
    Ok(records)
}

/// The names of a label's classes.
pub(crate) fn names(
    layout: &'static ArchiveLayout,
    folder: &Path,
    label: &LabelByte,
) -> Result<Vec<String>, CifarError> {
    let path = folder.join(label.names);
    let mut bytes = Vec::new();
    append(&path, MOST_TEXT, &mut bytes).map_err(layout.failed(&path))?;
    let Ok(text) = String::from_utf8(bytes) else {
        return Err(CifarError::NotText(path));
    };
    // The official file of CIFAR-10 ends with a blank line.
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let names: Vec<_> = lines.map(str::to_owned).collect();
    let (found, expected) = (names.len(), label.classes);
    if found != expected {
        return Err(CifarError::Names {
            path,
            found,
            expected,
        });
    }
    Ok(names)
}

/// Appends at most `most + 1` bytes of a file; one byte more shows that it is too long.
fn append(path: &Path, most: usize, bytes: &mut Vec<u8>) -> io::Result<()> {
    let file = File::open(path)?;
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(most);
    bytes.reserve_exact(length.min(most) + 1);
    file.take(most as u64 + 1).read_to_end(bytes)?;
    Ok(())
}

fn check_length(
    layout: &ArchiveLayout,
    path: &Path,
    most: usize,
    length: usize,
) -> Result<(), CifarError> {
    let (path, bytes) = (path.to_owned(), layout.record());
    let (records, left) = (length / bytes, length % bytes);
    if length == 0 {
        Err(CifarError::Empty(path))
    } else if length > most * bytes {
        Err(CifarError::Oversized { path, most, bytes })
    } else if left > 0 {
        Err(CifarError::Truncated {
            path,
            record: records,
            found: left,
            expected: bytes,
        })
    } else {
        Ok(())
    }
}

fn check_labels(layout: &ArchiveLayout, path: &Path, records: &[u8]) -> Result<(), CifarError> {
    for (index, record) in records.chunks_exact(layout.record()).enumerate() {
        for (label, &value) in layout.labels.iter().zip(record) {
            if usize::from(value) >= label.classes {
                return Err(CifarError::Label {
                    path: path.to_owned(),
                    record: index,
                    kind: label.kind,
                    value,
                    classes: label.classes,
                });
            }
        }
    }
    Ok(())
}
