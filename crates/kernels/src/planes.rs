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
    let threads = if size < WORTH_SHARING {
        1
    } else {
        rayon::current_num_threads().min(parts)
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
