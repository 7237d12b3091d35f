//! A sum over tensors, by which two trainings are compared.

use std::hash::Hasher;

use burn::tensor::{Tensor, kind::Basic};
use twox_hash::XxHash3_64;

/// A 64-bit sum of the bits of tensors, in their order: XXH3 of their bytes. It finds faults, and does not keep out
/// people who make two tensors of one sum.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_pipeline::measure::Checksum;
///
/// let sum_of = |numbers: [f32; 2]| {
///     let mut sum = Checksum::default();
///     sum.add(&Tensor::<1>::from_data(numbers, &Device::flex()));
///     sum.finish()
/// };
/// assert_eq!(sum_of([1.0, 2.0]), sum_of([1.0, 2.0]));
/// assert_ne!(sum_of([1.0, 2.0]), sum_of([2.0, 1.0]));
/// assert_ne!(sum_of([0.0, 1.0]), sum_of([-0.0, 1.0])); // other bits
/// ```
#[derive(Clone, Default)]
pub struct Checksum(XxHash3_64);

impl Checksum {
    /// Reads a tensor from its device, and adds it.
    ///
    /// # Panics
    ///
    /// If the device does not return it.
    pub fn add<const D: usize, K: Basic>(&mut self, tensor: &Tensor<D, K>) {
        self.0.write(tensor.to_data().as_bytes());
    }

    /// The sum so far.
    #[must_use]
    pub fn finish(&self) -> u64 {
        self.0.finish()
    }
}
