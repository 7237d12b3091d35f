//! Operations on any flow inside a step: cast, seed a backward pass, join.

use std::{
    any::{Any, TypeId},
    collections::{HashMap, VecDeque},
};

use burn::{
    backend::ExecutionError,
    tensor::{Bool, Device, Float, FloatDType, Gradients, Int, Tensor, kind::Basic},
};
use stovepipe_autodiff as autodiff;

use crate::{
    measure::{checksum::Checksum, probe::touch},
    model::{
        flow::{Flow, FlowMapper, every_kind},
        moved::moved,
        packed::{PackError, Packed},
    },
};

/// Casts the floats of a flow, if there is a type. Gradients return in the type that they have.
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

/// Casts floats with fewer bits than f32 to f32.
pub(crate) fn widened<F: Flow>(flow: F) -> F {
    struct Widen;

    impl FlowMapper for Widen {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            autodiff::at_least_f32(tensor)
        }
    }

    flow.map(&mut Widen)
}

/// The gradients of a flow's float tensors, numbered in the order of a visit. A tensor that the loss
/// does not depend on has none.
#[derive(Default)]
pub(crate) struct FlowGradients(HashMap<usize, Box<dyn Gradient>>);

impl FlowGradients {
    pub(crate) fn register<const D: usize>(&mut self, index: usize, gradient: Tensor<D>) {
        self.0.insert(index, Box::new(gradient));
    }

    pub(crate) fn remove<const D: usize>(&mut self, index: usize) -> Option<Tensor<D>> {
        let gradient: Box<dyn Any> = self.0.remove(&index)?;
        gradient.downcast().ok().map(|gradient| *gradient)
    }

    pub(crate) fn get<const D: usize>(&self, index: usize) -> Option<&Tensor<D>> {
        let gradient: &dyn Any = &**self.0.get(&index)?;
        gradient.downcast_ref()
    }

    /// Appends them, for another process.
    pub(crate) fn pack(self, into: &mut Packed) -> Result<(), PackError> {
        into.push_number(self.0.len());
        self.0.into_iter().try_for_each(|(index, gradient)| {
            into.push_number(index);
            gradient.pack(into)
        })
    }

    pub(crate) fn unpack(from: &mut Packed, device: &Device) -> Result<Self, PackError> {
        let length = from.number()?;
        let one = |_| Ok((from.number()?, unpack_gradient(from, device)?));
        (0..length).map(one).collect::<Result<_, _>>().map(Self)
    }

    /// Adds them to a sum, in the order of the flow.
    pub(crate) fn add_to(&self, sum: &mut Checksum) {
        let mut indices: Vec<_> = self.0.keys().collect();
        indices.sort();
        indices.iter().for_each(|index| self.0[index].add_to(sum));
    }

    /// Waits until they have been computed.
    pub(crate) fn wait(&self) -> Result<(), ExecutionError> {
        self.0.values().try_for_each(|gradient| gradient.wait())
    }

    /// Moves them to a device.
    pub(crate) fn moved_to(self, device: &Device) -> Self {
        let moved = |(index, gradient): (_, Box<dyn Gradient>)| (index, gradient.to_device(device));
        Self(self.0.into_iter().map(moved).collect())
    }
}

/// A float tensor of any rank.
trait Gradient: Any + Send {
    fn to_device(self: Box<Self>, device: &Device) -> Box<dyn Gradient>;

    fn wait(&self) -> Result<(), ExecutionError>;

    fn add_to(&self, sum: &mut Checksum);

    /// The rank, then the tensor.
    fn pack(self: Box<Self>, into: &mut Packed) -> Result<(), PackError>;
}

impl<const D: usize> Gradient for Tensor<D> {
    fn to_device(self: Box<Self>, device: &Device) -> Box<dyn Gradient> {
        Box::new(moved(*self, device))
    }

    fn wait(&self) -> Result<(), ExecutionError> {
        wait_for(self.clone())
    }

    fn add_to(&self, sum: &mut Checksum) {
        sum.add(self);
    }

    fn pack(self: Box<Self>, into: &mut Packed) -> Result<(), PackError> {
        into.push_number(D);
        into.push_tensor(*self)
    }
}

fn unpack_gradient(from: &mut Packed, device: &Device) -> Result<Box<dyn Gradient>, PackError> {
    macro_rules! of_rank {
        ($rank:expr, $($D:literal)*) => {
            match $rank {
                $($D => Ok(Box::new(from.tensor::<$D, Float>(device)?) as Box<dyn Gradient>),)*
                other => Err(PackError::Other(format!("a gradient has rank {other}"))),
            }
        };
    }
    of_rank!(from.number()?, 1 2 3 4 5 6 7 8)
}

/// Copies tensors that lie on another GPU to a device, and waits for the copies. The others stay where they
/// are.
pub(crate) fn from_gpus<F: Flow>(flow: F, device: &Device) -> Result<F, ExecutionError> {
    struct Copy<'a> {
        device: &'a Device,
        arrived: Result<(), ExecutionError>,
    }

    impl FlowMapper for Copy<'_> {
        every_kind!(self, tensor => {
            let from = tensor.device().inner();
            if from == *self.device || from == Device::flex() {
                tensor
            } else {
                let copy = moved(tensor, self.device);
                if self.arrived.is_ok() {
                    self.arrived = wait_for(copy.clone());
                }
                copy
            }
        });
    }

    let mut copy = Copy {
        device,
        arrived: Ok(()),
    };
    let flow = flow.map(&mut copy);
    copy.arrived.map(|()| flow)
}

/// Waits until a flow's tensors have been computed, and for nothing else that their device does.
pub(crate) fn wait<F: Flow>(flow: &F) -> Result<(), ExecutionError> {
    struct Wait(Result<(), ExecutionError>);

    impl FlowMapper for Wait {
        every_kind!(self, tensor => {
            if self.0.is_ok() {
                self.0 = wait_for(tensor.clone());
            }
            tensor
        });
    }

    let mut waited = Wait(Ok(()));
    flow.clone().map(&mut waited);
    waited.0
}

/// Reads an element. Asking for it is not enough: bytes of a GPU come when somebody looks at them, and panic if they
/// do not.
pub(crate) fn wait_for<const D: usize, K: Basic>(
    tensor: Tensor<D, K>,
) -> Result<(), ExecutionError> {
    if tensor.shape().num_elements() == 0 {
        return Ok(());
    }
    let first: [_; D] = std::array::from_fn(|_| 0..1);
    let data = tensor.slice(first).try_into_data()?;
    touch(&data);
    Ok(())
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

/// A scalar whose backward pass computes the vector–Jacobian product: Burn's backward takes no initial
/// gradient. `None` if no tensor of the flow is tracked and has a gradient.
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
                // In f32, like the losses that may be added to it.
                let scalar = autodiff::at_least_f32(autodiff::seed(tensor.clone(), gradient));
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

/// Makes Burn drop what it recorded of passes without a tape. Otherwise the next backward pass does.
pub(crate) fn sweep(device: &Device) {
    let one = Tensor::<1>::ones([1], &device.clone().autodiff());
    drop(one.require_grad().sum().backward());
}

/// The sum of those that are present.
pub(crate) fn add(a: Option<Tensor<1>>, b: Option<Tensor<1>>) -> Option<Tensor<1>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    }
}

/// Joins the parts of a batch, or returns `None` if their shapes differ, for example because an enum
/// changed its variant between micro-batches.
pub(crate) fn join<F: Flow>(parts: Vec<F>) -> Option<F> {
    #[derive(Default)]
    struct Collect {
        /// Type and shape, without the batch dimension. Joining takes tensors by position.
        shapes: Vec<(TypeId, Vec<usize>)>,
        tensors: VecDeque<Box<dyn Any>>,
    }

    impl Collect {
        fn push<T: Clone + 'static>(&mut self, shape: &[usize], tensor: T) -> T {
            self.shapes.push((TypeId::of::<T>(), shape[1..].to_vec()));
            self.tensors.push_back(Box::new(tensor.clone()));
            tensor
        }
    }

    impl FlowMapper for Collect {
        every_kind!(self, tensor => self.push(&tensor.dims(), tensor));
    }

    struct Join(Vec<Collect>);

    impl Join {
        fn others<T: 'static>(&mut self, first: T) -> Vec<T> {
            let others = self.0.iter_mut().filter_map(|part| {
                let tensor = part.tensors.pop_front()?.downcast().ok()?;
                Some(*tensor)
            });
            std::iter::once(first).chain(others).collect()
        }
    }

    impl FlowMapper for Join {
        every_kind!(self, tensor => Tensor::cat(self.others(tensor), 0));
    }

    let collected = parts.iter().map(|part| {
        let mut collect = Collect::default();
        part.clone().map(&mut collect);
        collect
    });
    let mut collected: Vec<_> = collected.collect();
    let mut pairs = collected.windows(2);
    if pairs.any(|pair| pair[0].shapes != pair[1].shapes) {
        return None;
    }
    let first = parts.into_iter().next()?;
    collected.remove(0);
    Some(first.map(&mut Join(collected)))
}
