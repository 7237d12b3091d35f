//! What makes a kernel an operation that Burn can differentiate.

use std::fmt::Debug;

use burn::{
    backend::{
        Autodiff, Flex,
        autodiff::{
            checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
            grads::Gradients,
            ops::{Backward, Ops, OpsKind},
        },
        tensor::FloatTensor,
    },
    tensor::{DType, Tensor},
};
use burn_flex::FlexTensor;

use crate::defer::{deferrable, leave};

type Tracked = Autodiff<Flex, NoCheckpointing>;

/// An operation on N tensors on the CPU, and its gradient.
pub(crate) trait Kernel<const N: usize>: Clone + Debug + Send + 'static {
    /// The input whose gradient can be found by itself, after those of the others, at no more cost
    /// than with them: see [`defer`](crate::defer()).
    const WEIGHT: Option<usize> = None;

    /// What the gradient needs of the forward pass.
    type Saved: Clone + Debug + Send + 'static;

    /// The output, and what is saved.
    fn forward(&self, inputs: [FlexTensor; N]) -> (FlexTensor, Self::Saved);

    /// The gradients of those inputs that are wanted, given the gradient of the output.
    fn backward(
        &self,
        saved: Self::Saved,
        gradient: FlexTensor,
        wanted: [bool; N],
    ) -> [Option<FlexTensor>; N];
}

/// A tensor on the CPU, with a place for it in a graph or without.
pub(crate) enum Operand {
    Plain(FlexTensor),
    Tracked(FloatTensor<Tracked>),
}

impl Operand {
    /// `None` if the tensor lies on another backend, is not of `f32`, or belongs to a graph that
    /// drops what it could compute again.
    pub(crate) fn of<const D: usize>(tensor: &Tensor<D>) -> Option<Self> {
        if tensor.dtype() != DType::F32 {
            return None;
        }
        let tensor = tensor.clone();
        match tensor.is_autodiff() {
            true => tensor
                .try_into_primitive::<Tracked>()
                .ok()
                .map(Self::Tracked),
            false => tensor.try_into_primitive::<Flex>().ok().map(Self::Plain),
        }
    }

    pub(crate) fn into_tensor<const D: usize>(self) -> Tensor<D> {
        match self {
            Self::Plain(primitive) => Tensor::from_primitive::<Flex>(primitive),
            Self::Tracked(primitive) => Tensor::from_primitive::<Tracked>(primitive),
        }
    }
}

/// Runs a kernel, and records it if a graph wants it. `None` if some operands can be recorded and
/// others not.
pub(crate) fn run<K: Kernel<N>, const N: usize>(
    kernel: K,
    operands: [Operand; N],
) -> Option<(Operand, K::Saved)> {
    let mut plain = Vec::with_capacity(N);
    let mut tracked = Vec::with_capacity(N);
    for operand in operands {
        match operand {
            Operand::Plain(tensor) => plain.push(tensor),
            Operand::Tracked(tensor) => tracked.push(tensor),
        }
    }
    if let Ok(inputs) = <[_; N]>::try_from(plain) {
        let (output, saved) = kernel.forward(inputs);
        return Some((Operand::Plain(output), saved));
    }
    let inputs = <[FloatTensor<Tracked>; N]>::try_from(tracked).ok()?;
    let nodes = inputs.each_ref().map(|input| input.node());
    let (output, saved) = kernel.forward(inputs.map(|input| input.into_primitive()));
    let recorded = Recorded(kernel).prepare::<NoCheckpointing>(nodes);
    let output = match recorded.compute_bound().stateful() {
        OpsKind::Tracked(step) => step.finish(saved.clone(), output),
        OpsKind::UnTracked(step) => step.finish(output),
    };
    Some((Operand::Tracked(output), saved))
}

#[derive(Debug)]
struct Recorded<K>(K);

impl<K: Kernel<N>, const N: usize> Backward<Flex, N> for Recorded<K> {
    type State = K::Saved;

    fn backward(self, step: Ops<K::Saved, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<Flex>(&step.node);
        let mut wanted = step.parents.each_ref().map(Option::is_some);
        let weight = K::WEIGHT.and_then(|index| Some((index, step.parents[index].as_ref()?.id)));
        if let Some((index, parameter)) = weight.and_then(|(i, id)| Some((i, deferrable(id)?))) {
            wanted[index] = false;
            let (kernel, saved, gradient) = (self.0.clone(), step.state.clone(), gradient.clone());
            leave(parameter, move || {
                let of_weight = std::array::from_fn(|input| input == index);
                let mut found = kernel.backward(saved, gradient, of_weight);
                found[index].take()
            });
        }
        if !wanted.contains(&true) {
            return;
        }
        let found = self.0.backward(step.state, gradient, wanted);
        for (parent, found) in step.parents.into_iter().zip(found) {
            if let (Some(parent), Some(found)) = (parent, found) {
                gradients.register::<Flex>(parent.id, found);
            }
        }
    }
}
