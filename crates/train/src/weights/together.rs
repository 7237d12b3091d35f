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

use super::tensor_file::{self, fetched};
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
    let own = fetched(path, || Ok(tensors()));
    let listed = |own: &Vec<Tensor>| own.iter().map(listed).collect::<Vec<_>>();
    let (mut own, all) = processes.tell(own, listed)?;
    let exchange = Exchange::new(processes);
    let written = if processes.is_first() {
        let all = all.into_iter().enumerate().skip(1);
        let all = all.flat_map(|(rank, listed)| elsewhere(&exchange, rank, listed));
        // Replicas have the same tensors.
        let mut known: HashSet<_> = own.iter().map(|tensor| tensor.name.clone()).collect();
        own.extend(all.filter(|tensor| known.insert(tensor.name.clone())));
        exchange.asking(|| fetched(path, || tensor_file::write(path, own, metadata)))?
    } else {
        exchange.serve(|index| bytes(&own, index))?;
        Ok(())
    };
    processes.agree(written)
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
