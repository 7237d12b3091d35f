//! Checksums of what is read of a file.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use burn::{
    store::{
        bridge,
        burn_pack::{Error, Tensor},
    },
    tensor::TensorData,
};
use sha2::{Digest, Sha256};

/// Checksums of a file's tensors, each taken when the tensor is read.
#[derive(Clone, Default)]
pub(super) struct TensorSums(Arc<Mutex<Option<BTreeMap<String, String>>>>);

impl TensorSums {
    /// The tensor. While sums are taken, reading it takes its own.
    pub(super) fn watch(&self, tensor: Tensor) -> Tensor {
        let (sums, name) = (self.0.clone(), tensor.name.clone());
        let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
        let read = move || {
            let data: TensorData = bridge::to_data(&tensor)?;
            let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(sums) = &mut *sums {
                let sum = format!("{:x}", Sha256::digest(data.as_bytes()));
                sums.insert(tensor.name.clone(), sum);
            }
            Ok::<_, Error>(data)
        };
        bridge::deferred(name, dtype, shape, None, read)
    }

    /// What `read` returns, and the checksum of all that it read.
    pub(super) fn during<R>(&self, read: impl FnOnce() -> R) -> (R, String) {
        let replace = |new| {
            let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *sums, new)
        };
        replace(Some(BTreeMap::new()));
        let done = read();
        let mut digest = Sha256::new();
        for (name, sum) in replace(None).unwrap_or_default() {
            digest.update(format!("{sum}  {name}\n"));
        }
        (done, format!("{:x}", digest.finalize()))
    }
}
