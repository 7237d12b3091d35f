//! Files of PyTorch's `torch.save`.
//!
//! Burn's reader looks for tensors in the pickle and runs nothing. Two things that only a malicious
//! file has could use up the memory, and are refused: compressed parts, and a huge table of contents.

use std::{fs::File, io::BufReader, path::Path};

use burn::store::{
    bridge, burn_pack,
    pytorch_reader::{PickleValue, PytorchError, PytorchReader},
};
use stovepipe_pipeline::caught;
use zip::{CompressionMethod, ZipArchive, result::ZipResult};

use super::format::Container;
use crate::error::TrainError;

/// The names of weights in files with other things, the most likely first.
const KEYS: [&str; 5] = ["state_dict", "model_state_dict", "model", "net", "module"];
/// The table of contents of an archive.
const CONTENTS: &str = "data.pkl";
/// Its largest size in bytes: of about 50,000 tensors.
const MOST_CONTENTS: u64 = 8 << 20;

/// The tensors of a file. Reads none of them yet.
pub(super) fn open(
    path: &Path,
    container: Container,
) -> Result<Vec<burn_pack::Tensor>, TrainError> {
    // Files may come from anywhere.
    let read = caught(|| {
        if container == Container::Zip {
            check(path)?;
        }
        tensors(path).map_err(|error| error.to_string())
    });
    let tensors = read
        .map_err(|panicked| panicked.message)
        .flatten()
        .map_err(|reason| TrainError::format(path, not_pytorch(&reason)))?;
    if tensors.is_empty() {
        return Err(TrainError::format(path, "it has no tensors"));
    }
    Ok(tensors)
}

fn not_pytorch(reason: &str) -> String {
    format!("not a file of weights from PyTorch's torch.save, or damaged: {reason}")
}

/// Refuses an archive that is larger than its file.
fn check(path: &Path) -> Result<(), String> {
    let entries = entries(path).map_err(|error| error.to_string())?;
    for (name, compression, bytes) in entries {
        if compression != CompressionMethod::Stored {
            return Err(format!("{name} is compressed"));
        }
        if name.ends_with(CONTENTS) && bytes > MOST_CONTENTS {
            let most = MOST_CONTENTS;
            return Err(format!("{name} has {bytes} bytes, more than {most}"));
        }
    }
    Ok(())
}

/// The entries of an archive: names, compression and bytes.
fn entries(path: &Path) -> ZipResult<Vec<(String, CompressionMethod, u64)>> {
    let mut archive = ZipArchive::new(BufReader::new(File::open(path)?))?;
    let mut entries = Vec::with_capacity(archive.len());
    for index in 0..archive.len() {
        let entry = archive.by_index_raw(index)?;
        entries.push((entry.name()?.to_string(), entry.compression(), entry.size()));
    }
    Ok(entries)
}

fn tensors(path: &Path) -> Result<Vec<burn_pack::Tensor>, PytorchError> {
    let reader = match key(PytorchReader::read_pickle_data(path, None)?) {
        Some(key) => PytorchReader::with_top_level_key(path, key)?,
        None => PytorchReader::new(path)?,
    };
    let tensors = reader.into_tensors().into_values();
    Ok(tensors.map(bridge::from_pytorch).collect())
}

/// The name of the weights, unless they are the whole file.
fn key(root: PickleValue) -> Option<&'static str> {
    let PickleValue::Dict(entries) = root else {
        return None;
    };
    let is_inside = |key: &&str| matches!(entries.get(*key), Some(PickleValue::Dict(_)));
    KEYS.into_iter().find(is_inside)
}
