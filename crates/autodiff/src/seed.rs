//! Backward passes that start from a given gradient.

use burn::tensor::Tensor;
use burn_flex::FlexTensor;

use crate::{Kernel, Operand, tensor};

/// A scalar whose backward pass gives `output` the gradient `gradient`, of the same shape. The
/// scalar's own value has no meaning.
///
/// Burn's backward pass starts at a scalar, with a gradient of one. On other backends than the CPU,
/// the scalar is Σ output · gradient.
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
    by_kernel(&output, &gradient).unwrap_or_else(|| (output * gradient).sum())
}

fn by_kernel<const D: usize>(output: &Tensor<D>, gradient: &Tensor<D>) -> Option<Tensor<1>> {
    if output.dims() != gradient.dims() {
        return None;
    }
    let gradient = Operand::of(gradient)?.plain()?;
    Some(Seed(gradient).run([Operand::of(output)?])?.0.into_tensor())
}

#[derive(Clone, Debug)]
struct Seed(FlexTensor);

impl Kernel<1> for Seed {
    type Saved = ();

    fn forward(&self, _: [FlexTensor; 1]) -> (FlexTensor, ()) {
        (tensor(vec![0.0], [1]), ())
    }

    fn backward(&self, (): (), _: FlexTensor, _: [bool; 1]) -> [Option<FlexTensor>; 1] {
        [Some(self.0.clone())]
    }
}
