//! What is computed in f32 whatever the numbers of a model are.

use burn::tensor::{DType, Tensor};

/// The same numbers in f32, if they are of f16 or bf16. The gradient comes back in the type that they have.
///
/// Means, variances and exponentials are found in f32, as PyTorch's autocast has it: their sums need more bits than
/// such numbers have, and squares overflow in f16 from 256 on.
///
/// ```
/// use burn::tensor::{DType, Device, Tensor};
/// use stovepipe_kernels::widened;
///
/// let x = Tensor::<1>::ones([3], &Device::flex());
/// assert_eq!(widened(x.cast(DType::BF16)).dtype(), DType::F32);
/// ```
#[must_use]
pub fn widened<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match x.dtype() {
        DType::F16 | DType::BF16 => x.cast(DType::F32),
        _ => x,
    }
}
