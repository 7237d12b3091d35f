//! Backward passes that start from a given gradient.

use burn::{backend::DispatchTensor, tensor::Tensor};

use crate::operation::Operation;

/// A scalar whose backward pass gives `output` the gradient `gradient`, of the same shape. The
/// scalar's own value has no meaning.
///
/// Burn's backward pass starts at a scalar, with a gradient of one. On backends that Stovepipe does
/// not know, the scalar is Σ output · gradient.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_autodiff::seed;
///
/// let device = Device::flex();
/// let x = Tensor::<1>::from_floats([1.0, 2.0, 3.0], &device).autodiff().require_grad();
/// let y = x.clone() * x.clone();
/// let gradients = seed(y, Tensor::from_floats([1.0, 10.0, 100.0], &device)).backward();
/// let of_x = x.grad(&gradients).unwrap().into_data().try_to_vec::<f32>().unwrap();
/// assert_eq!(of_x, [2.0, 40.0, 600.0]);
/// ```
#[must_use]
pub fn seed<const D: usize>(output: Tensor<D>, gradient: Tensor<D>) -> Tensor<1> {
    let are_alike = output.dims() == gradient.dims()
        && output.dtype() == gradient.dtype()
        && output.device().inner() == gradient.device();
    let found = are_alike.then(|| Seed(gradient.clone().into_dispatch()));
    let found = found.and_then(|seed| seed.run([output.clone().into_dispatch()]));
    found.map_or_else(|| (output * gradient).sum(), Tensor::from_dispatch)
}

#[derive(Clone, Debug)]
struct Seed(DispatchTensor);

impl Operation<1> for Seed {
    const USES_INPUTS: bool = false;

    fn forward(&self, [output]: [DispatchTensor; 1]) -> DispatchTensor {
        let device = Tensor::<1>::from_dispatch(output).device();
        Tensor::<1>::zeros([1], &device).into_dispatch()
    }

    fn backward(
        &self,
        _: [DispatchTensor; 1],
        _: DispatchTensor,
        _: [bool; 1],
    ) -> [Option<DispatchTensor>; 1] {
        [Some(self.0.clone())]
    }
}
