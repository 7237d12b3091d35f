//! What travels between layers: a tensor, or any value made of tensors.

use burn::tensor::{Bool, Int, Tensor};

/// A value that travels through a pipeline: from layer to layer, across stages and back.
///
/// Tensors of any rank and kind are flows, and so are `()`, pairs and triples of flows, options
/// and vectors of them. `#[derive(Flow)]` makes one of a struct or an enum whose fields are flows.
///
/// The engine moves, cuts and joins a flow without knowing what is in it, by visiting its tensors
/// in a fixed order. Every tensor holds the batch in its first dimension, unless it is
/// [`Replicated`].
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
    /// Replaces every tensor by what `mapper` makes of it, always in the same order.
    fn map<M: FlowMapper>(self, mapper: &mut M) -> Self;

    /// Appends the batch size that each tensor shows, in the same order.
    fn batch_sizes(&self, sizes: &mut Vec<usize>);

    /// Cuts the batch into consecutive parts of the given sizes.
    ///
    /// Implement it by hand for a value that is cut in a way of its own. It must return a part for
    /// each size, in order.
    #[must_use]
    fn split(self, sizes: &[usize]) -> Vec<Self> {
        let mut start = 0;
        sizes
            .iter()
            .map(|&length| {
                let mut slice = Slice { start, length };
                start += length;
                self.clone().map(&mut slice)
            })
            .collect()
    }
}

/// Makes a new tensor of each tensor in a [`Flow`].
pub trait FlowMapper {
    /// Maps a tensor of floats.
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D>;
    /// Maps a tensor of integers; by default to itself.
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor
    }
    /// Maps a tensor of booleans; by default to itself.
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        tensor
    }
}

/// A flow that every micro-batch receives whole, such as a table of positions.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_pipeline::{Flow, Replicated};
///
/// let table = Replicated(Tensor::<2>::ones([100, 8], &Device::flex()));
/// assert_eq!(table.split(&[2, 1])[1].0.dims(), [100, 8]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Replicated<F>(
    /// The value.
    pub F,
);

impl<F: Flow> Flow for Replicated<F> {
    fn map<M: FlowMapper>(self, mapper: &mut M) -> Self {
        Self(self.0.map(mapper))
    }

    fn batch_sizes(&self, _sizes: &mut Vec<usize>) {}

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
        }
    )*};
}

impl_tensor!(burn::tensor::Float => float, Int => int, Bool => bool);

impl Flow for () {
    fn map<M: FlowMapper>(self, _mapper: &mut M) -> Self {}

    fn batch_sizes(&self, _sizes: &mut Vec<usize>) {}
}

impl<A: Flow, B: Flow> Flow for (A, B) {
    fn map<M: FlowMapper>(self, mapper: &mut M) -> Self {
        (self.0.map(mapper), self.1.map(mapper))
    }

    fn batch_sizes(&self, sizes: &mut Vec<usize>) {
        self.0.batch_sizes(sizes);
        self.1.batch_sizes(sizes);
    }

    fn split(self, sizes: &[usize]) -> Vec<Self> {
        self.0
            .split(sizes)
            .into_iter()
            .zip(self.1.split(sizes))
            .collect()
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

    fn split(self, sizes: &[usize]) -> Vec<Self> {
        ((self.0, self.1), self.2)
            .split(sizes)
            .into_iter()
            .map(|((a, b), c)| (a, b, c))
            .collect()
    }
}

impl<F: Flow> Flow for Option<F> {
    fn map<M: FlowMapper>(self, mapper: &mut M) -> Self {
        self.map(|flow| flow.map(mapper))
    }

    fn batch_sizes(&self, sizes: &mut Vec<usize>) {
        if let Some(flow) = self {
            flow.batch_sizes(sizes);
        }
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
        for flow in self {
            flow.batch_sizes(sizes);
        }
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

/// Takes `length` samples from `start` on.
struct Slice {
    start: usize,
    length: usize,
}

impl FlowMapper for Slice {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        tensor.narrow(0, self.start, self.length)
    }

    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor.narrow(0, self.start, self.length)
    }

    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        tensor.narrow(0, self.start, self.length)
    }
}
