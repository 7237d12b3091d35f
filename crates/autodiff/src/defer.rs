//! Weight gradients that are computed later.
//!
//! Burn's backward pass computes all gradients at once, but the previous stage waits for the input's
//! gradient only. Within [`defer`], a kernel that can separate the two computes the input's gradient
//! and stores a closure for the weight's.

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

use crate::operand::{Operand, contiguous, tensor, values};

/// The parameters of a module, whose gradients may be deferred.
///
/// The gradient of a weight that is computed, or that is an input, must pass through the graph at
/// once: such weights do not belong here.
#[derive(Clone, Debug, Default)]
pub struct Parameters(HashMap<NodeId, ParamId>);

impl Parameters {
    /// Adds a parameter, with the tensor that the graph was recorded on; see [`defer`].
    pub fn insert<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        if let Some(Operand::Tracked(tensor)) = Operand::of(&parameter.val()) {
            self.0.insert(tensor.id(), parameter.id);
        }
    }
}

/// Runs a backward pass that may postpone gradients of `parameters`. Returns the postponed work
/// beside the result of `backward`.
///
/// A [`Kernel`](crate::Kernel) with a `WEIGHT` postpones; its docs have an example. All other
/// gradients are computed at once.
pub fn defer<R>(parameters: Parameters, backward: impl FnOnce() -> R) -> (R, Deferred) {
    let scope = Scope {
        parameters,
        deferred: Deferred::default(),
    };
    let outer = SCOPE.with(|current| current.replace(Some(scope)));
    let restore = Restore(outer); // also if `backward` panics
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
    // Burn calls a kernel's backward on the calling thread, and passes it no context.
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

struct Restore(Option<Scope>);

impl Drop for Restore {
    fn drop(&mut self) {
        SCOPE.set(self.0.take());
    }
}

type Work = Box<dyn FnOnce() -> Option<FlexTensor> + Send>;

/// The parameter at a node, if its gradient may be postponed.
pub fn deferrable(node: NodeId) -> Option<ParamId> {
    SCOPE.with_borrow(|scope| scope.as_ref()?.parameters.0.get(&node).copied())
}

/// Postpones the gradient of a parameter.
pub fn postpone(parameter: ParamId, work: impl FnOnce() -> Option<FlexTensor> + Send + 'static) {
    SCOPE.with_borrow_mut(|scope| {
        if let Some(scope) = scope {
            scope.deferred.0.push((parameter, Box::new(work)));
        }
    });
}

/// The gradients that a backward pass postponed, and what they need; see [`defer`].
#[derive(Default)]
#[must_use = "the postponed gradients are missing until they are run"]
pub struct Deferred(Vec<(ParamId, Work)>);

impl Deferred {
    /// Whether nothing was postponed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The parameters whose gradients were postponed.
    #[must_use]
    pub fn parameters(&self) -> HashSet<ParamId> {
        self.0.iter().map(|(parameter, _)| *parameter).collect()
    }

    /// Computes the gradients, in the order of the backward pass. Those of one parameter are added.
    #[must_use]
    pub fn run(self) -> WeightGradients {
        let mut gradients = HashMap::<ParamId, FlexTensor>::new();
        for (parameter, work) in self.0 {
            let sum = match (gradients.remove(&parameter), work()) {
                (Some(sum), Some(gradient)) => Some(add(sum, gradient)),
                (sum, gradient) => sum.or(gradient),
            };
            gradients.extend(sum.map(|sum| (parameter, sum)));
        }
        WeightGradients(gradients)
    }
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Deferred").field(&self.0.len()).finish()
    }
}

fn add(a: FlexTensor, b: FlexTensor) -> FlexTensor {
    let [a, b] = [a, b].map(contiguous);
    let sum = values(&a).iter().zip(values(&b)).map(|(a, b)| a + b);
    tensor(sum.collect(), a.layout().shape().clone())
}

/// Gradients of parameters, from [`Deferred::run`].
#[derive(Debug, Default)]
pub struct WeightGradients(HashMap<ParamId, FlexTensor>);

impl WeightGradients {
    /// Takes out the gradient of a parameter of rank `D`, if there is one.
    pub fn remove<const D: usize>(&mut self, parameter: ParamId) -> Option<Tensor<D>> {
        let gradient = self.0.remove(&parameter)?;
        Some(Operand::Plain(gradient).into_tensor())
    }
}
