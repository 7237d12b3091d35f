//! Maps of several channels as slices, and work shared among threads.

use std::ops::Range;

use burn_flex::FlexTensor;
use rayon::prelude::*;

/// The sizes of a batch of maps: `[samples, channels, height, width]`.
pub(crate) type Dims = [usize; 4];

/// With fewer values than this, more threads cost more than they help.
const WORTH_SHARING: usize = 1 << 15;

pub(crate) fn dims(tensor: &FlexTensor) -> Dims {
    tensor.layout().shape().dims()
}

/// Runs a closure with the widest vectors of the processor. All that it calls must be inlined.
macro_rules! vectorised {
    (|| $work:expr) => {
        $crate::planes::dispatch(
            #[inline(always)]
            || $work,
        )
    };
}
pub(crate) use vectorised;

// The bound makes the closure an `FnOnce`. Without it, a shim that is not inlined calls the closure.
#[inline(always)]
pub(crate) fn dispatch<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}

/// Calls `run` with ranges that make up `0..parts`: one range, or one for each thread of the current
/// pool if there are several and `size` values are worth it.
// `run` is not generic: rayon's code would be compiled once for each caller.
pub(crate) fn in_shares<R: Send>(
    parts: usize,
    size: usize,
    run: &(dyn Fn(Range<usize>) -> R + Sync),
) -> Vec<R> {
    fill_shares(&mut [], parts, size, &|range, _| run(range))
}

/// Calls `fill` with ranges that make up `0..parts` and their values of `output`, to which all parts
/// contribute as many. The ranges are those of [`in_shares`].
pub(crate) fn fill_shares<R: Send>(
    output: &mut [f32],
    parts: usize,
    size: usize,
    fill: &(dyn Fn(Range<usize>, &mut [f32]) -> R + Sync),
) -> Vec<R> {
    fill_among(output, (parts, threads_for(parts, size)), fill)
}

/// The same for rows of a matrix product. A thread gets eight at least: products of very few rows add in
/// another order.
pub(crate) fn fill_rows(
    output: &mut [f32],
    (parts, rows): (usize, usize),
    size: usize,
    fill: &(dyn Fn(Range<usize>, &mut [f32]) + Sync),
) {
    let most = parts * rows / 8;
    fill_among(output, (parts, threads_for(most.min(parts), size)), fill);
}

fn fill_among<R: Send>(
    output: &mut [f32],
    (parts, threads): (usize, usize),
    fill: &(dyn Fn(Range<usize>, &mut [f32]) -> R + Sync),
) -> Vec<R> {
    if threads <= 1 {
        return vec![fill(0..parts, output)];
    }
    let length = output.len() / parts;
    let (mut rest, mut shares) = (output, Vec::with_capacity(threads));
    for thread in 0..threads {
        let range = thread * parts / threads..(thread + 1) * parts / threads;
        let (own, others) = rest.split_at_mut(range.len() * length);
        shares.push((range, own));
        rest = others;
    }
    let fill = |(range, own)| fill(range, own);
    shares.into_par_iter().map(fill).collect()
}

/// How many threads share work on so many values, in parts that cannot be split.
fn threads_for(parts: usize, size: usize) -> usize {
    match size < WORTH_SHARING {
        true => 1,
        false => rayon::current_num_threads().min(parts),
    }
}

/// Whether there are fewer samples than threads, so that threads have to share each sample.
pub(crate) fn are_few(samples: usize, size: usize) -> bool {
    threads_for(usize::MAX, size) > samples
}

/// The values of `parts` parts, of `length` values each: `work` appends those of one part.
pub(crate) fn in_parts<T: Copy + Send>(
    parts: usize,
    length: usize,
    work: impl Fn(usize, &mut Vec<T>) + Sync,
) -> Vec<T> {
    joined(in_shares(parts, parts * length, &|range| {
        let mut values = Vec::with_capacity(range.len() * length);
        range.for_each(|part| work(part, &mut values));
        values
    }))
}

pub(crate) fn joined<T: Copy>(mut shares: Vec<Vec<T>>) -> Vec<T> {
    match shares.len() {
        1 => shares.pop().unwrap_or_default(),
        _ => shares.concat(),
    }
}

pub(crate) fn joined_pairs<A: Copy, B: Copy>(shares: Vec<(Vec<A>, Vec<B>)>) -> (Vec<A>, Vec<B>) {
    let (a, b): (Vec<_>, Vec<_>) = shares.into_iter().unzip();
    (joined(a), joined(b))
}
