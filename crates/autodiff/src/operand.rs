//! Tensors as kernels take and return them.

use burn::{
    backend::{
        Autodiff, Flex, autodiff::checkpoint::strategy::NoCheckpointing, tensor::FloatTensor,
    },
    tensor::{DType, Tensor},
};
use burn_flex::FlexTensor;

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
