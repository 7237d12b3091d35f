//! Maps of several channels as slices, and work spread over them.

use std::ops::Range;

use burn::tensor::{DType, Shape};
use burn_flex::{FlexTensor, Layout};
use pulp::Arch;
use rayon::prelude::*;

/// The sizes of a batch of maps: `[samples, channels, height, width]`.
pub(crate) type Dims = [usize; 4];

/// Below this many numbers, other threads cost more than they help.
const WORTH_SPREADING: usize = 1 << 15;

pub(crate) fn dims(tensor: &FlexTensor) -> Dims {
    tensor.layout().shape().dims()
}

/// The same tensor with its numbers in order.
pub(crate) fn in_order(tensor: FlexTensor) -> FlexTensor {
    match tensor.as_slice::<f32>().is_some() {
        true => tensor,
        false => tensor.to_contiguous(),
    }
}

/// The numbers of a tensor that is [`in_order`].
pub(crate) fn numbers(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().unwrap_or_default()
}

pub(crate) fn tensor(numbers: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    let bytes = burn::tensor::Bytes::from_elems(numbers);
    FlexTensor::new(bytes, Layout::contiguous(shape.into()), DType::F32)
}

/// The sum of two tensors of one shape.
pub(crate) fn added(a: FlexTensor, b: FlexTensor) -> FlexTensor {
    let [a, b] = [a, b].map(in_order);
    let pairs = numbers(&a).iter().zip(numbers(&b));
    let sum = pairs.map(|(a, b)| a + b).collect();
    tensor(sum, a.layout().shape().clone())
}

/// Runs `work` with the widest vectors that the processor has. It must be inlined, and so must what it
/// calls: a closure of more than a few lines says so itself, `#[inline(always)] || …`.
#[inline(always)]
pub(crate) fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    Arch::new().dispatch(work)
}

/// Calls `run` with ranges that make up `0..parts`: one, or one for each thread of the current pool
/// if there are several and `size` numbers are worth it.
pub(crate) fn in_shares<R: Send>(
    parts: usize,
    size: usize,
    run: impl Fn(Range<usize>) -> R + Sync,
) -> Vec<R> {
    let threads = match size < WORTH_SPREADING {
        true => 1,
        false => rayon::current_num_threads().min(parts),
    };
    if threads <= 1 {
        return vec![run(0..parts)];
    }
    let begin = |thread: usize| thread * parts / threads;
    (0..threads)
        .into_par_iter()
        .map(|thread| run(begin(thread)..begin(thread + 1)))
        .collect()
}

/// Numbers in parts of `length` each: `work` is called with the number of a part, and appends it.
pub(crate) fn in_parts<T: Copy + Send>(
    parts: usize,
    length: usize,
    work: impl Fn(usize, &mut Vec<T>) + Sync,
) -> Vec<T> {
    joined(in_shares(parts, parts * length, |range| {
        let mut numbers = Vec::with_capacity(range.len() * length);
        range.for_each(|part| work(part, &mut numbers));
        numbers
    }))
}

pub(crate) fn joined<T: Copy>(mut shares: Vec<Vec<T>>) -> Vec<T> {
    match shares.len() {
        1 => shares.pop().unwrap_or_default(),
        _ => shares.concat(),
    }
}
