//! Operations on an input, a weight and, if there is one, a bias.

use burn::{backend::DispatchTensor, tensor::Tensor};
use stovepipe_autodiff::Operation;

/// Runs the operation. `None` where it has to be done by Burn's own, which are differentiated one by one.
pub(crate) fn run<const D: usize, const W: usize>(
    operation: impl Operation<2> + Operation<3>,
    x: &Tensor<D>,
    weight: &Tensor<W>,
    bias: Option<&Tensor<1>>,
) -> Option<Tensor<D>> {
    let [x, weight] = [x.clone().into_dispatch(), weight.clone().into_dispatch()];
    let found = match bias {
        Some(bias) => Operation::<3>::run(operation, [x, weight, bias.clone().into_dispatch()]),
        None => Operation::<2>::run(operation, [x, weight]),
    };
    found.map(Tensor::from_dispatch)
}

/// The input, the weight and the bias.
pub(crate) fn tensors<const D: usize, const W: usize>(
    inputs: &[DispatchTensor],
) -> (Tensor<D>, Tensor<W>, Option<Tensor<1>>) {
    let bias = inputs.get(2).cloned().map(Tensor::from_dispatch);
    let [x, weight] = [&inputs[0], &inputs[1]].map(Clone::clone);
    (
        Tensor::from_dispatch(x),
        Tensor::from_dispatch(weight),
        bias,
    )
}
