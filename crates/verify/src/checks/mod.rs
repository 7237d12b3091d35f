//! What is checked, a check a file.

mod cut;
mod evaluation;
mod memory;
mod mini_batch;
mod mishap;
mod repeated;
mod statistics;

use burn::tensor::Device;

pub(crate) use cut::cut;
pub(crate) use evaluation::evaluation;
pub(crate) use memory::memory;
pub(crate) use mini_batch::mini_batch;
pub(crate) use mishap::mishap;
pub(crate) use repeated::repeated;
pub(crate) use statistics::statistics;

use crate::seen::{Difference, Seen};

/// How much two ways to add up the same numbers may differ.
const ROUNDING: f64 = 1e-5;
/// How much running statistics may.
const STATISTICS: f64 = 1e-4;
/// How much bits may where they are not promised.
const ELSEWHERE: f64 = 1e-4;

/// How much what should be the same bits may differ: on the CPU, not at all.
fn allowed(device: &Device) -> f64 {
    match *device == Device::flex() {
        true => 0.0,
        false => ELSEWHERE,
    }
}

/// The largest difference: of bits where these are promised.
fn compare(device: &Device, found: &Seen, expected: &Seen) -> Difference {
    match allowed(device) == 0.0 {
        true => found.same_bits(expected),
        false => found.difference(expected),
    }
}
