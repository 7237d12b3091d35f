//! Writes a folder of the Hugging Face Hub again, with other numbers in some tensors.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use burn::tensor::{Bytes, DType, Shape, TensorData};
use safetensors::tensor::TensorInfo;

use super::{
    hub,
    tensor_file::{self, burn_dtype},
};
use crate::error::TrainError;

/// The kinds of files beside weights: configurations, tokenizers, templates.
const KINDS: [&str; 5] = ["jinja", "json", "model", "tiktoken", "txt"];
/// Bytes that are copied at once.
const PIECE: u64 = 1 << 24;

/// What a tensor becomes. The numbers are floats, converted to the file's type.
#[derive(Debug)]
pub enum Change {
    /// These numbers.
    To(TensorData),
    /// The sum of the file's numbers and these, in f32.
    Plus(TensorData),
}

/// Writes the folder `from` to the new folder `to`: the same files with the same tensors in the same types
/// and places, and configuration, tokenizer and templates. `change` says what a tensor becomes, by its
/// name; if nothing, its bytes are copied. Tensors are read and written one at a time.
///
/// ```
/// use burn::tensor::TensorData;
/// use stovepipe_train::{Weights, weights::{Change, rewrite_folder}};
/// # use burn::tensor::Device;
/// # use stovepipe_pipeline::Pipeline;
/// # use stovepipe_train::{example::Dense, save_model};
/// # let folder = tempfile::tempdir()?;
/// # let (from, to) = (folder.path().join("from"), folder.path().join("to"));
/// # std::fs::create_dir(&from)?;
/// # let pipeline = Pipeline::builder(vec![Dense::new(4, 3)]).devices([Device::flex()]).build()?;
/// # save_model(&pipeline, from.join("model.safetensors"))?;
/// rewrite_folder(&from, &to, |name| {
///     let ones = TensorData::new(vec![1.0_f32; 3], [3]);
///     Ok((name == "layers.0.linear.bias").then_some(Change::Plus(ones)))
/// })?;
/// assert_eq!(Weights::open(&to)?.shape("layers.0.linear.bias"), Some(&[3][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If `to` exists, a file cannot be read or written, a change has another shape, or `change` fails.
pub fn rewrite_folder(
    from: &Path,
    to: &Path,
    mut change: impl FnMut(&str) -> Result<Option<Change>, TrainError>,
) -> Result<(), TrainError> {
    let shards = hub::paths(from)?;
    fs::create_dir(to).map_err(TrainError::file(to))?;
    let beside = fs::read_dir(from).map_err(TrainError::file(from))?;
    for entry in beside {
        let path = entry.map_err(TrainError::file(from))?.path();
        let kind = path.extension().and_then(|kind| kind.to_str());
        if path.is_file() && kind.is_some_and(|kind| KINDS.contains(&kind)) {
            let target = to.join(path.file_name().unwrap_or_default());
            fs::copy(&path, &target).map_err(TrainError::file(&target))?;
        }
    }
    for path in shards {
        let target = to.join(path.file_name().unwrap_or_default());
        Shard::open(path)?.rewrite(&target, &mut change)?;
    }
    Ok(())
}

struct Shard {
    path: PathBuf,
    file: File,
    /// Where the tensors begin.
    start: u64,
    /// By their places.
    tensors: Vec<(String, TensorInfo)>,
}

impl Shard {
    fn open(path: PathBuf) -> Result<Self, TrainError> {
        let mut file = File::open(&path).map_err(TrainError::file(&path))?;
        let (metadata, start) =
            tensor_file::header(&mut file).map_err(|error| tensor_file::damaged(&path, error))?;
        let tensors = metadata.tensors().into_iter();
        let mut tensors: Vec<_> = tensors.map(|(name, info)| (name, info.clone())).collect();
        tensors.sort_by_key(|(_, info)| info.data_offsets);
        Ok(Self {
            path,
            file,
            start,
            tensors,
        })
    }

    fn rewrite(
        mut self,
        target: &Path,
        change: &mut impl FnMut(&str) -> Result<Option<Change>, TrainError>,
    ) -> Result<(), TrainError> {
        let failed = |error| TrainError::file(target)(error);
        let mut output = File::create_new(target).map_err(failed)?;
        self.copy(0, self.start, &mut output).map_err(failed)?;
        for (name, info) in std::mem::take(&mut self.tensors) {
            let (from, to) = info.data_offsets;
            let (from, size) = (self.start + from as u64, (to - from) as u64);
            match change(&name)? {
                None => self.copy(from, size, &mut output).map_err(failed)?,
                Some(change) => {
                    let bytes = self.changed(&name, &info, change)?;
                    output.write_all(&bytes).map_err(failed)?;
                }
            }
        }
        output.sync_all().map_err(failed)
    }

    fn copy(&mut self, from: u64, size: u64, output: &mut File) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(from))?;
        let mut left = size;
        while left > 0 {
            let piece = left.min(PIECE);
            let copied = io::copy(&mut (&self.file).take(piece), output)?;
            if copied < piece {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            left -= piece;
        }
        Ok(())
    }

    /// The bytes of a changed tensor, in the type that it has in the file.
    fn changed(
        &mut self,
        name: &str,
        info: &TensorInfo,
        change: Change,
    ) -> Result<Vec<u8>, TrainError> {
        let wrong = |reason: String| TrainError::format(&self.path, format!("{name} {reason}"));
        let dtype = burn_dtype(info.dtype).filter(DType::is_float);
        let dtype = dtype.ok_or_else(|| wrong(format!("is {:?}, not floats", info.dtype)))?;
        let shape = Shape::from(info.shape.clone());
        let data = match change {
            Change::To(data) if *data.shape() == shape => data,
            Change::Plus(data) if *data.shape() == shape => {
                let (from, to) = info.data_offsets;
                let from = self.start + from as u64;
                let mut bytes = vec![0; to - info.data_offsets.0];
                let read = (self.file.seek(SeekFrom::Start(from)))
                    .and_then(|_| self.file.read_exact(&mut bytes));
                read.map_err(TrainError::file(&self.path))?;
                let own = TensorData::try_from_bytes(Bytes::from_bytes_vec(bytes), shape, dtype);
                let own = own.map_err(|error| wrong(error.to_string()))?;
                let sum = own
                    .iter::<f32>()
                    .zip(data.iter::<f32>())
                    .map(|(own, more)| own + more);
                TensorData::new(sum.collect::<Vec<f32>>(), data.shape().clone())
            }
            Change::To(data) | Change::Plus(data) => {
                return Err(wrong(format!("is {shape:?}, not {:?}", data.shape())));
            }
        };
        let (bytes, ..) = data.convert_dtype(dtype).into_parts();
        Ok(bytes.to_vec())
    }
}
