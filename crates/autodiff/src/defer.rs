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
    backend::{
        Autodiff, Backend, DispatchKindConversion, DispatchTensor, Flex,
        autodiff::{NodeId, grads::Gradients},
        tensor::FloatTensor,
    },
    module::{Param, ParamId},
    tensor::Tensor,
};

use crate::dispatch::dispatched;

/// The parameters of a module, whose gradients may be deferred.
///
/// The gradient of a weight that is computed, or that is an input, must pass through the graph at
/// once: such weights do not belong here.
#[derive(Clone, Debug, Default)]
pub struct Parameters(HashMap<NodeId, ParamId>);

impl Parameters {
    /// Adds a parameter, with the tensor that the graph was recorded on; see [`defer`].
    pub fn insert<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        let node = node_of::<Flex, D>(parameter.val());
        #[cfg(feature = "cube")]
        let node = node.or_else(|| node_of::<burn::backend::Cube, D>(parameter.val()));
        self.0.extend(node.map(|node| (node, parameter.id)));
    }
}

fn node_of<B: Backend, const D: usize>(tensor: Tensor<D>) -> Option<NodeId>
where
    DispatchTensor: DispatchKindConversion<Autodiff<B>>,
{
    let tracked = tensor.try_into_primitive::<Autodiff<B>>().ok()?;
    Some(tracked.node().id())
}

/// Runs a backward pass that may postpone gradients of `parameters`. Returns the postponed work
/// beside the result of `backward`.
///
/// A [`Kernel`](crate::Kernel) or an [`Operation`](crate::Operation) with a `WEIGHT` postpones; the
/// kernel's docs have an example. All other gradients are computed at once.
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

type Work = Box<dyn FnOnce() -> Option<DispatchTensor> + Send>;

/// The parameter at a node, if its gradient may be postponed.
pub fn deferrable(node: NodeId) -> Option<ParamId> {
    SCOPE.with_borrow(|scope| scope.as_ref()?.parameters.0.get(&node).copied())
}

/// Postpones the gradient of a parameter.
pub fn postpone(
    parameter: ParamId,
    work: impl FnOnce() -> Option<DispatchTensor> + Send + 'static,
) {
    SCOPE.with_borrow_mut(|scope| {
        if let Some(scope) = scope {
            scope.deferred.0.push((parameter, Box::new(work)));
        }
    });
}

/// Registers the gradients of an operation's inputs, which `compute` returns where they are needed.
/// That of the input `weight` is postponed, if it may be.
pub(crate) fn register<B: Backend, const N: usize>(
    parents: [Option<NodeId>; N],
    weight: Option<usize>,
    gradients: &mut Gradients,
    compute: impl FnOnce([bool; N]) -> [Option<FloatTensor<B>>; N] + Clone + Send + 'static,
) where
    DispatchTensor: DispatchKindConversion<B>,
{
    let mut needed = parents.map(|parent| parent.is_some());
    let weight = weight.and_then(|index| Some((index, deferrable(parents[index]?)?)));
    if let Some((index, parameter)) = weight {
        needed[index] = false;
        let compute = compute.clone();
        postpone(parameter, move || {
            let weight_only = std::array::from_fn(|input| input == index);
            compute(weight_only)[index].take().map(dispatched::<B>)
        });
    }
    if !needed.contains(&true) {
        return;
    }
    for (parent, gradient) in parents.into_iter().zip(compute(needed)) {
        if let (Some(parent), Some(gradient)) = (parent, gradient) {
            gradients.register::<B>(parent, gradient);
        }
    }
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

    /// Computes the gradients, in the order of the backward pass.
    #[must_use]
    pub fn run(self) -> WeightGradients {
        let mut gradients = HashMap::<_, Vec<_>>::new();
        for (parameter, work) in self.0 {
            gradients.entry(parameter).or_default().extend(work());
        }
        WeightGradients(gradients)
    }
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Deferred").field(&self.0.len()).finish()
    }
}

/// Gradients of parameters, from [`Deferred::run`].
#[derive(Debug, Default)]
pub struct WeightGradients(HashMap<ParamId, Vec<DispatchTensor>>);

impl WeightGradients {
    /// Takes out the gradient of a parameter of rank `D`, if there is one: the sum of all, in the
    /// order of the backward pass.
    pub fn remove<const D: usize>(&mut self, parameter: ParamId) -> Option<Tensor<D>> {
        let gradients = self.0.remove(&parameter)?.into_iter();
        gradients
            .map(Tensor::from_dispatch)
            .reduce(|sum, gradient| sum + gradient)
    }
}
