//! What PyTorch's `torch.save` wrote.
//!
//! Burn's reader looks for tensors in the pickle and runs nothing. It bounds what it reads but for two things that only a
//! file made to do harm has, and which are refused before: parts that are compressed, and so may be any size, and a table
//! of contents of which each byte is a Python object.

use std::{fs::File, io::BufReader, path::Path};

use burn::store::{
    bridge, burn_pack,
    pytorch_reader::{PickleValue, PytorchError, PytorchReader},
};
use stovepipe_pipeline::caught;
use zip::{CompressionMethod, ZipArchive, result::ZipResult};

use super::kind::Container;
use crate::error::TrainError;

/// Under which name programs save weights next to other things, the likeliest first.
const KEYS: [&str; 5] = ["state_dict", "model_state_dict", "model", "net", "module"];
/// The table of contents in an archive.
const CONTENTS: &str = "data.pkl";
/// Bytes that it may have: those of about 50,000 tensors.
const MOST_CONTENTS: u64 = 8 << 20;

/// The tensors of a file, none of which is read yet.
pub(super) fn open(
    path: &Path,
    container: Container,
) -> Result<Vec<burn_pack::Tensor>, TrainError> {
    // The reader is not known to panic, but files may come from anywhere.
    let read = caught(|| {
        if container == Container::Zip {
            check(path)?;
        }
        tensors(path).map_err(|error| error.to_string())
    });
    let tensors = read
        .flatten()
        .map_err(|reason| TrainError::format(path, not_pytorch(&reason)))?;
    match tensors.is_empty() {
        true => Err(TrainError::format(path, "it holds no tensors")),
        false => Ok(tensors),
    }
}

fn not_pytorch(reason: &str) -> String {
    format!("not a file of weights that PyTorch's torch.save wrote, or damaged: {reason}")
}

/// Refuses an archive that would become larger than it is.
fn check(path: &Path) -> Result<(), String> {
    let entries = entries(path).map_err(|error| error.to_string())?;
    for (name, compression, bytes) in entries {
        if compression != CompressionMethod::Stored {
            return Err(format!("{name} is compressed"));
        }
        if name.ends_with(CONTENTS) && bytes > MOST_CONTENTS {
            return Err(format!(
                "{name} has {bytes} bytes, and may have {MOST_CONTENTS}"
            ));
        }
    }
    Ok(())
}

/// What an archive holds: names, how they are compressed, and how many bytes they are.
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

/// Where the weights are, if not on top.
fn key(root: PickleValue) -> Option<&'static str> {
    let PickleValue::Dict(entries) = root else {
        return None;
    };
    let is_inside = |key: &&str| matches!(entries.get(*key), Some(PickleValue::Dict(_)));
    KEYS.into_iter().find(is_inside)
}
