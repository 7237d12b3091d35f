//! Tensors that one process has and another one reads, one at a time.

use std::{collections::HashSet, path::Path};

use burn::{
    store::{
        bridge,
        burn_pack::{Error, Tensor},
    },
    tensor::{Bytes, DType, Shape, TensorData},
};
use stovepipe_pipeline::{caught, error::ProcessError};

use super::tensor_file::{self, HostTensor, fetched};
use crate::{
    error::TrainError,
    processes::{Exchange, Processes},
};

/// A tensor without its numbers.
type Listed = (String, DType, Vec<usize>);

/// Writes a file of all processes' tensors. The first process writes it, and reads the others' tensors one
/// at a time.
pub(crate) fn write_together(
    processes: &Processes,
    path: &Path,
    tensors: impl FnOnce() -> Vec<Tensor>,
    metadata: Option<(&str, &str)>,
) -> Result<(), TrainError> {
    let write = |all: Vec<Tensor>| tensor_file::write(path, all, metadata);
    together(processes, path, tensors, |_| Ok(true), write).map(drop)
}

/// Copies all processes' tensors to the host's memory of the first process, if it has room for them. The other
/// processes get none. Errors name the file that they will be written to.
pub(crate) fn copy_together(
    processes: &Processes,
    path: &Path,
    tensors: impl FnOnce() -> Vec<Tensor>,
    has_room: impl FnOnce(usize) -> bool,
) -> Result<Option<Vec<HostTensor>>, TrainError> {
    let copy = |all: Vec<Tensor>| {
        let copies = all.into_iter().map(|tensor| HostTensor::read(tensor, path));
        copies.collect::<Result<Vec<_>, _>>()
    };
    let decide = |all: &[Tensor]| {
        let bytes = || all.iter().map(Tensor::byte_len).sum();
        processes.by_first(|| Ok::<_, TrainError>(has_room(bytes())))
    };
    let copied = together(processes, path, tensors, decide, copy)?;
    Ok(copied.map(Option::unwrap_or_default))
}

/// What the first process does with the tensors of all, which are read one at a time; `None` in the others. Nothing
/// is done if all processes `decide` so.
fn together<R>(
    processes: &Processes,
    path: &Path,
    tensors: impl FnOnce() -> Vec<Tensor>,
    decide: impl FnOnce(&[Tensor]) -> Result<bool, TrainError>,
    work: impl FnOnce(Vec<Tensor>) -> Result<R, TrainError>,
) -> Result<Option<Option<R>>, TrainError> {
    let own = fetched(path, || Ok(tensors()));
    let listed = |own: &Vec<Tensor>| own.iter().map(listed).collect::<Vec<_>>();
    let (mut own, all) = processes.tell(own, listed)?;
    let exchange = Exchange::new(processes);
    if processes.is_first() {
        let all = all.into_iter().enumerate().skip(1);
        let all = all.flat_map(|(rank, listed)| elsewhere(&exchange, rank, listed));
        // Replicas have the same tensors.
        let mut known: HashSet<_> = own.iter().map(|tensor| tensor.name.clone()).collect();
        own.extend(all.filter(|tensor| known.insert(tensor.name.clone())));
    }
    if !decide(&own)? {
        return Ok(None);
    }
    let done = if processes.is_first() {
        exchange.asking(|| fetched(path, || work(own).map(Some)))?
    } else {
        exchange.serve(|index| bytes(&own, index))?;
        Ok(None)
    };
    processes.agree(done).map(Some)
}

/// Tensors that the first process reads from files, for all.
pub(crate) struct SharedTensors {
    exchange: Exchange,
    tensors: Vec<Tensor>,
}

impl SharedTensors {
    /// Those of the first process, which agrees with the others before.
    pub(crate) fn new(processes: &Processes, of_first: Vec<Tensor>) -> Result<Self, ProcessError> {
        let exchange = Exchange::new(processes);
        let listed = processes.of_first(of_first.iter().map(listed).collect::<Vec<_>>())?;
        let tensors = match processes.is_first() {
            true => of_first,
            false => elsewhere(&exchange, 0, listed).collect(),
        };
        Ok(Self { exchange, tensors })
    }

    pub(crate) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Does what reads these tensors. All processes call this.
    pub(crate) fn reading<R>(&self, work: impl FnOnce() -> R) -> Result<R, ProcessError> {
        let done = work();
        (self.exchange).serve(|index| bytes(&self.tensors, index))?;
        Ok(done)
    }
}

fn listed(tensor: &Tensor) -> Listed {
    (tensor.name.clone(), tensor.dtype, tensor.shape.to_vec())
}

/// The tensors of another process, which are read when they are needed.
fn elsewhere(
    exchange: &Exchange,
    rank: usize,
    listed: Vec<Listed>,
) -> impl Iterator<Item = Tensor> + use<> {
    let exchange = exchange.clone();
    let all = listed.into_iter().enumerate();
    all.map(move |(index, (name, dtype, shape))| {
        let (exchange, shape) = (exchange.clone(), Shape::from(shape));
        let own = shape.clone();
        let read = move || {
            let bytes = exchange.ask(rank, index);
            let bytes = Bytes::from_bytes_vec(bytes.map_err(Error::IoError)?);
            TensorData::try_from_bytes(bytes, own.clone(), dtype)
                .map_err(|error| Error::ValidationError(error.to_string()))
        };
        bridge::deferred(name, dtype, shape, None, read)
    })
}

fn bytes(tensors: &[Tensor], index: usize) -> Result<Vec<u8>, String> {
    let tensor = tensors.get(index);
    let tensor = tensor.ok_or_else(|| format!("there is no tensor {index}"))?;
    let bytes = caught(|| tensor.to_bytes()).map_err(|panicked| panicked.message)?;
    let bytes = bytes.map_err(|error| error.to_string())?;
    Ok(bytes.try_into_vec().unwrap_or_else(|bytes| bytes.to_vec()))
}
