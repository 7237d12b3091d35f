//! Copies from device to device: all of the engine's go this way.
//!
//! Where CUDA devices reach each other by NCCL, a copy is a send on one device and a receive on the other. Each
//! waits in its device's queue for the other one, so two threads that queue copies in opposite orders would wait
//! for ever. Such copies are queued one at a time; they still run side by side. All other copies go through the
//! host, and take no lock while they wait for a device.

use burn::tensor::{Device, Tensor, kind::Basic};

/// The tensor on a device. One that is already there is not copied.
pub(crate) fn moved<const D: usize, K: Basic>(
    tensor: Tensor<D, K>,
    device: &Device,
) -> Tensor<D, K> {
    #[cfg(feature = "cuda")]
    let _one_at_a_time = cuda::is_paired(&tensor.device(), device).then(cuda::queue);
    tensor.to_device(device)
}

#[cfg(feature = "cuda")]
mod cuda {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use burn::{
        backend::{CubeDevice, DispatchDevice},
        tensor::Device,
    };

    static QUEUE: Mutex<()> = Mutex::new(());

    pub(super) fn queue() -> MutexGuard<'static, ()> {
        QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a copy is a send and a receive.
    pub(super) fn is_paired(from: &Device, to: &Device) -> bool {
        let (from, to) = (from.clone().inner(), to.clone().inner());
        match (from.as_dispatch(), to.as_dispatch()) {
            (
                DispatchDevice::Cube(from @ CubeDevice::Cuda(_)),
                DispatchDevice::Cube(to @ CubeDevice::Cuda(_)),
            ) => from != to && from.client().has_device_transport(),
            _ => false,
        }
    }
}
