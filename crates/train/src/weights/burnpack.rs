//! Burn's own files of tensors, `.bpk`.

use std::path::Path;

use burn::store::{
    BurnpackStore,
    burn_pack::{EXTENSION, Reader, Tensor, Writer},
};
use stovepipe_pipeline::caught;

use super::tensor_file::{BURN, FORMAT, FileMetadata, PYTORCH};
use crate::error::TrainError;

/// Whether a file of this name is to be one.
pub(super) fn is_named(path: &Path) -> bool {
    path.extension().is_some_and(|own| own == EXTENSION)
}

/// The tensors, which are read later, one at a time. They are laid out as Burn does.
pub(super) fn open(path: &Path) -> Result<(Vec<Tensor>, FileMetadata), TrainError> {
    let read = || {
        let reader = Reader::from_file_exact(path)?;
        let metadata = reader.metadata().clone();
        Ok::<_, burn::store::burn_pack::Error>((reader.into_tensors()?, metadata))
    };
    // The library may not check all that a damaged file says.
    let read = caught(read).map_err(|panicked| TrainError::format(path, panicked.message))?;
    let (tensors, metadata) = read.map_err(|error| TrainError::format(path, error))?;
    let mut metadata: FileMetadata = metadata.into_iter().collect();
    metadata.insert(FORMAT.to_owned(), BURN.to_owned());
    Ok((tensors, metadata))
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
