//! Folders of the Hugging Face Hub: one file of weights, or shards with an index.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use burn::store::burn_pack;
use serde::Deserialize;

use super::{format::FileMetadata, tensor_file};
use crate::error::TrainError;

/// The only file, and the index of several.
const ONE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The file of an adapter of PEFT.
const ADAPTER: &str = "adapter_model.safetensors";

#[derive(Deserialize)]
struct Index {
    /// The file of each tensor.
    weight_map: BTreeMap<String, String>,
}

/// The tensors of a folder's files, and their metadata.
pub(super) fn open(folder: &Path) -> Result<(Vec<burn_pack::Tensor>, FileMetadata), TrainError> {
    let index = read_index(folder)?;
    let (mut all, mut metadata) = (Vec::new(), FileMetadata::new());
    for path in files(folder, index.as_ref())? {
        let (tensors, of_file) = tensor_file::open(&path)?;
        if let Some(index) = &index {
            check(&tensors, &path, index)?;
        }
        all.extend(tensors);
        metadata.extend(of_file);
    }
    Ok((all, metadata))
}

/// The files of weights in a folder, in the order of their names.
pub(super) fn paths(folder: &Path) -> Result<Vec<PathBuf>, TrainError> {
    files(folder, read_index(folder)?.as_ref())
}

fn read_index(folder: &Path) -> Result<Option<Index>, TrainError> {
    let path = folder.join(INDEX);
    if !path.exists() {
        return Ok(None);
    }
    let text = fs::read_to_string(&path).map_err(TrainError::file(&path))?;
    let index = serde_json::from_str(&text).map_err(|error| TrainError::format(&path, error))?;
    Ok(Some(index))
}

fn files(folder: &Path, index: Option<&Index>) -> Result<Vec<PathBuf>, TrainError> {
    let Some(index) = index else {
        let mut paths = [ONE, ADAPTER].map(|name| folder.join(name)).into_iter();
        let path = paths.find(|path| path.exists());
        let reason = format!("it has neither {ONE} nor {INDEX}: save the model as safetensors");
        return Ok(vec![
            path.ok_or_else(|| TrainError::format(folder, reason))?,
        ]);
    };
    let names: BTreeSet<_> = index.weight_map.values().collect();
    let paths = names.into_iter().map(|name| {
        // An index may come from anywhere.
        let mut parts = Path::new(name).components();
        let is_plain = matches!(parts.next(), Some(std::path::Component::Normal(_)));
        let path = folder.join(name);
        match is_plain && parts.next().is_none() {
            false => {
                let reason = format!("its shard {name:?} lies outside of the folder");
                Err(TrainError::format(&folder.join(INDEX), reason))
            }
            true if !path.is_file() => {
                let reason = format!("its shard {name} is missing");
                Err(TrainError::format(&folder.join(INDEX), reason))
            }
            true => Ok(path),
        }
    });
    let paths = paths.collect::<Result<Vec<_>, _>>()?;
    match paths.is_empty() {
        true => Err(TrainError::format(
            &folder.join(INDEX),
            "it names no tensors",
        )),
        false => Ok(paths),
    }
}

/// Checks that a shard has the tensors that the index says.
fn check(tensors: &[burn_pack::Tensor], path: &Path, index: &Index) -> Result<(), TrainError> {
    let file = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let found: BTreeSet<_> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let named = index.weight_map.iter().filter(|(_, shard)| *shard == file);
    let named: BTreeSet<_> = named.map(|(name, _)| name.as_str()).collect();
    if let Some(name) = named.difference(&found).next() {
        let reason = format!("it lacks {name}, which {INDEX} says it has");
        return Err(TrainError::format(path, reason));
    }
    if let Some(name) = found.difference(&named).next() {
        let reason = format!("it has {name}, which {INDEX} does not say");
        return Err(TrainError::format(path, reason));
    }
    Ok(())
}
