//! Models as files: safetensors, named by layer.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use burn::{
    module::Module,
    store::{ModuleSnapshot, SafetensorsStore},
};
use stovepipe_pipeline::{Layer, Pipeline};

use crate::{error::TrainError, other_tensors::OtherTensors};

/// Loads what [`save_model`] saved, under any number of stages.
///
/// # Errors
///
/// If the file cannot be read, or is of another model: tensors are missing, there are others, or some have other shapes. The
/// pipeline may then have some of the file's.
pub fn load_model<L: Layer>(pipeline: &mut Pipeline<L>, path: &Path) -> Result<(), TrainError> {
    // What does not fit is said by us, tensor by tensor.
    let mut store = SafetensorsStore::from_file(path)
        .skip_enum_variants(true)
        .validate(false)
        .allow_partial(true);
    let result = (pipeline.load_from(&mut store)).map_err(|error| TrainError::Format {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    match OtherTensors::of(result) {
        None => Ok(()),
        Some(tensors) => Err(TrainError::OtherModel {
            path: path.to_owned(),
            tensors: tensors.into(),
        }),
    }
}

/// Saves a pipeline's parameters and statistics as safetensors, named by layer: `layers.3.…`.
///
/// # Errors
///
/// If the file cannot be written.
pub fn save_model<L: Layer>(pipeline: &Pipeline<L>, path: PathBuf) -> Result<(), TrainError> {
    // Burn keeps the permissions of a file that it overwrites; one of its own is for the owner alone.
    File::create(&path).map_err(TrainError::file(&path))?;
    // The metadata that Burn adds has no fixed order, and equal models should be equal files.
    let mut store = SafetensorsStore::from_file(&path)
        .clear_metadata()
        .skip_enum_variants(true)
        .overwrite(true);
    (pipeline.valid().save_into(&mut store)).map_err(|error| TrainError::Format {
        path,
        reason: error.to_string(),
    })
}
