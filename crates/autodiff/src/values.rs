//! Tensors of `f32` on the CPU as slices.

use burn::tensor::{Bytes, DType, Shape};
use burn_flex::{FlexTensor, Layout};

/// The same tensor with its values next to each other, in row-major order.
#[must_use]
pub fn contiguous(tensor: FlexTensor) -> FlexTensor {
    if tensor.as_slice::<f32>().is_some() {
        tensor
    } else {
        tensor.to_contiguous()
    }
}

/// The values of a [`contiguous`] tensor.
#[must_use]
pub fn values(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().unwrap_or_default()
}

/// A tensor of these values, in row-major order.
#[must_use]
pub fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    let layout = Layout::contiguous(shape.into());
    FlexTensor::new(Bytes::from_elems(values), layout, DType::F32)
}
