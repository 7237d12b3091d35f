//! New values of parameters.

use burn::{
    module::{Param, ParamId},
    tensor::Tensor,
};

/// A parameter with a new value, without a graph, which trains as it did.
pub(super) fn with_value<const D: usize>(
    param: Param<Tensor<D>>,
    new: impl FnOnce(ParamId, Tensor<D>) -> Tensor<D>,
) -> Param<Tensor<D>> {
    let (id, value, mapper) = param.consume();
    let trains = value.is_require_grad();
    let checkpointing = value.gradient_checkpointing_strategy();
    let is_autodiff = value.is_autodiff();
    let mut value = new(id, value.inner());
    if is_autodiff {
        value = Tensor::from_inner(value);
    }
    if let Some(strategy) = checkpointing {
        value = value.with_gradient_checkpointing_strategy(strategy);
    }
    Param::from_mapped_value(id, value.set_require_grad(trains), mapper)
}
