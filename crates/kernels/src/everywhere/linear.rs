//! Linear layers whose gradients of weights can wait.

use burn::{
    backend::{Dispatch, DispatchTensor, ops::ModuleOps},
    tensor::{Tensor, module},
};
use stovepipe_autodiff::Operation;

use crate::everywhere::{biased, sums::sum_of_rows};

/// x · weight + bias; `weight` is `[in, out]`, or `[out, in]` if it has a row for each output.
pub(crate) fn linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    by_rows: bool,
) -> Tensor<D> {
    let found = match D {
        1 => None, // Burn's gradients are for rows
        _ => biased::run(Linear::<D> { by_rows }, &x, &weight, bias.as_ref()),
    };
    found.unwrap_or_else(|| forward(x, weight, bias, by_rows))
}

fn forward<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    by_rows: bool,
) -> Tensor<D> {
    let weight = if by_rows { weight.transpose() } else { weight };
    module::linear(x, weight, bias)
}

#[derive(Clone, Debug)]
struct Linear<const D: usize> {
    by_rows: bool,
}

/// The input, the weight, and the bias if there is one.
impl<const D: usize, const N: usize> Operation<N> for Linear<D> {
    const WEIGHT: Option<usize> = Some(1);

    fn forward(&self, inputs: [DispatchTensor; N]) -> DispatchTensor {
        let (x, weight, bias) = biased::tensors::<D, 2>(&inputs);
        forward(x, weight, bias, self.by_rows).into_dispatch()
    }

    fn backward(
        &self,
        inputs: [DispatchTensor; N],
        gradient: DispatchTensor,
        needed: [bool; N],
    ) -> [Option<DispatchTensor>; N] {
        std::array::from_fn(|input| {
            let (x, weight, gradient) = (&inputs[0], &inputs[1], gradient.clone());
            needed[input].then(|| match (input, self.by_rows) {
                (0, true) => Dispatch::linear(gradient, weight.clone(), None),
                (0, false) => Dispatch::linear_x_backward(weight.clone(), gradient),
                (1, true) => Dispatch::linear_weight_backward(gradient, x.clone()),
                (1, false) => Dispatch::linear_weight_backward(x.clone(), gradient),
                _ => sum_of_rows(Tensor::<D>::from_dispatch(gradient)).into_dispatch(),
            })
        })
    }
}
