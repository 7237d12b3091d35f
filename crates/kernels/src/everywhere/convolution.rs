//! Convolutions whose gradients of weights can wait.

use burn::{
    backend::{
        Dispatch, DispatchTensor,
        ops::{ConvOptions, ModuleOps},
    },
    module::Param,
    nn::{PaddingConfig2d, conv::Conv2d},
    tensor::{Tensor, module},
};
use stovepipe_autodiff::Operation;

use crate::everywhere::biased;

/// `conv.forward(x)`. On a GPU, fused kernels of Burn 0.22 compute wrong gradients next to a
/// convolution of one channel or one filter: it gets a second one, of zeros.
pub(crate) fn convolve(conv: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    let (channels, filters) = (x.dims()[1], conv.weight.dims()[0]);
    if channels > 1 && filters > 1 {
        return recorded(conv, x);
    }
    let mut weight = in_pairs(conv.weight.val(), 0);
    if channels == 1 {
        weight = in_pairs(weight, 1);
    }
    let bias = conv.bias.as_ref();
    let widened = Conv2d {
        weight: Param::initialized(conv.weight.id, weight),
        bias: bias.map(|bias| Param::initialized(bias.id, in_pairs(bias.val(), 0))),
        ..conv.clone()
    };
    recorded(&widened, in_pairs(x, 1)).narrow(1, 0, filters)
}

fn in_pairs<const D: usize>(tensor: Tensor<D>, dim: usize) -> Tensor<D> {
    match tensor.dims()[dim] {
        1 => Tensor::cat(vec![tensor.clone(), tensor.zeros_like()], dim),
        _ => tensor,
    }
}

fn recorded(conv: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    let padding = match conv.padding {
        PaddingConfig2d::Valid => [(0, 0); 2],
        PaddingConfig2d::Explicit(top, left, bottom, right) => [(top, bottom), (left, right)],
        PaddingConfig2d::Same => return conv.forward(x), // only Burn knows how much that is
    };
    let options = ConvOptions::new_with_padding(conv.stride, padding, conv.dilation, conv.groups);
    let operation = Convolution(options);
    let bias = conv.bias.as_ref().map(Param::val);
    let found = biased::run(operation, &x, &conv.weight.val(), bias.as_ref());
    found.unwrap_or_else(|| conv.forward(x))
}

#[derive(Clone, Debug)]
struct Convolution(ConvOptions<2>);

/// The input, the weight, and the bias if there is one.
impl<const N: usize> Operation<N> for Convolution {
    const WEIGHT: Option<usize> = Some(1);

    fn forward(&self, inputs: [DispatchTensor; N]) -> DispatchTensor {
        let (x, weight, bias) = biased::tensors(&inputs);
        module::conv2d(x, weight, bias, self.0.clone()).into_dispatch()
    }

    fn backward(
        &self,
        inputs: [DispatchTensor; N],
        gradient: DispatchTensor,
        needed: [bool; N],
    ) -> [Option<DispatchTensor>; N] {
        std::array::from_fn(|input| {
            needed[input].then(|| {
                let (x, other, gradient) = (
                    inputs[0].clone(),
                    inputs[input.max(1)].clone(),
                    gradient.clone(),
                );
                let options = self.0.clone();
                match input {
                    0 => Dispatch::conv2d_x_backward(x, other, gradient, options),
                    1 => Dispatch::conv2d_weight_backward(x, other, gradient, options),
                    _ => Dispatch::conv2d_bias_backward(x, other, gradient),
                }
            })
        })
    }
}
