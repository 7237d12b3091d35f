//! Computing in f32 what a model stores in fewer bits.

use burn::tensor::{DType, Tensor};

/// Casts f16 and bf16 to f32, and returns other types as they are. The gradient comes back in the
/// original type.
///
/// Means, variances and exponentials use it, as in PyTorch's autocast: their sums need more bits,
/// and squares overflow in f16 from 256 on.
///
/// ```
/// use burn::tensor::{DType, Device, Tensor};
/// use stovepipe_autodiff::at_least_f32;
///
/// let x = Tensor::<1>::ones([3], &Device::flex());
/// assert_eq!(at_least_f32(x.cast(DType::BF16)).dtype(), DType::F32);
/// ```
#[must_use]
pub fn at_least_f32<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match x.dtype() {
        DType::F16 | DType::BF16 => x.cast(DType::F32),
        _ => x,
    }
}
