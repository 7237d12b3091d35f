//! The Gaussian error linear unit.

use std::f32::consts::PI;

use burn::tensor::{Tensor, activation};
use burn_flex::FlexTensor;

use crate::{
    differentiable::{self, Kernel, Operand},
    exponential::normal,
    planes::{in_order, in_shares, joined, numbers, tensor, vectorised},
};

/// x · Φ(x), where Φ is the normal distribution's cumulative function (Hendrycks and Gimpel, "Gaussian
/// Error Linear Units", 2016): the exact form, which is PyTorch's default, to within 1e-6.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_kernels::gelu;
///
/// let x = Tensor::<1>::from_floats([-1.0, 0.0, 1.0], &Device::flex());
/// let y = gelu(x).into_data().try_to_vec::<f32>()?;
/// assert!((y[0] + 0.158_655).abs() < 1e-6 && y[1] == 0.0 && (y[2] - 0.841_345).abs() < 1e-6);
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
#[must_use]
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    Operand::of(&x)
        .and_then(|operand| differentiable::run(Gelu, [operand]))
        .map_or_else(|| activation::gelu(x), |(output, _)| output.into_tensor())
}

#[derive(Clone, Debug)]
struct Gelu;

impl Kernel<1> for Gelu {
    type Saved = FlexTensor;

    fn forward(&self, inputs: [FlexTensor; 1]) -> (FlexTensor, FlexTensor) {
        let [x] = inputs.map(in_order);
        let all = numbers(&x);
        let shares = in_shares(all.len(), all.len(), |range| {
            let x = &all[range];
            let mut output = Vec::with_capacity(x.len());
            vectorised(|| output.extend(x.iter().map(|&x| x * normal(x).0)));
            output
        });
        (tensor(joined(shares), x.layout().shape().clone()), x)
    }

    fn backward(
        &self,
        x: FlexTensor,
        gradient: FlexTensor,
        _: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let gradient = in_order(gradient);
        let (all, gradients) = (numbers(&x), numbers(&gradient));
        let peak = 1.0 / (2.0 * PI).sqrt();
        let slope = |x: f32| {
            let (share, bell) = normal(x);
            share + x * bell * peak
        };
        let shares = in_shares(all.len(), all.len(), |range| {
            let pairs = all[range.clone()].iter().zip(&gradients[range.clone()]);
            let mut of_x = Vec::with_capacity(range.len());
            vectorised(|| of_x.extend(pairs.map(|(&x, gradient)| gradient * slope(x))));
            of_x
        });
        [Some(tensor(joined(shares), x.layout().shape().clone()))]
    }
}
