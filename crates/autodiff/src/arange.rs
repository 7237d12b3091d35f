use std::ops::Range;

use burn::tensor::{Device, Int, Tensor, TensorData};

/// The whole numbers of a range.
///
/// Burn's `Tensor::arange` adds up ones on a GPU, and each of its threads adds up all that come before: thousands of
/// numbers take milliseconds (Burn 0.22.1). These are made on the host and copied, or, if they are many, are sums of two
/// numbers of which few were copied.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use stovepipe_autodiff::arange;
///
/// let device = Device::flex();
/// assert_eq!(arange(2..5, &device).into_data(), Tensor::<1, Int>::arange(2..5, &device).into_data());
/// ```
///
/// # Panics
///
/// If a number does not fit the device's integers.
#[must_use]
pub fn arange(range: Range<i64>, device: &Device) -> Tensor<1, Int> {
    let copied = |range: Range<i64>| {
        let numbers: Vec<i64> = range.collect();
        let count = numbers.len();
        Tensor::<1, Int>::from_data(TensorData::new(numbers, [count]), device)
    };
    let count = usize::try_from(range.end - range.start).unwrap_or(0);
    if count <= FEW {
        return copied(range);
    }
    let rows = count.div_ceil(FEW);
    let of_row = copied(0..rows as i64).mul_scalar(FEW as i64) + range.start;
    let numbers = of_row.reshape([rows, 1]) + copied(0..FEW as i64).reshape([1, FEW]);
    numbers.reshape([rows * FEW]).narrow(0, 0, count)
}

/// How many are copied at once.
const FEW: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_any_length() {
        let device = Device::flex();
        for range in [0..0, -2..3, 0..4096, 7..4104, -9..10_000] {
            let found = arange(range.clone(), &device).into_data();
            let expected = Tensor::<1, Int>::from_data(
                TensorData::new(range.clone().collect::<Vec<_>>(), [range.count()]),
                &device,
            );
            assert_eq!(found, expected.into_data());
        }
    }
}
