//! Tensors of any rank as rows of values.

use burn::tensor::{Device, Tensor};
use burn_flex::FlexTensor;
use stovepipe_autodiff::{at_least_f32, values};

use crate::planes::in_parts;

/// Rows in a block. The sum of a block is computed first, then the sum of all blocks: the order of
/// additions does not depend on the number of threads.
pub(crate) const ROWS: usize = 128;

/// On the CPU, what `kernel` makes of `x` in f32 or a wider type, rounded to the type of `x`.
pub(crate) fn on_cpu_in_f32<const D: usize>(
    x: &Tensor<D>,
    kernel: impl FnOnce(&Tensor<D>) -> Option<Tensor<D>>,
) -> Option<Tensor<D>> {
    let is_on_cpu = x.device().inner() == Device::flex();
    let found = is_on_cpu.then(|| kernel(&at_least_f32(x.clone())));
    Some(found.flatten()?.cast(x.dtype()))
}

/// The length of a row: of a tensor's last dimension.
pub(crate) fn width(tensor: &FlexTensor) -> usize {
    let shape = tensor.layout().shape();
    shape.as_slice().last().copied().unwrap_or(1)
}

pub(crate) fn sum_of_rows(tensor: &FlexTensor) -> Vec<f32> {
    let width = width(tensor);
    let blocks: Vec<_> = values(tensor).chunks(ROWS * width).collect();
    let sums = in_parts(blocks.len(), width, |block, sums| {
        let begin = sums.len();
        sums.resize(begin + width, 0.0);
        for row in blocks[block].chunks_exact(width) {
            add(&mut sums[begin..], row);
        }
    });
    folded(&sums, width)
}

/// The sum of rows, one after the other.
pub(crate) fn folded(rows: &[f32], width: usize) -> Vec<f32> {
    let mut sum = vec![0.0; width];
    rows.chunks_exact(width).for_each(|row| add(&mut sum, row));
    sum
}

#[inline(always)]
pub(crate) fn add(sums: &mut [f32], row: &[f32]) {
    sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
}

/// Sums next to each other in vectors: the same number on every processor, so that the order of
/// additions does not depend on it.
const LANES: usize = 32;

/// Folds pairs of values from two rows of one length into `L` lanes: pair i into lane i mod L.
#[inline(always)]
pub(crate) fn fold_lanes<const L: usize>(
    start: f32,
    a: &[f32],
    b: &[f32],
    fold: impl Fn(f32, f32, f32) -> f32,
) -> [f32; L] {
    let mut lanes = [start; L];
    let ((a, rest_of_a), (b, rest_of_b)) = (a.as_chunks::<L>(), b.as_chunks::<L>());
    for (a, b) in a.iter().zip(b) {
        for (lane, (&a, &b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane = fold(*lane, a, b);
        }
    }
    for (lane, (&a, &b)) in lanes.iter_mut().zip(rest_of_a.iter().zip(rest_of_b)) {
        *lane = fold(*lane, a, b);
    }
    lanes
}

#[inline(always)]
pub(crate) fn sum_of_pairs(a: &[f32], b: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let lanes = fold_lanes::<LANES>(0.0, a, b, |sum, a, b| sum + term(a, b));
    reduced(lanes, |a, b| a + b)
}

#[inline(always)]
pub(crate) fn sum_of(row: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    sum_of_pairs(row, row, |x, _| term(x))
}

/// The largest value, without NaNs.
#[inline(always)]
pub(crate) fn largest(row: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let lanes = fold_lanes::<LANES>(f32::NEG_INFINITY, row, row, |most, x, _| larger(most, x));
    reduced(lanes, larger)
}

#[inline(always)]
fn reduced(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        let (low, high) = lanes.split_at_mut(width);
        for (low, &high) in low.iter_mut().zip(&*high) {
            *low = join(*low, high);
        }
    }
    lanes[0]
}

/// Changes each value of a row. The last few are copied to a vector: one by one, they would take as
/// long as all the others.
#[inline(always)]
pub(crate) fn change(row: &mut [f32], change: impl Fn(f32) -> f32) {
    let (chunks, rest) = row.as_chunks_mut::<WIDTH>();
    for chunk in chunks {
        for x in chunk {
            *x = change(*x);
        }
    }
    if !rest.is_empty() {
        let mut last = [0.0; WIDTH];
        last[..rest.len()].copy_from_slice(rest);
        for x in &mut last {
            *x = change(*x);
        }
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// The same with the values of another row.
#[inline(always)]
pub(crate) fn change_by(row: &mut [f32], by: &[f32], change: impl Fn(f32, f32) -> f32) {
    let ((chunks, rest), (by, rest_by)) = (row.as_chunks_mut::<WIDTH>(), by.as_chunks::<WIDTH>());
    for (chunk, by) in chunks.iter_mut().zip(by) {
        for (x, &by) in chunk.iter_mut().zip(by) {
            *x = change(*x, by);
        }
    }
    if !rest.is_empty() {
        let (mut last, mut last_by) = ([0.0; WIDTH], [0.0; WIDTH]);
        last[..rest.len()].copy_from_slice(rest);
        last_by[..rest_by.len()].copy_from_slice(rest_by);
        for (x, &by) in last.iter_mut().zip(&last_by) {
            *x = change(*x, by);
        }
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// Changes the values of two rows together, with those of a third.
#[inline(always)]
pub(crate) fn change_pairs(
    a: &mut [f32],
    b: &mut [f32],
    by: &[f32],
    change: impl Fn(f32, f32, f32) -> (f32, f32),
) {
    let ((many_a, rest_a), (many_b, rest_b)) =
        (a.as_chunks_mut::<WIDTH>(), b.as_chunks_mut::<WIDTH>());
    let (many_by, rest_by) = by.as_chunks::<WIDTH>();
    let chunks = many_a.iter_mut().zip(many_b).zip(many_by);
    for ((a, b), by) in chunks {
        for ((a, b), &by) in a.iter_mut().zip(b).zip(by) {
            (*a, *b) = change(*a, *b, by);
        }
    }
    for ((a, b), &by) in rest_a.iter_mut().zip(rest_b).zip(rest_by) {
        (*a, *b) = change(*a, *b, by);
    }
}

const WIDTH: usize = 16;
