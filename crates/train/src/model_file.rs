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

use crate::error::TrainError;

/// Loads what [`save_model`] saved, under any number of stages.
///
/// # Errors
///
/// If the file cannot be read, or is of another model.
pub fn load_model<L: Layer>(pipeline: &mut Pipeline<L>, path: &Path) -> Result<(), TrainError> {
    let mut store = SafetensorsStore::from_file(path).skip_enum_variants(true);
    match pipeline.load_from(&mut store) {
        Ok(_) => Ok(()),
        Err(error) => Err(TrainError::Format {
            path: path.to_owned(),
            reason: error.to_string(),
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
