//! The values that pass between layers: a tensor, or any value made of tensors.

use std::any::type_name;

use burn::tensor::{Bool, Device, Int, Tensor};

use super::packed::{PackError, Packed};

/// The methods of a [`FlowMapper`] that treats tensors of every kind alike.
macro_rules! every_kind {
    ($self:ident, $tensor:ident => $body:expr) => {
        fn float<const D: usize>(&mut $self, $tensor: Tensor<D>) -> Tensor<D> {
            $body
        }
        fn int<const D: usize>(&mut $self, $tensor: Tensor<D, Int>) -> Tensor<D, Int> {
            $body
        }
        fn bool<const D: usize>(&mut $self, $tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
            $body
        }
    };
}
pub(crate) use every_kind;

/// A value that passes from layer to layer.
///
/// Tensors of any rank and kind are flows, as are `()`, pairs, triples, options and vectors of flows.
/// `#[derive(Flow)]` implements it for a struct or an enum whose fields are flows.
///
/// The engine moves, splits and joins a flow by visiting its tensors in a fixed order. The first
/// dimension of every tensor is the batch, unless it is [`Replicated`].
///
/// ```
/// use burn::tensor::{Bool, Tensor};
/// use stovepipe_pipeline::Flow;
///
/// #[derive(Clone, Debug, Flow)]
/// struct Sequence {
///     hidden: Tensor<3>,               // [batch, length, model]
///     padding: Option<Tensor<2, Bool>>, // [batch, length]
/// }
///
/// let device = burn::tensor::Device::flex();
/// let flow = Sequence { hidden: Tensor::zeros([5, 7, 2], &device), padding: None };
/// let parts = flow.split(&[3, 2]);
/// assert_eq!(parts[0].hidden.dims(), [3, 7, 2]);
/// assert_eq!(parts[1].hidden.dims(), [2, 7, 2]);
/// ```
pub trait Flow: Clone + Send + 'static {
    /// Maps every tensor with `mapper`, always in the same order.
    fn map<M: FlowMapper>(self, mapper: &mut M) -> Self;

    /// Appends the batch size of each tensor, in the same order.
    fn batch_sizes(&self, sizes: &mut Vec<usize>);

    /// Whether [`pack`](Self::pack) and [`unpack`](Self::unpack) work. Only such flows can pass between
    /// processes. Derived flows of such flows have both.
    const PACKS: bool = false;

    /// Appends what the flow consists of, for another process.
    ///
    /// # Errors
    ///
    /// If a device does not return a tensor, or [`PACKS`](Self::PACKS) is false.
    fn pack(self, _into: &mut Packed) -> Result<(), PackError> {
        Err(PackError::NotPacked(type_name::<Self>()))
    }

    /// Rebuilds a flow on a device.
    ///
    /// # Errors
    ///
    /// If what is next is another flow, or [`PACKS`](Self::PACKS) is false.
    fn unpack(_from: &mut Packed, _device: &Device) -> Result<Self, PackError> {
        Err(PackError::NotPacked(type_name::<Self>()))
    }

    /// Splits the batch into consecutive parts of the given sizes.
    ///
    /// Implement it for a value that needs another way to split. It must return one part per size, in
    /// order.
    #[must_use]
    fn split(self, sizes: &[usize]) -> Vec<Self> {
        let mut slice = Slice {
            start: 0,
            length: 0,
        };
        let mut part = |&length: &usize| {
            slice.start += slice.length;
            slice.length = length;
            self.clone().map(&mut slice)
        };
        sizes.iter().map(&mut part).collect()
    }
}

/// Maps each tensor of a [`Flow`].
pub trait FlowMapper {
    /// Maps a tensor of floats.
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D>;
    /// Maps a tensor of integers; returns it unchanged by default.
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor
    }
    /// Maps a tensor of booleans; returns it unchanged by default.
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        tensor
    }
}

/// A flow that is not split: every micro-batch gets all of it, such as a table of positions.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_pipeline::{Flow, Replicated};
///
/// let table = Replicated(Tensor::<2>::ones([100, 8], &Device::flex()));
/// assert_eq!(table.split(&[2, 1])[1].0.dims(), [100, 8]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Replicated<F>(pub F);

impl<F: Flow> Flow for Replicated<F> {
    fn map<M: FlowMapper>(self, mapper: &mut M) -> Self {
        Self(self.0.map(mapper))
    }

    fn batch_sizes(&self, _sizes: &mut Vec<usize>) {}

    const PACKS: bool = F::PACKS;

    fn pack(self, into: &mut Packed) -> Result<(), PackError> {
        self.0.pack(into)
    }

    fn unpack(from: &mut Packed, device: &Device) -> Result<Self, PackError> {
        F::unpack(from, device).map(Self)
    }

    fn split(self, sizes: &[usize]) -> Vec<Self> {
        vec![self; sizes.len()]
    }
}

macro_rules! impl_tensor {
    ($($kind:ty => $method:ident),*) => {$(
        impl<const D: usize> Flow for Tensor<D, $kind> {
            fn map<M: FlowMapper>(self, mapper: &mut M) -> Self {
                mapper.$method(self)
            }

            fn batch_sizes(&self, sizes: &mut Vec<usize>) {
                sizes.push(self.dims()[0]);
            }

            const PACKS: bool = true;

            fn pack(self, into: &mut Packed) -> Result<(), PackError> {
                into.push_tensor(self)
            }

            fn unpack(from: &mut Packed, device: &Device) -> Result<Self, PackError> {
                from.tensor(device)
            }
        }
    )*};
}

impl_tensor!(burn::tensor::Float => float, Int => int, Bool => bool);

impl Flow for () {
    fn map<M: FlowMapper>(self, _mapper: &mut M) -> Self {}

    fn batch_sizes(&self, _sizes: &mut Vec<usize>) {}

    const PACKS: bool = true;

    fn pack(self, _into: &mut Packed) -> Result<(), PackError> {
        Ok(())
    }

    fn unpack(_from: &mut Packed, _device: &Device) -> Result<Self, PackError> {
        Ok(())
    }
}

impl<A: Flow, B: Flow> Flow for (A, B) {
    fn map<M: FlowMapper>(self, mapper: &mut M) -> Self {
        (self.0.map(mapper), self.1.map(mapper))
    }

    fn batch_sizes(&self, sizes: &mut Vec<usize>) {
        self.0.batch_sizes(sizes);
        self.1.batch_sizes(sizes);
    }

    const PACKS: bool = A::PACKS && B::PACKS;

    fn pack(self, into: &mut Packed) -> Result<(), PackError> {
        self.0.pack(into)?;
        self.1.pack(into)
    }

    fn unpack(from: &mut Packed, device: &Device) -> Result<Self, PackError> {
        Ok((A::unpack(from, device)?, B::unpack(from, device)?))
    }

    fn split(self, sizes: &[usize]) -> Vec<Self> {
        let (left, right) = (self.0.split(sizes), self.1.split(sizes));
        left.into_iter().zip(right).collect()
    }
}

impl<A: Flow, B: Flow, C: Flow> Flow for (A, B, C) {
    fn map<M: FlowMapper>(self, mapper: &mut M) -> Self {
        (self.0.map(mapper), self.1.map(mapper), self.2.map(mapper))
    }

    fn batch_sizes(&self, sizes: &mut Vec<usize>) {
        self.0.batch_sizes(sizes);
        self.1.batch_sizes(sizes);
        self.2.batch_sizes(sizes);
    }

    const PACKS: bool = A::PACKS && B::PACKS && C::PACKS;

    fn pack(self, into: &mut Packed) -> Result<(), PackError> {
        ((self.0, self.1), self.2).pack(into)
    }

    fn unpack(from: &mut Packed, device: &Device) -> Result<Self, PackError> {
        let ((a, b), c) = <((A, B), C)>::unpack(from, device)?;
        Ok((a, b, c))
    }

    fn split(self, sizes: &[usize]) -> Vec<Self> {
        let parts = ((self.0, self.1), self.2).split(sizes).into_iter();
        parts.map(|((a, b), c)| (a, b, c)).collect()
    }
}

impl<F: Flow> Flow for Option<F> {
    fn map<M: FlowMapper>(self, mapper: &mut M) -> Self {
        self.map(|flow| flow.map(mapper))
    }

    fn batch_sizes(&self, sizes: &mut Vec<usize>) {
        self.iter().for_each(|flow| flow.batch_sizes(sizes));
    }

    const PACKS: bool = F::PACKS;

    fn pack(self, into: &mut Packed) -> Result<(), PackError> {
        into.push_number(self.is_some().into());
        self.map_or(Ok(()), |flow| flow.pack(into))
    }

    fn unpack(from: &mut Packed, device: &Device) -> Result<Self, PackError> {
        let is_some = from.number()? > 0;
        is_some.then(|| F::unpack(from, device)).transpose()
    }

    fn split(self, sizes: &[usize]) -> Vec<Self> {
        match self {
            Some(flow) => flow.split(sizes).into_iter().map(Some).collect(),
            None => vec![None; sizes.len()],
        }
    }
}

impl<F: Flow> Flow for Vec<F> {
    fn map<M: FlowMapper>(self, mapper: &mut M) -> Self {
        self.into_iter().map(|flow| flow.map(mapper)).collect()
    }

    fn batch_sizes(&self, sizes: &mut Vec<usize>) {
        self.iter().for_each(|flow| flow.batch_sizes(sizes));
    }

    const PACKS: bool = F::PACKS;

    fn pack(self, into: &mut Packed) -> Result<(), PackError> {
        into.push_number(self.len());
        self.into_iter().try_for_each(|flow| flow.pack(into))
    }

    fn unpack(from: &mut Packed, device: &Device) -> Result<Self, PackError> {
        let length = from.number()?;
        (0..length).map(|_| F::unpack(from, device)).collect()
    }

    fn split(self, sizes: &[usize]) -> Vec<Self> {
        let length = self.len();
        let mut parts = vec![Vec::with_capacity(length); sizes.len()];
        for flow in self {
            for (part, piece) in parts.iter_mut().zip(flow.split(sizes)) {
                part.push(piece);
            }
        }
        assert!(
            parts.iter().all(|part| part.len() == length),
            "a flow's `split` must return a part for each size"
        );
        parts
    }
}

/// Takes `length` samples from `start`.
struct Slice {
    start: usize,
    length: usize,
}

impl FlowMapper for Slice {
    every_kind!(self, tensor => tensor.narrow(0, self.start, self.length));
}
