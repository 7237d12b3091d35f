use burn::tensor::{FloatDType, Tensor};
use stovepipe_autodiff::at_least_f32;

/// The most parts whose sums are added up.
const PARTS: usize = 128;

/// The sum of all rows, in f32 or a wider type, rounded to the type of `x`. In two steps: Burn's reduction has a thread
/// for few columns, which leaves most of a GPU idle.
pub(crate) fn sum_of_rows<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    let dtype = FloatDType::from(x.dtype());
    let shape = x.dims();
    let (rows, width) = (shape[..D - 1].iter().product::<usize>(), shape[D - 1]);
    if rows == 0 {
        return Tensor::<1>::zeros([width], &x.device()).cast(dtype);
    }
    let divides = |parts: &usize| rows.is_multiple_of(*parts);
    let parts = (1..=PARTS).rev().find(divides).unwrap_or(1);
    let sums = at_least_f32(x.reshape([parts, rows / parts, width])).sum_dim(1);
    let sum = sums.reshape([parts, width]).sum_dim(0).reshape([width]);
    sum.cast(dtype)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use burn::tensor::{Device, Int, Tolerance};

    use super::*;

    #[test]
    fn of_any_number_of_rows() {
        for [samples, rows] in [[1, 1], [2, 3], [4, 64], [3, 1], [7, 73], [131, 1], [0, 2]] {
            let count = (samples * rows * 3) as i64;
            let x = Tensor::<1, Int>::arange(0..count, &Device::flex()).float();
            let x = x.reshape([samples, rows, 3]);
            let found = sum_of_rows(x.clone()).into_data();
            let expected = x.sum_dim(0).sum_dim(1).reshape([3]).into_data();
            found.assert_approx_eq::<f32>(&expected, Tolerance::rel_abs(1e-6, 0.0));
        }
    }
}
