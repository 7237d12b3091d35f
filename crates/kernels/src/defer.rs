//! Gradients of weights that come later.
//!
//! Burn's backward pass finds all gradients at once, though the stage before waits for that of the
//! input alone. Within [`defer`], kernels that can find the two apart find that of the input, and
//! leave a closure behind for that of the weight, with all that it needs.

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    fmt,
};

use burn::{
    backend::autodiff::NodeId,
    module::{Param, ParamId},
    tensor::Tensor,
};
use burn_flex::FlexTensor;

use crate::{differentiable::Operand, planes::added};

/// The parameters whose gradients may come later: those of a module.
///
/// A weight that is computed from something, or comes in as an input, is none of them: its gradient
/// goes on through the graph, and cannot wait.
#[derive(Clone, Debug, Default)]
pub struct Parameters(HashMap<NodeId, ParamId>);

impl Parameters {
    /// Adds a parameter, as the graph was recorded on it; see [`defer`].
    pub fn insert<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        if let Some(Operand::Tracked(tensor)) = Operand::of(&parameter.val()) {
            self.0.insert(tensor.id(), parameter.id);
        }
    }
}

/// Runs a backward pass in which gradients of `parameters` may be left for later. What is left is
/// returned beside the result of `backward`; where no kernel can wait, that is nothing.
///
/// Kernels that can: [`convolve`](crate::convolve), [`relu_convolve`](crate::relu_convolve),
/// [`relu_convolve_odd`](crate::relu_convolve_odd), on the CPU. All else that the backward pass
/// finds is where it is without `defer`.
///
/// ```
/// use burn::{nn::conv::Conv2dConfig, tensor::{Device, Tensor}};
/// use stovepipe_kernels::{Parameters, convolve, defer};
///
/// let device = Device::flex().autodiff();
/// let conv = Conv2dConfig::new([1, 1], [1, 1]).with_bias(false).init(&device);
/// let x = Tensor::ones([1, 1, 2, 2], &device).require_grad();
/// let loss = convolve(&conv, x.clone()).sum();
///
/// let mut parameters = Parameters::default();
/// parameters.insert(&conv.weight);
/// let (gradients, deferred) = defer(parameters, || loss.backward());
/// assert!(x.grad(&gradients).is_some());
/// assert!(conv.weight.val().grad(&gradients).is_none()); // not yet
///
/// let of_weight = deferred.run().remove::<4>(conv.weight.id);
/// assert_eq!(of_weight.map(Tensor::into_scalar::<f32>), Some(4.0));
/// ```
pub fn defer<R>(parameters: Parameters, backward: impl FnOnce() -> R) -> (R, Deferred) {
    let scope = Scope {
        parameters,
        deferred: Deferred::default(),
    };
    let outer = SCOPE.with(|current| current.replace(Some(scope)));
    // Puts the outer scope back when a user's code panics, too.
    let restore = Restore(outer);
    let result = backward();
    let scope = SCOPE.with(|current| current.borrow_mut().take());
    drop(restore);
    let deferred = scope.map(|scope| scope.deferred).unwrap_or_default();
    (result, deferred)
}

struct Scope {
    parameters: Parameters,
    deferred: Deferred,
}

thread_local! {
    // Burn calls a kernel's backward on the thread that asked for it, and hands it no context.
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

struct Restore(Option<Scope>);

impl Drop for Restore {
    fn drop(&mut self) {
        let outer = self.0.take();
        SCOPE.with(|current| current.replace(outer));
    }
}

type Work = Box<dyn FnOnce() -> Option<FlexTensor> + Send>;

/// Which parameter a node is, if its gradient may come later.
pub fn deferrable(node: NodeId) -> Option<ParamId> {
    SCOPE.with(|scope| scope.borrow().as_ref()?.parameters.0.get(&node).copied())
}

/// Leaves the gradient of a parameter for later.
pub fn leave(parameter: ParamId, work: impl FnOnce() -> Option<FlexTensor> + Send + 'static) {
    SCOPE.with(|scope| {
        if let Some(scope) = scope.borrow_mut().as_mut() {
            scope.deferred.work.push((parameter, Box::new(work)));
        }
    });
}

/// Gradients that a backward pass left for later, and what they need; see [`defer`].
#[derive(Default)]
#[must_use = "gradients that are never found are lost"]
pub struct Deferred {
    work: Vec<(ParamId, Work)>,
}

impl Deferred {
    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.work.is_empty()
    }

    /// The parameters whose gradients are left.
    #[must_use]
    pub fn parameters(&self) -> HashSet<ParamId> {
        self.work.iter().map(|(parameter, _)| *parameter).collect()
    }

    /// Finds the gradients, in the order in which the backward pass would have; those of one
    /// parameter are added.
    #[must_use]
    pub fn run(self) -> WeightGradients {
        let mut found = HashMap::<ParamId, FlexTensor>::new();
        for (parameter, work) in self.work {
            let sum = match (found.remove(&parameter), work()) {
                (Some(sum), Some(gradient)) => Some(added(sum, gradient)),
                (sum, gradient) => sum.or(gradient),
            };
            found.extend(sum.map(|sum| (parameter, sum)));
        }
        WeightGradients(found)
    }
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Deferred").field(&self.work.len()).finish()
    }
}

/// Gradients of parameters, by [`Deferred::run`].
#[derive(Debug, Default)]
pub struct WeightGradients(HashMap<ParamId, FlexTensor>);

impl WeightGradients {
    /// Takes the gradient of a parameter of rank `D` out, if there is one.
    pub fn remove<const D: usize>(&mut self, parameter: ParamId) -> Option<Tensor<D>> {
        let gradient = self.0.remove(&parameter)?;
        Some(Operand::Plain(gradient).into_tensor())
    }
}
