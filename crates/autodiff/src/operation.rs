//! Operations of Burn's, on every backend, with gradients of our own.

use std::{array, fmt::Debug};

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

use crate::{
    defer::register,
    dispatch::{dispatched, is_on, primitive},
};

/// An operation on N tensors, and its gradient, computed with Burn's operations.
///
/// Burn differentiates each operation by itself. An implementation decides what the gradient of a
/// whole computation needs, and can leave the gradient of a weight for [later](crate::defer()).
/// Tensors have no rank here: [`Tensor::from_dispatch`] gives them one. [`Kernel`](crate::Kernel)
/// is the counterpart for code that reads and writes the values on the CPU.
///
/// ```
/// use burn::{backend::DispatchTensor, tensor::{Device, Tensor}};
/// use stovepipe_autodiff::Operation;
///
/// /// The product of two vectors, element by element.
/// #[derive(Clone, Debug)]
/// struct Product;
///
/// impl Operation<2> for Product {
///     fn forward(&self, inputs: [DispatchTensor; 2]) -> DispatchTensor {
///         let [a, b] = inputs.map(Tensor::<1>::from_dispatch);
///         (a * b).into_dispatch()
///     }
///
///     fn backward(
///         &self,
///         inputs: [DispatchTensor; 2],
///         gradient: DispatchTensor,
///         [needs_a, needs_b]: [bool; 2],
///     ) -> [Option<DispatchTensor>; 2] {
///         let [a, b] = inputs.map(Tensor::<1>::from_dispatch);
///         let times = |x: Tensor<1>| (x * Tensor::from_dispatch(gradient.clone())).into_dispatch();
///         [needs_a.then(|| times(b)), needs_b.then(|| times(a))]
///     }
/// }
///
/// let device = Device::flex().autodiff();
/// let [a, b] = [3.0, 5.0].map(|x| Tensor::<1>::from_floats([x], &device).require_grad());
/// let operands = [&a, &b].map(|x| x.clone().into_dispatch());
/// let y = Tensor::<1>::from_dispatch(Product.run(operands).unwrap());
/// let of_a = a.grad(&y.backward()).unwrap();
/// assert_eq!(of_a.into_scalar::<f32>(), 5.0);
/// ```
pub trait Operation<const N: usize>: Clone + Debug + Send + 'static {
    /// The input whose gradient can be computed separately from the others, at no extra cost; see
    /// [`defer`](crate::defer()).
    const WEIGHT: Option<usize> = None;

    /// Whether [`backward`](Self::backward) uses the inputs. If not, they are not kept for it, and it gets the gradient
    /// in their place.
    const USES_INPUTS: bool = true;

    /// The output, of tensors outside of any graph.
    fn forward(&self, inputs: [DispatchTensor; N]) -> DispatchTensor;

    /// The gradients of the inputs that need one, given the gradient of the output.
    fn backward(
        &self,
        inputs: [DispatchTensor; N],
        gradient: DispatchTensor,
        needed: [bool; N],
    ) -> [Option<DispatchTensor>; N];

    /// Runs the operation, and records it if its inputs are tracked. `None` if only some of them
    /// are, under Burn's gradient checkpointing, and on a backend that Stovepipe does not know.
    #[must_use]
    fn run(self, inputs: [DispatchTensor; N]) -> Option<DispatchTensor> {
        let found = run_on::<Flex, _, N>(&self, &inputs);
        #[cfg(feature = "cube")]
        let found = found.or_else(|| run_on::<burn::backend::Cube, _, N>(&self, &inputs));
        found
    }
}

fn run_on<B: Backend, O: Operation<N>, const N: usize>(
    operation: &O,
    inputs: &[DispatchTensor; N],
) -> Option<DispatchTensor>
where
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B>>,
{
    if inputs.iter().all(|input| is_on::<B>(input)) {
        return Some(operation.forward(inputs.clone()));
    }
    let tracked = inputs.iter().map(|input| {
        let input = Tensor::<1>::from_dispatch(input.clone());
        input.try_into_primitive::<Autodiff<B>>().ok()
    });
    let tracked = tracked.collect::<Option<Vec<_>>>()?;
    let tracked = <[FloatTensor<Autodiff<B>>; N]>::try_from(tracked).ok()?;
    let nodes = tracked.each_ref().map(|input| input.node());
    let inputs = tracked.map(|input| dispatched::<B>(input.into_primitive()));
    let kept = O::USES_INPUTS.then(|| inputs.clone());
    let output = primitive::<B>(operation.forward(inputs))?;
    let recorded = Recorded(operation.clone()).prepare::<NoCheckpointing>(nodes);
    let output = match recorded.compute_bound().stateful() {
        OpsKind::Tracked(step) => step.finish(kept, output),
        OpsKind::UnTracked(step) => step.finish(output),
    };
    Some(Tensor::<1>::from_primitive::<Autodiff<B>>(output).into_dispatch())
}

#[derive(Debug)]
struct Recorded<O>(O);

impl<B: Backend, O: Operation<N>, const N: usize> Backward<B, N> for Recorded<O>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = Option<[DispatchTensor; N]>;

    fn backward(self, step: Ops<Self::State, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = dispatched::<B>(gradients.consume::<B>(&step.node));
        let (operation, inputs) = (self.0, step.state);
        let inputs = inputs.unwrap_or_else(|| array::from_fn(|_| gradient.clone()));
        let compute = move |needed| {
            let found = operation.backward(inputs, gradient, needed);
            found.map(|found| found.and_then(primitive::<B>))
        };
        let parents = step.parents.map(|parent| parent.map(|node| node.id));
        register::<B, N>(parents, O::WEIGHT, gradients, compute);
    }
}
