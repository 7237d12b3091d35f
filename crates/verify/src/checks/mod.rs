//! The checks, one per file.

mod cut;
mod evaluation;
mod failed_step;
mod memory;
mod mini_batch;
mod repeated;
mod statistics;

use burn::tensor::Device;

pub(crate) use memory::memory;

/// Allowed between two ways to add up the same numbers.
const ROUNDING: f64 = 1e-5;
/// Allowed between running statistics.
const STATISTICS: f64 = 1e-4;
/// Allowed on devices that do not promise the same bits.
const OTHER_DEVICES: f64 = 1e-4;

/// Allowed where the CPU gives the same bits.
fn allowed(device: &Device) -> f64 {
    if *device == Device::flex() {
        0.0
    } else {
        OTHER_DEVICES
    }
}
