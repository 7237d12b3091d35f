//! What the engine does to a flow without knowing what is in it.

use std::{any::Any, collections::HashMap};

use burn::tensor::{Bool, Device, FloatDType, Gradients, Int, Tensor, container::TensorContainer};
use stovepipe_kernels as kernels;

use crate::model::flow::{Flow, FlowMapper};

/// Moves a flow to a device. Tensors that are there already are not copied.
pub(crate) fn to_device<F: Flow>(flow: F, device: &Device) -> F {
    struct Move<'a>(&'a Device);

    impl FlowMapper for Move<'_> {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            tensor.to_device(self.0)
        }
        fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
            tensor.to_device(self.0)
        }
        fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
            tensor.to_device(self.0)
        }
    }

    flow.map(&mut Move(device))
}

/// Gives the floats of a flow another type, if there is one. Gradients come back in the type that they have.
pub(crate) fn cast<F: Flow>(flow: F, dtype: Option<FloatDType>) -> F {
    struct Cast(FloatDType);

    impl FlowMapper for Cast {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            tensor.cast(self.0)
        }
    }

    match dtype {
        Some(dtype) => flow.map(&mut Cast(dtype)),
        None => flow,
    }
}

/// Gives the floats of a flow that have fewer bits than f32 that type.
pub(crate) fn widened<F: Flow>(flow: F) -> F {
    struct Widen;

    impl FlowMapper for Widen {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            kernels::widened(tensor)
        }
    }

    flow.map(&mut Widen)
}

/// Takes a flow out of its graph: the values alone.
pub(crate) fn detach<F: Flow>(flow: F) -> F {
    struct Detach;

    impl FlowMapper for Detach {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            tensor.inner()
        }
        fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
            tensor.inner()
        }
        fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
            tensor.inner()
        }
    }

    flow.map(&mut Detach)
}

/// Puts detached values into the autodiff world, as constants or as leaves that want a gradient.
///
/// Batch norm and dropout look at their input's device to know whether they train, so constants
/// need this too.
pub(crate) fn attach<F: Flow>(flow: F, want_gradients: bool) -> F {
    struct Attach(bool);

    impl FlowMapper for Attach {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            tensor.autodiff().set_require_grad(self.0)
        }
        fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
            tensor.autodiff()
        }
        fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
            tensor.autodiff()
        }
    }

    flow.map(&mut Attach(want_gradients))
}

/// The gradients of a flow: of its float tensors, numbered in the order of a visit. A tensor that
/// has no part in the loss has none.
#[derive(Default)]
pub(crate) struct FlowGradients(HashMap<usize, Box<dyn Gradient>>);

impl FlowGradients {
    pub(crate) fn register<const D: usize>(&mut self, index: usize, gradient: Tensor<D>) {
        self.0.insert(index, Box::new(gradient));
    }

    pub(crate) fn remove<const D: usize>(&mut self, index: usize) -> Option<Tensor<D>> {
        let gradient = self.0.remove(&index)?;
        gradient
            .into_any()
            .downcast()
            .ok()
            .map(|gradient| *gradient)
    }

    pub(crate) fn get<const D: usize>(&self, index: usize) -> Option<&Tensor<D>> {
        self.0.get(&index)?.as_any().downcast_ref()
    }

    /// Moves them to a device.
    pub(crate) fn moved_to(self, device: &Device) -> Self {
        let moved = |(index, gradient): (_, Box<dyn Gradient>)| (index, gradient.to_device(device));
        Self(self.0.into_iter().map(moved).collect())
    }
}

/// A float tensor of any rank.
trait Gradient: Send {
    fn to_device(self: Box<Self>, device: &Device) -> Box<dyn Gradient>;
    fn as_any(&self) -> &dyn Any;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl<const D: usize> Gradient for Tensor<D> {
    fn to_device(self: Box<Self>, device: &Device) -> Box<dyn Gradient> {
        Box::new(Tensor::to_device(*self, device))
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Takes the gradients of a flow's leaves out of a finished backward pass.
pub(crate) fn take_gradients<F: Flow>(leaves: F, gradients: &mut Gradients) -> FlowGradients {
    struct Take<'a> {
        gradients: &'a mut Gradients,
        taken: FlowGradients,
        index: usize,
    }

    impl FlowMapper for Take<'_> {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            if let Some(gradient) = tensor.grad_remove(self.gradients) {
                self.taken.register(self.index, gradient);
            }
            self.index += 1;
            tensor
        }
    }

    let mut take = Take {
        gradients,
        taken: FlowGradients::default(),
        index: 0,
    };
    leaves.map(&mut take);
    take.taken
}

/// The scalar whose backward pass is the vector–Jacobian product, Burn's backward taking no initial
/// gradient. `None` if no tensor of the flow is both tracked and wanted.
pub(crate) fn seed<F: Flow>(output: F, gradients: FlowGradients) -> Option<Tensor<1>> {
    struct Seed {
        gradients: FlowGradients,
        index: usize,
        sum: Option<Tensor<1>>,
    }

    impl FlowMapper for Seed {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            let gradient = self.gradients.remove(self.index);
            self.index += 1;
            if let Some(gradient) = gradient.filter(|_| tensor.is_tracked()) {
                // In f32, as losses are that may be added to it.
                let scalar = kernels::widened(kernels::seed(tensor.clone(), gradient));
                self.sum = add(self.sum.take(), Some(scalar));
            }
            tensor
        }
    }

    let mut seed = Seed {
        gradients,
        index: 0,
        sum: None,
    };
    output.map(&mut seed);
    seed.sum
}

/// Ones for gradients of a flow.
pub(crate) fn ones<F: Flow>(flow: F) -> FlowGradients {
    #[derive(Default)]
    struct Ones {
        gradients: FlowGradients,
        index: usize,
    }

    impl FlowMapper for Ones {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.gradients.register(self.index, tensor.ones_like());
            self.index += 1;
            tensor
        }
    }

    let mut ones = Ones::default();
    flow.map(&mut ones);
    ones.gradients
}

/// The sum of all floats of a flow, if it has any.
pub(crate) fn sum<F: Flow>(flow: F) -> Option<Tensor<1>> {
    struct Sum(Option<Tensor<1>>);

    impl FlowMapper for Sum {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.0 = add(self.0.take(), Some(tensor.clone().sum()));
            tensor
        }
    }

    let mut sum = Sum(None);
    flow.map(&mut sum);
    sum.0
}

/// The bytes of a flow's tensors.
pub(crate) fn bytes<F: Flow>(flow: F) -> usize {
    struct Bytes(usize);

    impl FlowMapper for Bytes {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.0 += tensor.shape().num_elements() * tensor.dtype().size();
            tensor
        }
        fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
            self.0 += tensor.shape().num_elements() * tensor.dtype().size();
            tensor
        }
        fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
            self.0 += tensor.shape().num_elements() * tensor.dtype().size();
            tensor
        }
    }

    let mut bytes = Bytes(0);
    flow.map(&mut bytes);
    bytes.0
}

/// Has Burn forget what it noted of passes without a tape, which it otherwise does in the next backward
/// pass.
pub(crate) fn sweep(device: &Device) {
    let one = Tensor::<1>::ones([1], &device.clone().autodiff());
    drop(one.require_grad().sum().backward());
}

/// Adds what there is.
pub(crate) fn add(a: Option<Tensor<1>>, b: Option<Tensor<1>>) -> Option<Tensor<1>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    }
}

/// Joins the parts of a batch again, or returns `None` if they are not of one shape (an output
/// that is an enum and whose variant changed between micro-batches).
pub(crate) fn join<F: Flow>(parts: Vec<F>) -> Option<F> {
    struct Collect {
        tensors: TensorContainer<usize>,
        count: usize,
    }

    impl Collect {
        fn push<T: Clone + Send + 'static>(&mut self, tensor: T) -> T {
            self.tensors.register(self.count, tensor.clone());
            self.count += 1;
            tensor
        }
    }

    impl FlowMapper for Collect {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.push(tensor)
        }
        fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
            self.push(tensor)
        }
        fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
            self.push(tensor)
        }
    }

    struct Join {
        rest: Vec<Collect>,
        index: usize,
    }

    impl Join {
        fn others<T: Clone + Send + 'static>(&mut self, first: T) -> Vec<T> {
            let index = self.index;
            self.index += 1;
            let rest = self.rest.iter_mut();
            let others = rest.filter_map(|part| part.tensors.remove::<T>(&index));
            std::iter::once(first).chain(others).collect()
        }
    }

    impl FlowMapper for Join {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            Tensor::cat(self.others(tensor), 0)
        }
        fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
            Tensor::cat(self.others(tensor), 0)
        }
        fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
            Tensor::cat(self.others(tensor), 0)
        }
    }

    let shapes: Vec<_> = parts.iter().map(|part| shape_of(part.clone())).collect();
    if shapes.windows(2).any(|pair| pair[0] != pair[1]) {
        return None;
    }
    let mut parts = parts.into_iter();
    let first = parts.next()?;
    let rest = parts
        .map(|part| {
            let mut collect = Collect {
                tensors: TensorContainer::new(),
                count: 0,
            };
            part.map(&mut collect);
            collect
        })
        .collect();
    Some(first.map(&mut Join { rest, index: 0 }))
}

/// Kind and shape, but for the batch, of each tensor. Parts are compared before they are joined
/// because joining takes tensors by their place, and a wrong type there would be a panic.
fn shape_of<F: Flow>(flow: F) -> Vec<(char, Vec<usize>)> {
    struct Shapes(Vec<(char, Vec<usize>)>);

    impl FlowMapper for Shapes {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.0.push(('f', tensor.dims()[1..].to_vec()));
            tensor
        }
        fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
            self.0.push(('i', tensor.dims()[1..].to_vec()));
            tensor
        }
        fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
            self.0.push(('b', tensor.dims()[1..].to_vec()));
            tensor
        }
    }

    let mut shapes = Shapes(Vec::new());
    flow.map(&mut shapes);
    shapes.0
}
