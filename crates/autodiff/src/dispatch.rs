//! Tensors without a rank, and those of one backend.

use burn::{
    backend::{Backend, DispatchKindConversion, DispatchTensor, tensor::FloatTensor},
    tensor::Tensor,
};

pub(crate) fn is_on<B: Backend>(tensor: &DispatchTensor) -> bool
where
    DispatchTensor: DispatchKindConversion<B>,
{
    primitive::<B>(tensor.clone()).is_some()
}

pub(crate) fn primitive<B: Backend>(tensor: DispatchTensor) -> Option<FloatTensor<B>>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    // A tensor without a rank: the one given here has no meaning.
    Tensor::<1>::from_dispatch(tensor).try_into_primitive().ok()
}

pub(crate) fn dispatched<B: Backend>(tensor: FloatTensor<B>) -> DispatchTensor
where
    DispatchTensor: DispatchKindConversion<B>,
{
    Tensor::<1>::from_primitive::<B>(tensor).into_dispatch()
}
