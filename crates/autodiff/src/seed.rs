//! Backward passes that start from a given gradient.

use burn::{
    backend::{
        Autodiff, Backend, DispatchKindConversion, DispatchTensor, Flex,
        autodiff::{
            checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
            grads::Gradients,
            ops::{Backward, Ops, OpsKind},
        },
        tensor::FloatTensor,
    },
    tensor::Tensor,
};

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
    let found = seeded::<Flex, D>(&output, &gradient);
    #[cfg(feature = "cube")]
    let found = found.or_else(|| seeded::<burn::backend::Cube, D>(&output, &gradient));
    found.unwrap_or_else(|| (output * gradient).sum())
}

/// `None` if the tensors are not alike, or not of this backend.
fn seeded<B: Backend, const D: usize>(output: &Tensor<D>, gradient: &Tensor<D>) -> Option<Tensor<1>>
where
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B>>,
{
    let are_alike = output.dims() == gradient.dims()
        && output.dtype() == gradient.dtype()
        && output.device() == gradient.device();
    if !are_alike {
        return None;
    }
    let gradient = gradient.clone().try_into_primitive::<B>().ok()?;
    let scalar = Tensor::<1>::zeros([1], &output.device().inner());
    let scalar = scalar.try_into_primitive::<B>().ok()?;
    let output = output.clone().try_into_primitive::<Autodiff<B>>().ok()?;
    let recorded = Seed.prepare::<NoCheckpointing>([output.node()]);
    let scalar = match recorded.compute_bound().stateful() {
        OpsKind::Tracked(step) => step.finish(gradient, scalar),
        OpsKind::UnTracked(step) => step.finish(scalar),
    };
    Some(Tensor::from_primitive::<Autodiff<B>>(scalar))
}

#[derive(Debug)]
struct Seed;

impl<B: Backend> Backward<B, 1> for Seed {
    type State = FloatTensor<B>;

    fn backward(
        self,
        step: Ops<FloatTensor<B>, 1>,
        gradients: &mut Gradients,
        _: &mut Checkpointer,
    ) {
        let [parent] = step.parents;
        if let Some(parent) = parent {
            gradients.register::<B>(parent.id, step.state);
        }
    }
}
