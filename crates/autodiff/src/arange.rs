//! Whole numbers, made on their device.

use std::ops::Range;

use burn::tensor::{Device, Int, Tensor};

/// The whole numbers of a range.
///
/// Burn's `Tensor::arange` adds up ones on a GPU, and each of its threads adds up all that come before: thousands of
/// numbers take milliseconds (Burn 0.22.1). These are sums of few numbers of Burn's and their multiples, so nothing is
/// copied from the host.
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
    let count = range.end - range.start;
    if count <= FEW || device.clone().inner() == Device::flex() {
        return Tensor::arange(range, device);
    }
    by_sums(count, device).add_scalar(range.start)
}

/// How many Burn adds up.
const FEW: i64 = 64;

/// Numbers from 0 on.
fn by_sums(count: i64, device: &Device) -> Tensor<1, Int> {
    let few = Tensor::<1, Int>::arange(0..FEW, device);
    let rows = (count as u64).div_ceil(FEW as u64) as i64;
    let of_row = match rows <= FEW {
        true => few.clone().narrow(0, 0, rows as usize),
        false => by_sums(rows, device),
    };
    let of_row = of_row.mul_scalar(FEW).unsqueeze_dim::<2>(1);
    let numbers = of_row + few.unsqueeze_dim::<2>(0);
    numbers.flatten::<1>(0, 1).narrow(0, 0, count as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_any_length() {
        let device = Device::flex();
        for count in [1, 63, 64, 65, 4096, 4097, 300_000] {
            let found = by_sums(count, &device).into_data();
            let found: Vec<_> = found.iter::<i64>().collect();
            assert!(found == (0..count).collect::<Vec<_>>(), "{count}");
        }
        for range in [0..0, -2..3, 7..4104] {
            let found = arange(range.clone(), &device).into_data();
            assert!(found.iter::<i64>().eq(range));
        }
    }
}
