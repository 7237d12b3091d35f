//! Named tensors in safetensors files.

use std::{
    borrow::Cow,
    cell::RefCell,
    fmt::Display,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use burn::{
    optim::StateSink,
    store::{
        bridge,
        burn_pack::{self, Error, Scalar},
    },
    tensor::{AllocationProperty, BoolStore, Bytes, DType, Shape, TensorData},
};
use safetensors::{Dtype, SafeTensorError, tensor::Metadata};
use stovepipe_pipeline::caught;

use super::{burnpack, format::FileMetadata};
use crate::error::TrainError;

/// The largest header that the format allows, in bytes.
const MOST_HEADER: u64 = 100_000_000;

/// Writes tensors, one at a time: as safetensors, if the name does not say otherwise.
pub(crate) fn write(
    path: &Path,
    tensors: Vec<burn_pack::Tensor>,
    metadata: Option<(&str, &str)>,
) -> Result<(), TrainError> {
    if burnpack::is_named(path) {
        return burnpack::write(path, tensors, metadata);
    }
    let failed = RefCell::new(None);
    let views = tensors.iter().map(|tensor| {
        let dtype = dtype_of(tensor.dtype)?;
        let view = View {
            tensor,
            dtype,
            failed: &failed,
        };
        Ok((&tensor.name, view))
    });
    let views = views.collect::<Result<Vec<_>, String>>();
    let views = views.map_err(|reason| TrainError::format(path, reason))?;
    write_views(path, views, metadata, &failed)
}

/// The same of tensors in the host's memory.
pub(crate) fn write_copies(
    path: &Path,
    tensors: &[HostTensor],
    metadata: Option<(&str, &str)>,
) -> Result<(), TrainError> {
    let views = tensors.iter().map(|own| (&own.name, own));
    write_views(path, views, metadata, &RefCell::default())
}

fn write_views<N, V>(
    path: &Path,
    views: impl IntoIterator<Item = (N, V)>,
    metadata: Option<(&str, &str)>,
    failed: &RefCell<Option<String>>,
) -> Result<(), TrainError>
where
    N: AsRef<str> + Ord + Display,
    V: safetensors::View,
{
    // The library replaces the file by a private one. What is there may be a link to that of a checkpoint,
    // and stays as it is.
    let is_new = !path.exists();
    let opened = File::options().create(true).append(true).open(path);
    let usual = opened.and_then(|file| file.metadata());
    let usual = usual.map_err(TrainError::file(path))?.permissions();
    // One pair at most: the library would write several in any order.
    let metadata =
        metadata.map(|(key, value)| FileMetadata::from([(key.to_owned(), value.to_owned())]));
    let written = safetensors::serialize_to_file(views, metadata, path);
    let written = match (failed.take(), written) {
        (Some(reason), _) => Err(TrainError::format(path, reason)),
        (None, Err(SafeTensorError::IoError(error))) => Err(TrainError::file(path)(error)),
        (None, Err(error)) => Err(TrainError::format(path, error)),
        (None, Ok(())) => fs::set_permissions(path, usual).map_err(TrainError::file(path)),
    };
    written.inspect_err(|_| {
        if is_new {
            let _ = fs::remove_file(path);
        }
    })
}

/// A tensor in the host's memory.
pub(crate) struct HostTensor {
    name: String,
    dtype: Dtype,
    shape: Shape,
    bytes: Bytes,
}

impl HostTensor {
    /// Reads a tensor. Errors are those of the file `path`, which it is to be written to.
    pub(crate) fn read(tensor: burn_pack::Tensor, path: &Path) -> Result<Self, TrainError> {
        let own = tensor.name.clone();
        let read = tensor.into_parts().map_err(|error| error.to_string());
        let read = read.and_then(|(name, dtype, shape, _, bytes)| {
            let dtype = dtype_of(dtype)?;
            // Bytes of a GPU are otherwise read when they are written, and are then those of a later step.
            let bytes = match bytes.property() {
                AllocationProperty::Device => {
                    let read = caught(|| bytes.to_vec());
                    Bytes::from_bytes_vec(read.map_err(|panicked| panicked.message)?)
                }
                _ => bytes,
            };
            Ok(Self {
                name,
                dtype,
                shape,
                bytes,
            })
        });
        read.map_err(|reason| TrainError::format(path, format!("{own}: {reason}")))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

impl safetensors::View for &HostTensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// A tensor that is read when it is written.
struct View<'a> {
    tensor: &'a burn_pack::Tensor,
    dtype: Dtype,
    /// Why a tensor could not be read: the library asks for bytes alone.
    failed: &'a RefCell<Option<String>>,
}

impl safetensors::View for View<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.tensor.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let read = |bytes: Bytes| bytes.try_into_vec().unwrap_or_else(|bytes| bytes.to_vec());
        Cow::Owned(self.tensor.to_bytes().map(read).unwrap_or_else(|error| {
            let name = &self.tensor.name;
            (self.failed.borrow_mut()).get_or_insert(format!("{name}: {error}"));
            vec![0; self.data_len()]
        }))
    }

    fn data_len(&self) -> usize {
        self.tensor.byte_len()
    }
}

/// An optimizer's state as tensors. A number is one without dimensions, as in PyTorch.
pub(crate) fn of_state(state: StateSink) -> Vec<burn_pack::Tensor> {
    let numbers = state.scalars.into_iter().map(|(name, number)| {
        let (dtype, bytes) = match number {
            Scalar::Int(number) => (DType::I64, number.to_le_bytes().to_vec()),
            Scalar::UInt(number) => (DType::U64, number.to_le_bytes().to_vec()),
            Scalar::Float(number) => (DType::F64, number.to_le_bytes().to_vec()),
            Scalar::Bool(number) => (DType::Bool(BoolStore::Native), vec![number.into()]),
        };
        let bytes = Bytes::from_bytes_vec(bytes);
        burn_pack::Tensor::new(name, dtype, Vec::<usize>::new(), None, bytes)
    });
    let tensors = state.tensors.into_iter();
    let tensors = tensors.map(|(name, data)| bridge::from_data(data, name, None));
    tensors.chain(numbers).collect()
}

/// Reads those tensors and numbers of a file whose names are `needed`.
pub(crate) fn read<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = &'a burn_pack::Tensor>,
    needed: impl Fn(&str) -> bool,
) -> Result<StateSink, TrainError> {
    let mut content = StateSink::default();
    for tensor in tensors.into_iter().filter(|tensor| needed(&tensor.name)) {
        let (name, dtype, shape, _, bytes) =
            (tensor.clone().into_parts()).map_err(|error| TrainError::format(path, error))?;
        match number(&shape, dtype, &bytes) {
            Some(number) => content.scalars.push((name, number)),
            None => {
                let data = TensorData::try_from_bytes(bytes, shape, dtype)
                    .map_err(|error| TrainError::format(path, format!("{name}: {error}")))?;
                content.tensors.push((name, data));
            }
        }
    }
    Ok(content)
}

/// The tensors of a file, which are read later, and its metadata.
///
/// Burn's store would read the header again for each tensor, and map the file into memory: this
/// program would crash if another one truncated it.
pub(crate) fn open(path: &Path) -> Result<(Vec<burn_pack::Tensor>, FileMetadata), TrainError> {
    let mut file = File::open(path).map_err(TrainError::file(path))?;
    let (metadata, start) = header(&mut file).map_err(|error| damaged(path, error))?;
    let file = Arc::new(Mutex::new(file));
    let mut tensors = Vec::new();
    for (name, info) in metadata.tensors() {
        let unknown = || format!("{name} is {:?}, which Burn lacks", info.dtype);
        let dtype = burn_dtype(info.dtype).ok_or_else(|| TrainError::format(path, unknown()))?;
        let (file, shape) = (Arc::clone(&file), Shape::from(info.shape.clone()));
        let (from, to) = info.data_offsets;
        let own = shape.clone();
        let read = move || {
            let bytes = bytes(&file, start + from as u64, to - from)
                .map_err(|error| Error::IoError(error.to_string()))?;
            TensorData::try_from_bytes(Bytes::from_bytes_vec(bytes), own.clone(), dtype)
                .map_err(|error| Error::ValidationError(error.to_string()))
        };
        tensors.push(bridge::deferred(name, dtype, shape, None, read));
    }
    Ok((tensors, metadata.metadata().clone().unwrap_or_default()))
}

/// Why a header cannot be read.
pub(super) fn damaged(path: &Path, error: io::Error) -> TrainError {
    match error.kind() {
        io::ErrorKind::InvalidData => TrainError::format(path, error),
        _ => TrainError::file(path)(error),
    }
}

/// The table of a file's tensors, and where their bytes start.
pub(super) fn header(file: &mut File) -> io::Result<(Metadata, u64)> {
    let invalid = |reason: &str| io::Error::new(io::ErrorKind::InvalidData, reason);
    let all = file.metadata()?.len();
    let mut length = [0; 8];
    let start = length.len() as u64;
    if all < start {
        return Err(invalid("cut off before its header"));
    }
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MOST_HEADER.min(all - start) {
        return Err(invalid("cut off within its header, or not safetensors"));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header)?;
    // This also checks the offsets of all tensors.
    let metadata: Metadata = serde_json::from_slice(&header)
        .map_err(|error| invalid(&format!("no safetensors header: {error}")))?;
    let start = start + length;
    if Some(all) != start.checked_add(metadata.data_len() as u64) {
        return Err(invalid("cut off, or longer than its header says"));
    }
    Ok((metadata, start))
}

fn bytes(file: &Mutex<File>, start: u64, count: usize) -> io::Result<Vec<u8>> {
    let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bytes = vec![0; count];
    file.seek(SeekFrom::Start(start))?;
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Burn's types, and those of safetensors.
const TYPES: [(DType, Dtype); 12] = [
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::I64, Dtype::I64),
    (DType::I32, Dtype::I32),
    (DType::I16, Dtype::I16),
    (DType::I8, Dtype::I8),
    (DType::U64, Dtype::U64),
    (DType::U32, Dtype::U32),
    (DType::U8, Dtype::U8),
    (DType::Bool(BoolStore::Native), Dtype::BOOL),
];

fn dtype_of(dtype: DType) -> Result<Dtype, String> {
    let is_flex = dtype == DType::Flex32;
    let stored = if is_flex { DType::F32 } else { dtype };
    let found = TYPES.iter().find(|(burn, _)| *burn == stored);
    let found = found.map(|types| types.1);
    found.ok_or_else(|| format!("safetensors have no {dtype:?}"))
}

pub(super) fn burn_dtype(dtype: Dtype) -> Option<DType> {
    let found = TYPES.iter().find(|(_, stored)| *stored == dtype);
    found.map(|types| types.0)
}

/// The number in a tensor without dimensions, unless it is of another type.
fn number(shape: &Shape, dtype: DType, bytes: &[u8]) -> Option<Scalar> {
    if shape.rank() > 0 {
        return None;
    }
    let eight = || bytes.try_into().ok();
    match dtype {
        DType::I64 => Some(Scalar::Int(i64::from_le_bytes(eight()?))),
        DType::U64 => Some(Scalar::UInt(u64::from_le_bytes(eight()?))),
        DType::F64 => Some(Scalar::Float(f64::from_le_bytes(eight()?))),
        DType::Bool(BoolStore::Native) => Some(Scalar::Bool(bytes == [1])),
        _ => None,
    }
}

/// Runs `save`, which writes tensors to a file or folder. Turns Burn's panic for a lost device into
/// an error.
pub(crate) fn fetched<R>(
    path: &Path,
    save: impl FnOnce() -> Result<R, TrainError>,
) -> Result<R, TrainError> {
    caught(save).unwrap_or_else(|panicked| {
        let (path, cause) = (path.to_owned(), panicked.message);
        Err(TrainError::NotFetched { path, cause })
    })
}
