//! Tensors as kernels take and return them, and those on the CPU as slices of `f32`.

use burn::{
    backend::{
        Autodiff, Flex, autodiff::checkpoint::strategy::NoCheckpointing, tensor::FloatTensor,
    },
    tensor::{Bytes, DType, Shape, Tensor},
};
use burn_flex::{FlexTensor, Layout};

pub(crate) type Tracked = Autodiff<Flex, NoCheckpointing>;

/// A tensor of `f32` on the CPU, in a graph or outside of any.
#[derive(Debug)]
pub enum Operand {
    /// Outside of any graph.
    Plain(FlexTensor),
    /// In a graph.
    Tracked(FloatTensor<Tracked>),
}

impl Operand {
    /// `None` if the tensor lies on another backend, is not of `f32`, or uses Burn's gradient
    /// checkpointing.
    #[must_use]
    pub fn of<const D: usize>(tensor: &Tensor<D>) -> Option<Self> {
        if tensor.dtype() != DType::F32 {
            return None;
        }
        let tensor = tensor.clone();
        if tensor.is_autodiff() {
            let tracked = tensor.try_into_primitive::<Tracked>();
            tracked.ok().map(Self::Tracked)
        } else {
            tensor.try_into_primitive::<Flex>().ok().map(Self::Plain)
        }
    }

    /// The tensor, if it is outside of any graph.
    #[must_use]
    pub fn plain(self) -> Option<FlexTensor> {
        match self {
            Self::Plain(tensor) => Some(tensor),
            Self::Tracked(_) => None,
        }
    }

    /// Back to a tensor of Burn's.
    #[must_use]
    pub fn into_tensor<const D: usize>(self) -> Tensor<D> {
        match self {
            Self::Plain(primitive) => Tensor::from_primitive::<Flex>(primitive),
            Self::Tracked(primitive) => Tensor::from_primitive::<Tracked>(primitive),
        }
    }
}

/// A tensor on the CPU outside of any graph, of any type. `None` if it lies on another backend.
#[must_use]
pub fn stored<const D: usize>(tensor: &Tensor<D>) -> Option<FlexTensor> {
    tensor.clone().inner().try_into_primitive::<Flex>().ok()
}

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
