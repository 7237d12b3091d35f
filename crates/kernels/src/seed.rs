//! Where a backward pass begins.

use burn::tensor::Tensor;
use burn_flex::FlexTensor;

use crate::{
    differentiable::{self, Kernel, Operand},
    planes::tensor,
};

/// A scalar whose backward pass gives `output` the gradient `gradient`, of the same shape. Its own
/// value means nothing.
///
/// Burn's backward begins at a scalar, with a gradient of one. Elsewhere than on the CPU the scalar
/// is Σ output · gradient.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_kernels::seed;
///
/// let device = Device::flex();
/// let x = Tensor::<1>::from_floats([1.0, 2.0, 3.0], &device).autodiff().require_grad();
/// let y = x.clone() * x.clone();
/// let slope = Tensor::from_floats([1.0, 10.0, 100.0], &device);
/// let gradients = seed(y, slope).backward();
/// let of_x = x.grad(&gradients).unwrap().into_data().try_to_vec::<f32>().unwrap();
/// assert_eq!(of_x, [2.0, 40.0, 600.0]);
/// ```
#[must_use]
pub fn seed<const D: usize>(output: Tensor<D>, gradient: Tensor<D>) -> Tensor<1> {
    let given = match Operand::of(&gradient) {
        Some(Operand::Plain(gradient)) => Some(Seed(gradient)),
        _ => None,
    };
    let seeded = given
        .filter(|_| output.dims() == gradient.dims())
        .zip(Operand::of(&output))
        .and_then(|(seed, output)| differentiable::run(seed, [output]));
    match seeded {
        Some((scalar, ())) => scalar.into_tensor(),
        None => (output * gradient).sum(),
    }
}

#[derive(Clone, Debug)]
struct Seed(FlexTensor);

impl Kernel<1> for Seed {
    type Saved = ();

    fn forward(&self, _: [FlexTensor; 1]) -> (FlexTensor, ()) {
        (tensor(vec![0.0], [1]), ())
    }

    /// The scalar's own gradient is one.
    fn backward(&self, (): (), _: FlexTensor, _: [bool; 1]) -> [Option<FlexTensor>; 1] {
        [Some(self.0.clone())]
    }
}
