//! Operations on the CPU that Burn can differentiate.

use std::fmt::Debug;

use burn::backend::{
    Flex,
    autodiff::{
        checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind},
    },
    tensor::FloatTensor,
};
use burn_flex::FlexTensor;

use crate::{
    defer::register,
    operand::{Operand, Tracked},
};

/// An operation on N tensors on the CPU, and its gradient.
///
/// ```
/// use burn::{module::Param, tensor::{Device, Tensor}};
/// use burn_flex::FlexTensor;
/// use stovepipe_autodiff::{Kernel, Operand, Parameters, defer, tensor, values};
///
/// /// The product of two scalars.
/// #[derive(Clone, Debug)]
/// struct Product;
///
/// impl Kernel<2> for Product {
///     const WEIGHT: Option<usize> = Some(1); // the gradient of the second input can wait
///     type Saved = [f32; 2];
///
///     fn forward(&self, inputs: [FlexTensor; 2]) -> (FlexTensor, [f32; 2]) {
///         let [x, weight] = inputs.each_ref().map(|input| values(input)[0]);
///         (tensor(vec![x * weight], [1]), [x, weight])
///     }
///
///     fn backward(
///         &self,
///         [x, weight]: [f32; 2],
///         gradient: FlexTensor,
///         [needs_x, needs_weight]: [bool; 2],
///     ) -> [Option<FlexTensor>; 2] {
///         let times = |factor| tensor(vec![values(&gradient)[0] * factor], [1]);
///         [needs_x.then(|| times(weight)), needs_weight.then(|| times(x))]
///     }
/// }
///
/// let leaf = |value: f32| Tensor::<1>::from_floats([value], &Device::flex().autodiff()).require_grad();
/// let (x, weight) = (leaf(3.0), Param::from_tensor(leaf(5.0)));
/// let operands = [Operand::of(&x), Operand::of(&weight.val())].map(Option::unwrap);
/// let y: Tensor<1> = Product.run(operands).unwrap().0.into_tensor();
///
/// // A backward pass that postpones the gradient of the weight.
/// let mut parameters = Parameters::default();
/// parameters.insert(&weight);
/// let (gradients, deferred) = defer(parameters, || y.backward());
/// assert_eq!(x.grad(&gradients).unwrap().into_scalar::<f32>(), 5.0);
/// assert!(weight.val().grad(&gradients).is_none());
/// let of_weight = deferred.run().remove::<1>(weight.id).unwrap();
/// assert_eq!(of_weight.into_scalar::<f32>(), 3.0);
/// ```
pub trait Kernel<const N: usize>: Clone + Debug + Send + 'static {
    /// The input whose gradient can be computed separately from the others, at no extra cost; see
    /// [`defer`](crate::defer()).
    const WEIGHT: Option<usize> = None;

    /// What the backward pass needs of the forward pass.
    type Saved: Clone + Debug + Send + 'static;

    /// Returns the output, and what is saved.
    fn forward(&self, inputs: [FlexTensor; N]) -> (FlexTensor, Self::Saved);

    /// The gradients of the inputs that need one, given the gradient of the output.
    fn backward(
        &self,
        saved: Self::Saved,
        gradient: FlexTensor,
        needed: [bool; N],
    ) -> [Option<FlexTensor>; N];

    /// Runs the kernel, and records it if an input is tracked. `None` if only some of the operands
    /// belong to a graph.
    fn run(self, operands: [Operand; N]) -> Option<(Operand, Self::Saved)> {
        let mut plain = Vec::with_capacity(N);
        let mut tracked = Vec::with_capacity(N);
        for operand in operands {
            match operand {
                Operand::Plain(tensor) => plain.push(tensor),
                Operand::Tracked(tensor) => tracked.push(tensor),
            }
        }
        if let Ok(inputs) = <[_; N]>::try_from(plain) {
            let (output, saved) = self.forward(inputs);
            return Some((Operand::Plain(output), saved));
        }
        let inputs = <[FloatTensor<Tracked>; N]>::try_from(tracked).ok()?;
        let nodes = inputs.each_ref().map(|input| input.node());
        let (output, saved) = self.forward(inputs.map(|input| input.into_primitive()));
        let recorded = Recorded(self).prepare::<NoCheckpointing>(nodes);
        let output = match recorded.compute_bound().stateful() {
            OpsKind::Tracked(step) => step.finish(saved.clone(), output),
            OpsKind::UnTracked(step) => step.finish(output),
        };
        Some((Operand::Tracked(output), saved))
    }
}

#[derive(Clone, Debug)]
struct Recorded<K>(K);

impl<K: Kernel<N>, const N: usize> Backward<Flex, N> for Recorded<K> {
    type State = K::Saved;

    fn backward(self, step: Ops<K::Saved, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<Flex>(&step.node);
        let compute = move |needed| self.0.backward(step.state, gradient, needed);
        let parents = step.parents.map(|parent| parent.map(|node| node.id));
        register::<Flex, N>(parents, K::WEIGHT, gradients, compute);
    }
}
