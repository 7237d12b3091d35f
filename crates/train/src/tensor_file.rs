//! Named tensors in a file: safetensors.

use std::{
    borrow::Cow,
    fs::{self, File},
    path::Path,
};

use burn::{
    optim::StateSink,
    store::{ModuleStore, SafetensorsStore, burn_pack::Scalar},
    tensor::{BoolStore, Bytes, DType, Shape, TensorData},
};
use safetensors::{Dtype, View};

use crate::error::TrainError;

/// Writes tensors and numbers; a number is a tensor without dimensions, as PyTorch has it.
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
        .map_err(|reason| format_error(path, reason))?;
    // The library puts a file of its own in place, which is for the owner alone.
    let usual = File::create(path).and_then(|file| file.metadata());
    let usual = usual.map_err(TrainError::file(path))?.permissions();
    safetensors::serialize_to_file(entries, None, path).map_err(|error| match error {
        safetensors::SafeTensorError::IoError(error) => TrainError::file(path)(error),
        other => format_error(path, other.to_string()),
    })?;
    fs::set_permissions(path, usual).map_err(TrainError::file(path))
}

/// The tensors and numbers of a file whose names one wants; others are not read.
pub(crate) fn read(path: &Path, wanted: impl Fn(&str) -> bool) -> Result<StateSink, TrainError> {
    let mut store = SafetensorsStore::from_file(path);
    let tensors = store.get_all_tensors();
    let tensors = tensors.map_err(|error| format_error(path, error.to_string()))?;
    let mut content = StateSink::default();
    for tensor in tensors.values().filter(|tensor| wanted(&tensor.name)) {
        let (name, dtype, shape, _, bytes) =
            (tensor.clone().into_parts()).map_err(|error| format_error(path, error.to_string()))?;
        match number(&shape, dtype, &bytes) {
            Some(number) => content.scalars.push((name, number)),
            None => {
                let data = TensorData::try_from_bytes(bytes, shape, dtype)
                    .map_err(|error| format_error(path, format!("{name}: {error}")))?;
                content.tensors.push((name, data));
            }
        }
    }
    Ok(content)
}

fn format_error(path: &Path, reason: String) -> TrainError {
    TrainError::Format {
        path: path.to_owned(),
        reason,
    }
}

/// What safetensors are written from.
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

/// What safetensors call Burn's types.
fn dtype_of(dtype: DType) -> Result<Dtype, String> {
    Ok(match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 | DType::Flex32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        other => return Err(format!("safetensors have no {other:?}")),
    })
}

/// The number that a tensor without dimensions is; none if it is of no type that numbers have.
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
