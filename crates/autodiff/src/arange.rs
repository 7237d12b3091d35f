use std::ops::Range;

use burn::tensor::{Device, Int, Tensor, TensorData};

/// The whole numbers of a range.
///
/// Burn's `Tensor::arange` adds up ones on a GPU, and each of its threads adds up all that come before: thousands of
/// numbers take milliseconds (Burn 0.22.1). These are made on the host and copied.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use stovepipe_autodiff::arange;
///
/// let device = Device::flex();
/// assert_eq!(arange(2..5, &device).into_data(), Tensor::<1, Int>::arange(2..5, &device).into_data());
/// ```
#[must_use]
pub fn arange(range: Range<i64>, device: &Device) -> Tensor<1, Int> {
    let numbers: Vec<i64> = range.collect();
    let count = numbers.len();
    Tensor::from_data(TensorData::new(numbers, [count]), device)
}
