//! Burn's own files of tensors, `.bpk`.

use std::{fs, io, path::Path, time::SystemTime};

use burn::{
    store::{
        BurnpackStore, bridge,
        burn_pack::{EXTENSION, Error, Reader, Tensor, Writer},
    },
    tensor::{Bytes, TensorData},
};
use stovepipe_pipeline::caught;

use super::format::{BURN, FORMAT, FileMetadata, PYTORCH};
use crate::error::TrainError;

/// Whether a file of this name is to be one.
pub(super) fn is_named(path: &Path) -> bool {
    path.extension()
        .is_some_and(|own| own.eq_ignore_ascii_case(EXTENSION))
}

/// The tensors, which are read later, one at a time. They are laid out as Burn does.
pub(super) fn open(path: &Path) -> Result<(Vec<Tensor>, FileMetadata), TrainError> {
    let seen = look(path).map_err(TrainError::file(path))?;
    let opened = tried(|| {
        let reader = Reader::from_file_exact(path)?;
        let metadata = reader.metadata().clone();
        Ok((reader.into_tensors()?, metadata))
    });
    let (tensors, metadata) = opened.map_err(|error| TrainError::format(path, error))?;
    let mut metadata: FileMetadata = metadata.into_iter().collect();
    metadata.insert(FORMAT.to_owned(), BURN.to_owned());
    let own = tensors.into_iter().map(|tensor| {
        let (name, dtype, shape) = (tensor.name.clone(), tensor.dtype, tensor.shape.clone());
        let path = path.to_owned();
        let read = move || {
            // The library opens the file again for each tensor.
            let now = look(&path).map_err(|error| Error::IoError(error.to_string()))?;
            if now != seen {
                let what = "the file has changed since it was opened";
                return Err(Error::IoError(what.to_owned()));
            }
            let bytes = tried(|| Ok(tensor.to_bytes()?.to_vec()))?;
            let bytes = Bytes::from_bytes_vec(bytes);
            TensorData::try_from_bytes(bytes, tensor.shape.clone(), tensor.dtype)
                .map_err(|error| Error::ValidationError(error.to_string()))
        };
        bridge::deferred(name, dtype, shape, None, read)
    });
    Ok((own.collect(), metadata))
}

/// A file's length, and when it was changed.
fn look(path: &Path) -> io::Result<(u64, Option<SystemTime>)> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.len(), metadata.modified().ok()))
}

/// The library panics if it cannot read.
fn tried<R>(read: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
    caught(read).unwrap_or_else(|panicked| Err(Error::IoError(panicked.message)))
}

/// Writes tensors as Burn does, one at a time, but without the numbers that parameters have in this process: equal
/// models are equal files.
pub(super) fn write(
    path: &Path,
    mut tensors: Vec<Tensor>,
    metadata: Option<(&str, &str)>,
) -> Result<(), TrainError> {
    if metadata == Some((FORMAT, PYTORCH)) {
        let reason =
            "burnpack is Burn's, and has its layout: for PyTorch, give the file another name";
        return Err(TrainError::format(path, reason));
    }
    for tensor in &mut tensors {
        tensor.param_id = None;
    }
    let own = metadata.filter(|&(key, _)| key != FORMAT);
    let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let metadata = BurnpackStore::default_metadata().into_iter().chain(own);
    let writer = metadata.fold(Writer::new(tensors), |writer, (key, value)| {
        writer.with_metadata(&key, &value)
    });
    let written = writer.auto_extension(false).write_to_file(path);
    written.map_err(|error| TrainError::format(path, error))
}
