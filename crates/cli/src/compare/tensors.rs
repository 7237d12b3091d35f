//! The first tensor in which two models or checkpoints differ.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use safetensors::{
    Dtype,
    tensor::{Metadata, TensorInfo},
};
use stovepipe::{schedule::count, train::checkpoint::Checkpoint};

use crate::error::CliError;

/// How the names of a checkpoint's files begin, in the order in which they are compared, and what they hold.
const PARTS: [(&str, &str); 4] = [
    ("model", ""),
    ("averaged", "the averaged weights, "),
    ("optimizer", "the optimizer's state, "),
    ("gradients", "the gradients that wait for an update, "),
];

/// The largest header that safetensors allow, in bytes.
const MOST_HEADER: u64 = 100_000_000;

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

/// A tensor in a file, which may be larger than memory: tensors are read one at a time.
struct Stored<'a> {
    path: &'a Path,
    /// Where the bytes of the file's tensors begin.
    start: u64,
    info: TensorInfo,
}

impl Stored<'_> {
    /// Reads its bytes.
    fn bytes(&self) -> Result<Vec<u8>, CliError> {
        let (from, to) = self.info.data_offsets;
        let mut bytes = vec![0; to - from];
        let read = File::open(self.path).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.start + from as u64))?;
            file.read_exact(&mut bytes)
        });
        read.map_err(CliError::file(self.path))?;
        Ok(bytes)
    }
}

/// The tensors of a model, which may lie in several files, by their names.
fn stored(files: &[PathBuf]) -> Result<BTreeMap<String, Stored<'_>>, CliError> {
    let mut all = BTreeMap::new();
    for path in files {
        let (metadata, start) = header(path).map_err(CliError::file(path))?;
        all.extend(metadata.tensors().into_iter().map(|(name, info)| {
            let info = info.clone();
            (name, Stored { path, start, info })
        }));
    }
    Ok(all)
}

/// The table at the beginning of a file, and its length.
fn header(path: &Path) -> io::Result<(Metadata, u64)> {
    let mut file = File::open(path)?;
    let all = file.metadata()?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MOST_HEADER {
        return Err(io::Error::other("not safetensors"));
    }
    let start = 8 + length;
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header)?;
    let metadata: Metadata = serde_json::from_slice(&header)?;
    if start.checked_add(metadata.data_len() as u64) != Some(all) {
        return Err(io::Error::other("cut off, or longer than its header says"));
    }
    Ok((metadata, start))
}

/// Says in which tensor two models first differ, in the order of layers, if they do. Each may lie in several files.
pub fn first_other_tensor(models: [&[PathBuf]; 2]) -> Result<Option<String>, CliError> {
    let [first, second] = [stored(models[0])?, stored(models[1])?];
    let mut names: Vec<_> = first.keys().chain(second.keys()).collect();
    names.sort_by_key(|name| in_order(name));
    names.dedup();
    for name in names {
        let said = match (first.get(name), second.get(name)) {
            (Some(first), Some(second)) => difference(first, second)?,
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

fn difference(first: &Stored, second: &Stored) -> Result<Option<String>, CliError> {
    let kind = |stored: &Stored| format!("{:?} {:?}", stored.info.dtype, stored.info.shape);
    let dtype = first.info.dtype;
    if dtype != second.info.dtype || first.info.shape != second.info.shape {
        return Ok(Some(format!("{} and {}", kind(first), kind(second))));
    }
    let [first, second] = [first.bytes()?, second.bytes()?];
    if first == second {
        return Ok(None);
    }
    let size = (dtype.bitsize() / 8).max(1);
    let all = first.len() / size;
    let pairs = first.chunks(size).zip(second.chunks(size));
    let mut differ = (pairs.enumerate()).filter(|(_, (first, second))| first != second);
    let Some((index, (one, other))) = differ.next() else {
        return Ok(None);
    };
    let others = count(1 + differ.count(), "number");
    let mut text = format!("{others} of {all}, the first at {index}");
    if dtype == Dtype::F32 {
        let number = |bytes: &[u8]| bytes.try_into().map_or(f32::NAN, f32::from_le_bytes);
        text += &format!(": {} and {}", number(one), number(other));
    }
    Ok(Some(text))
}
