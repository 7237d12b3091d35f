//! The first tensor in which two models or checkpoints differ.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    rc::Rc,
};

use burn::tensor::{DType, TensorData};
use stovepipe::{
    schedule::count,
    train::{Weights, checkpoint::Checkpoint},
};

use crate::error::CliError;

/// How the names of a checkpoint's files begin, in the order in which they are compared, and what they hold.
const PARTS: [(&str, &str); 4] = [
    ("model", ""),
    ("averaged", "the averaged weights, "),
    ("optimizer", "the optimizer's state, "),
    ("gradients", "the gradients that wait for an update, "),
];

/// What comparing two checkpoints shows.
pub enum Compared {
    Same,
    /// The first tensor in which they differ.
    Other(String),
    /// One of them is being removed, or was when the program was killed.
    NotWhole,
}

/// Compares two checkpoints, until they differ or something is missing. Each stage has a file of the optimizer's state:
/// they may be cut differently.
pub fn compare(both: [&Checkpoint; 2]) -> Result<Compared, CliError> {
    let folders = both.map(Checkpoint::path);
    for (part, what) in PARTS {
        let files =
            files_of(folders[0], part).and_then(|own| Ok([own, files_of(folders[1], part)?]));
        let other = files.and_then(|files| first_other_tensor([&files[0], &files[1]]));
        if !folders.into_iter().all(|folder| has_all(folder, part)) {
            return Ok(Compared::NotWhole);
        }
        if let Some(tensor) = other? {
            return Ok(Compared::Other(format!("{what}{tensor}")));
        }
    }
    Ok(Compared::Same)
}

/// Whether a checkpoint has all files of a part that it was made with.
fn has_all(folder: &Path, part: &str) -> bool {
    fs::read_to_string(folder.join("SHA256SUMS")).is_ok_and(|sums| {
        let names = sums.lines().filter_map(|line| line.split("  ").nth(1));
        let mut names = names.filter(|name| name.starts_with(part));
        names.all(|name| folder.join(name).exists())
    })
}

pub fn files(folder: &Path) -> Result<Vec<PathBuf>, CliError> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = entries.map_err(CliError::file(folder))?.into_iter();
    Ok(entries.map(|entry| entry.path()).collect())
}

fn files_of(folder: &Path, part: &str) -> Result<Vec<PathBuf>, CliError> {
    let mut files = files(folder)?;
    files.retain(|file| {
        let name = file.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(part) && name.ends_with(".safetensors"))
    });
    files.sort();
    Ok(files)
}

/// The files of a model by the names of their tensors, which are read one at a time: files may be larger than memory.
fn by_tensor(files: &[PathBuf]) -> Result<BTreeMap<String, Rc<Weights>>, CliError> {
    let mut all = BTreeMap::new();
    for path in files {
        let file = Rc::new(Weights::open(path)?);
        all.extend((file.names()).map(|name| (name.to_owned(), file.clone())));
    }
    Ok(all)
}

/// Says in which tensor two models first differ, in the order of layers, if they do. Each may lie in several files.
pub fn first_other_tensor(models: [&[PathBuf]; 2]) -> Result<Option<String>, CliError> {
    let [first, second] = [by_tensor(models[0])?, by_tensor(models[1])?];
    let mut names: Vec<_> = first.keys().chain(second.keys()).collect();
    names.sort_by_key(|name| in_order(name));
    names.dedup();
    for name in names {
        let said = match (first.get(name), second.get(name)) {
            (Some(first), Some(second)) => difference(first, second, name)?,
            (Some(_), None) => Some("only the first run has it".to_owned()),
            _ => Some("only the second run has it".to_owned()),
        };
        if let Some(said) = said {
            return Ok(Some(format!("{name}: {said}")));
        }
    }
    Ok(None)
}

/// Numbers in names are compared as numbers.
fn in_order(name: &str) -> Vec<(u64, &str)> {
    let parts = name.split('.');
    parts
        .map(|part| part.parse().map_or((u64::MAX, part), |number| (number, "")))
        .collect()
}

fn difference(first: &Weights, second: &Weights, name: &str) -> Result<Option<String>, CliError> {
    let (Some(first), Some(second)) = (first.tensor(name)?, second.tensor(name)?) else {
        return Ok(None);
    };
    let kind = |data: &TensorData| format!("{:?} {:?}", data.dtype(), data.shape().as_slice());
    let dtype = first.dtype();
    if dtype != second.dtype() || first.shape() != second.shape() {
        return Ok(Some(format!("{} and {}", kind(&first), kind(&second))));
    }
    let [first, second] = [first.as_bytes(), second.as_bytes()];
    if first == second {
        return Ok(None);
    }
    let size = dtype.size().max(1);
    let all = first.len() / size;
    let pairs = first.chunks(size).zip(second.chunks(size));
    let mut differ = (pairs.enumerate()).filter(|(_, (first, second))| first != second);
    let Some((index, (one, other))) = differ.next() else {
        return Ok(None);
    };
    let others = count(1 + differ.count(), "number");
    let mut text = format!("{others} of {all}, the first at {index}");
    if dtype == DType::F32 {
        let number = |bytes: &[u8]| bytes.try_into().map_or(f32::NAN, f32::from_le_bytes);
        text += &format!(": {} and {}", number(one), number(other));
    }
    Ok(Some(text))
}
