//! Named tensors in safetensors files.

use std::{
    borrow::Cow,
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
    tensor::{BoolStore, Bytes, DType, Shape, TensorData},
};
use safetensors::{Dtype, View, tensor::Metadata};

use crate::error::TrainError;

/// The key of the metadata for a file's convention, and its value for Burn's.
pub(crate) const FORMAT: &str = "format";
pub(crate) const BURN: &str = "burn";
/// The largest header that the format allows, in bytes.
const MOST_HEADER: u64 = 100_000_000;

/// Writes tensors and numbers. A number is a tensor without dimensions, as in PyTorch.
pub(crate) fn write(path: &Path, content: StateSink) -> Result<(), TrainError> {
    let numbers = content.scalars.into_iter().map(|(name, number)| {
        let (dtype, bytes) = match number {
            Scalar::Int(number) => (Dtype::I64, number.to_le_bytes().to_vec()),
            Scalar::UInt(number) => (Dtype::U64, number.to_le_bytes().to_vec()),
            Scalar::Float(number) => (Dtype::F64, number.to_le_bytes().to_vec()),
            Scalar::Bool(number) => (Dtype::BOOL, vec![number.into()]),
        };
        let entry = Entry {
            shape: Vec::new(),
            bytes: Bytes::from_bytes_vec(bytes),
            dtype,
        };
        Ok((name, entry))
    });
    let tensors = content
        .tensors
        .into_iter()
        .map(|(name, data)| Ok((name, Entry::new(data)?)));
    let entries = tensors
        .chain(numbers)
        .collect::<Result<Vec<_>, String>>()
        .map_err(|reason| TrainError::format(path, reason))?;
    // The library replaces the file by a private one.
    let usual = File::create(path).and_then(|file| file.metadata());
    let usual = usual.map_err(TrainError::file(path))?.permissions();
    safetensors::serialize_to_file(entries, None, path).map_err(|error| match error {
        safetensors::SafeTensorError::IoError(error) => TrainError::file(path)(error),
        other => TrainError::format(path, other),
    })?;
    fs::set_permissions(path, usual).map_err(TrainError::file(path))
}

/// Reads the tensors and numbers of a file whose names are `needed`.
pub(crate) fn read(path: &Path, needed: impl Fn(&str) -> bool) -> Result<StateSink, TrainError> {
    let (tensors, _) = open(path)?;
    let mut content = StateSink::default();
    for tensor in tensors.into_iter().filter(|tensor| needed(&tensor.name)) {
        let (name, dtype, shape, _, bytes) =
            (tensor.into_parts()).map_err(|error| TrainError::format(path, error))?;
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

/// The tensors of a file, which are read later, and the format that its metadata name.
///
/// Burn's store would read the header again for each tensor, and map the file into memory: this
/// program would crash if another one truncated it.
pub(crate) fn open(path: &Path) -> Result<(Vec<burn_pack::Tensor>, Option<String>), TrainError> {
    let mut file = File::open(path).map_err(TrainError::file(path))?;
    let (metadata, start) = header(&mut file).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => TrainError::format(path, error),
        _ => TrainError::file(path)(error),
    })?;
    let file = Arc::new(Mutex::new(file));
    let mut tensors = Vec::new();
    for (name, info) in metadata.tensors() {
        let dtype = burn_dtype(info.dtype).ok_or_else(|| {
            TrainError::format(
                path,
                format!("{name} is {:?}, which Burn lacks", info.dtype),
            )
        })?;
        let (file, shape) = (Arc::clone(&file), Shape::from(info.shape.clone()));
        let (from, to) = info.data_offsets;
        tensors.push(bridge::deferred(
            name,
            dtype,
            shape.clone(),
            None,
            move || {
                let bytes = bytes(&file, start + from as u64, to - from)
                    .map_err(|error| Error::IoError(error.to_string()))?;
                TensorData::try_from_bytes(Bytes::from_bytes_vec(bytes), shape.clone(), dtype)
                    .map_err(|error| Error::ValidationError(error.to_string()))
            },
        ));
    }
    let format = metadata.metadata().as_ref();
    Ok((tensors, format.and_then(|all| all.get(FORMAT)).cloned()))
}

/// The table of a file's tensors, and where their bytes start.
fn header(file: &mut File) -> io::Result<(Metadata, u64)> {
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

/// Reads bytes of a file.
fn bytes(file: &Mutex<File>, start: u64, count: usize) -> io::Result<Vec<u8>> {
    let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bytes = vec![0; count];
    file.seek(SeekFrom::Start(start))?;
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A tensor to write.
struct Entry {
    shape: Vec<usize>,
    bytes: Bytes,
    dtype: Dtype,
}

impl Entry {
    fn new(data: TensorData) -> Result<Self, String> {
        let (bytes, shape, dtype) = data.into_parts();
        Ok(Self {
            shape: shape.iter().copied().collect(),
            bytes,
            dtype: dtype_of(dtype)?,
        })
    }
}

impl View for Entry {
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
    let stored = if dtype == DType::Flex32 {
        DType::F32
    } else {
        dtype
    };
    let found = TYPES.iter().find(|(burn, _)| *burn == stored);
    found
        .map(|types| types.1)
        .ok_or_else(|| format!("safetensors have no {dtype:?}"))
}

fn burn_dtype(dtype: Dtype) -> Option<DType> {
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
