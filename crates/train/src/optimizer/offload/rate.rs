//! How fast tensors go off a device and come back.

use std::time::{Duration, Instant};

use burn::{
    module::ParamId,
    optim::StateSink,
    tensor::{Device, Tensor},
};

use super::{error::OffloadError, mover::Mover, shelf::Kept, storage::Storage};

/// Numbers of a tensor: 16 MiB.
const NUMBERS: usize = 1 << 22;
const ROUNDS: usize = 3;

/// Bytes a second in which tensors of a device go to a storage and come back, one way at a time: of the fastest of
/// three rounds of 16 MiB.
///
/// ```
/// use burn::tensor::Device;
/// use stovepipe_train::optimizer::{HostMemory, store_rate};
///
/// assert!(store_rate(HostMemory::default(), &Device::flex())? > 0.0);
/// # Ok::<(), stovepipe_train::optimizer::OffloadError>(())
/// ```
///
/// # Errors
///
/// If the storage or the device fails.
#[expect(clippy::disallowed_methods, reason = "it measures")]
pub fn store_rate(storage: impl Storage, device: &Device) -> Result<f64, OffloadError> {
    let what = "opened";
    let mover = Mover::new(Box::new(storage), device.clone());
    let mover = mover.map_err(|source| OffloadError::Storage { what, source })?;
    let synced = || {
        device
            .sync()
            .map_err(|error| OffloadError::Device(error.to_string()))
    };
    let item = (Kept::State, ParamId::new());
    let mut tensor = Tensor::<1>::ones([NUMBERS], device);
    let (mut bytes, mut fastest) = (0, Duration::MAX);
    for _ in 0..ROUNDS {
        synced()?;
        let began = Instant::now();
        mover.put(move |shelf| {
            let data = tensor.try_into_data();
            let data = data.map_err(|error| OffloadError::Device(error.to_string()))?;
            let mut sink = StateSink::default();
            sink.tensors.push((String::new(), data));
            shelf.write(item, sink)
        })?;
        let coming = mover.fetch(move |shelf| {
            let kept = shelf.of(item).ok_or(OffloadError::Changed)?;
            shelf.read_slot(&kept.slots[0])
        });
        let data = coming.wait()?;
        bytes = data.as_bytes().len();
        tensor = Tensor::from_data(data, device);
        synced()?;
        fastest = fastest.min(began.elapsed());
    }
    let seconds = fastest.as_secs_f64().max(f64::MIN_POSITIVE);
    Ok(2.0 * bytes as f64 / seconds)
}
