//! Attention that neither copies queries, keys and values nor stores all scores.
//!
//! Heads are columns of one tensor, which products read in place. Scores are computed some rows at a
//! time, and again for the gradient, as in Dao et al. ("FlashAttention", 2022), so that they stay in
//! the cache. Rows are whole: a CPU has the memory, and the softmax needs one pass.

use std::ops::Range;

use burn::tensor::Tensor;
use burn_flex::FlexTensor;
use stovepipe_autodiff::{Kernel, Operand, contiguous, tensor, values};

use crate::{
    everywhere,
    exponential::exp,
    heads::Heads,
    planes::{are_few, fill_shares, joined, vectorised},
    products::{Columns, matrix, matrix_mut, multiply, multiply_and_add},
    random::{Bits, Mask},
    rows::{change, largest, sum_of, sum_of_pairs},
};

/// Scaled dot-product attention of a sequence with itself, in several heads: softmax(Q Kᵀ / √w) V
/// (Vaswani et al., "Attention Is All You Need", 2017), where w is the width of a head.
///
/// `projected` is `[n, length, (heads + 2 · keys) · w]`: queries, keys and values next to each other,
/// each with its heads next to each other. The result is `[n, length, heads · w]`. The softmax is multiplied
/// by a mask, for dropout: as many numbers, those of `[n, heads, length, length]` in order.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_kernels::{Heads, attention};
///
/// // One head of width 1. Queries are 0, so each position gets the mean of the values it sees.
/// let projected = Tensor::<3>::from_floats([[[0.0, 1.0, 4.0], [0.0, 2.0, 8.0]]], &Device::flex());
/// let y = attention(projected, Heads::new(1, true), None).into_data().try_to_vec::<f32>().unwrap();
/// assert_eq!(y, [4.0, 6.0]);
/// ```
///
/// # Panics
///
/// If the columns cannot be split into the heads, or the mask has more or fewer numbers.
#[must_use]
pub fn attention(projected: Tensor<3>, heads: Heads, mask: Option<Mask>) -> Tensor<3> {
    let [samples, length, width] = projected.dims();
    let columns = "columns of queries, keys and values";
    let fits = heads.width(width).is_some();
    assert!(fits, "{width} {columns} cannot be split into {heads:?}");
    if let Some(mask) = &mask {
        let numbers = samples * heads.count * length * length;
        assert_eq!(mask.count(), numbers, "the numbers of the mask");
    }
    by_kernel(&projected, heads, mask.as_ref())
        .unwrap_or_else(|| everywhere::attention(projected, heads, mask))
}

fn by_kernel(projected: &Tensor<3>, heads: Heads, mask: Option<&Mask>) -> Option<Tensor<3>> {
    if projected.dims().contains(&0) {
        return None;
    }
    let operand = Operand::of(projected)?;
    let kept = mask.map(Mask::bits);
    let (output, _) = Attention { heads, kept }.run([operand])?;
    Some(output.into_tensor())
}

#[derive(Clone, Debug)]
struct Attention {
    heads: Heads,
    kept: Option<Bits>,
}

impl Kernel<1> for Attention {
    /// The input, and what [`softmax_of`] returned for each row: `[n, heads, length, 2]`.
    type Saved = [FlexTensor; 2];

    fn forward(&self, inputs: [FlexTensor; 1]) -> (FlexTensor, Self::Saved) {
        let [projected] = inputs.map(contiguous);
        let [samples, length, columns] = projected.layout().shape().dims();
        let (count, width) = (self.heads.count, self.width(columns));
        let d = count * width;
        let size = values(&projected).len();
        let mut output = vec![0.0; samples * length * d];
        let divisors = match are_few(samples, size) {
            true => {
                let split = Split {
                    units: count,
                    columns: width,
                    place: &|head| [head, 0],
                };
                split.run([samples, length], &mut output, &|index, own| {
                    let mut divisors = Vec::with_capacity(2 * length);
                    let head = self.head(index, &projected);
                    head.forward(own, Columns::nth(0, width, width), &mut divisors);
                    divisors
                })
            }
            false => fill_shares(&mut output, samples, size, &|range, output| {
                let mut divisors = Vec::with_capacity(2 * range.len() * count * length);
                let outputs = output.chunks_exact_mut(length * d);
                for (sample, output) in range.zip(outputs) {
                    for index in sample * count..(sample + 1) * count {
                        let head = self.head(index, &projected);
                        head.forward(output, head.output(), &mut divisors);
                    }
                }
                divisors
            }),
        };
        let divisors = tensor(joined(divisors), [samples, count, length, 2]);
        let output = tensor(output, [samples, length, d]);
        (output, [projected, divisors])
    }

    fn backward(
        &self,
        [projected, divisors]: Self::Saved,
        gradient: FlexTensor,
        _: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let gradient = contiguous(gradient);
        let [samples, length, columns] = projected.layout().shape().dims();
        let Heads { count, keys, .. } = self.heads;
        let (width, group) = (self.width(columns), self.heads.group());
        let size = values(&projected).len();
        let mut of_projected = vec![0.0; size];
        let gradient_of = |index: usize, target: &mut [f32], columns: [Columns; 3]| {
            let (own, rows) = (length * count * width, 2 * length);
            let gradient = &values(&gradient)[index / count * own..][..own];
            let divisors = &values(&divisors)[index * rows..][..rows];
            let head = self.head(index, &projected);
            head.backward(gradient, divisors, target, columns);
        };
        if are_few(samples, size) {
            // A thread has the heads that share keys and values, because it adds up their gradients.
            let split = Split {
                units: keys,
                columns: width,
                place: &|place| match place.checked_sub(count) {
                    None => [place / group, place % group],
                    Some(place) => [place % keys, group + place / keys],
                },
            };
            split.run([samples, length], &mut of_projected, &|index, own| {
                let own_width = (group + 2) * width;
                for head in 0..group {
                    let parts = [head, group, group + 1];
                    let parts = parts.map(|part| Columns::nth(part, width, own_width));
                    gradient_of(index * group + head, own, parts);
                }
            });
        } else {
            fill_shares(&mut of_projected, samples, size, &|range, targets| {
                let targets = targets.chunks_exact_mut(length * columns);
                for (sample, target) in range.zip(targets) {
                    for index in sample * count..(sample + 1) * count {
                        let columns = self.head(index, &projected).parts();
                        gradient_of(index, target, columns);
                    }
                }
            });
        }
        [Some(tensor(of_projected, [samples, length, columns]))]
    }
}

impl Attention {
    /// The width of a head, which has been checked.
    fn width(&self, columns: usize) -> usize {
        self.heads.width(columns).unwrap_or(0)
    }

    /// A head, counted over all samples.
    fn head<'a>(&'a self, index: usize, projected: &'a FlexTensor) -> Head<'a> {
        let [_, length, columns] = projected.layout().shape().dims();
        let (sample, size) = (index / self.heads.count, length * columns);
        Head {
            heads: self.heads,
            index: index % self.heads.count,
            length,
            width: self.width(columns),
            columns,
            projected: &values(projected)[sample * size..][..size],
            kept: (self.kept.as_ref()).map(|kept| (kept, index * length * length)),
        }
    }
}

/// Rows whose columns are computed apart, by units that threads share.
struct Split<'a> {
    /// Units of a sample.
    units: usize,
    /// Columns that lie together.
    columns: usize,
    /// The unit that computes the n-th of these groups of columns, and the index of the group there.
    place: &'a (dyn Fn(usize) -> [usize; 2] + Sync),
}

impl Split<'_> {
    /// Calls `run` for each unit of each sample with its own rows of zeros; then puts their columns into
    /// those of `output`.
    fn run<R: Send>(
        &self,
        [samples, length]: [usize; 2],
        output: &mut [f32],
        run: &(dyn Fn(usize, &mut [f32]) -> R + Sync),
    ) -> Vec<R> {
        let width = output.len() / (samples * length);
        let own_width = width / self.units;
        let each = length * own_width;
        let mut own = vec![0.0; output.len()];
        let results = fill_shares(
            &mut own,
            samples * self.units,
            output.len(),
            &|units, own| {
                let own = own.chunks_exact_mut(each);
                let run = |(unit, own)| run(unit, own);
                units.zip(own).map(run).collect::<Vec<_>>()
            },
        );
        fill_shares(output, samples * length, own.len(), &|rows, output| {
            for (row, output) in rows.zip(output.chunks_exact_mut(width)) {
                let (sample, row) = (row / length, row % length);
                for (place, columns) in output.chunks_exact_mut(self.columns).enumerate() {
                    let [unit, part] = (self.place)(place);
                    let unit = (sample * self.units + unit) * each;
                    let from = unit + row * own_width + part * self.columns;
                    columns.copy_from_slice(&own[from..from + self.columns]);
                }
            }
        });
        results.into_iter().flatten().collect()
    }
}

struct Head<'a> {
    heads: Heads,
    index: usize,
    length: usize,
    /// Of a head.
    width: usize,
    /// Queries, keys and values of all heads.
    columns: usize,
    /// `[length, columns]`.
    projected: &'a [f32],
    /// The mask of all heads, and where that of this one begins.
    kept: Option<(&'a Bits, usize)>,
}

impl Head<'_> {
    /// Its queries, keys and values among the columns of all.
    fn parts(&self) -> [Columns; 3] {
        let Heads { count, keys, .. } = self.heads;
        let shared = count + self.index / self.heads.group();
        [self.index, shared, shared + keys].map(|nth| Columns::nth(nth, self.width, self.columns))
    }

    fn output(&self) -> Columns {
        Columns::nth(self.index, self.width, self.heads.count * self.width)
    }

    /// Rows of scores that are computed together, and the columns that they need.
    fn blocks(&self) -> impl Iterator<Item = (Range<usize>, usize)> {
        const MOST: usize = 1 << 16;
        // A causal block needs no columns after its last row: small blocks save work.
        let causal = self.heads.causal.then_some(32);
        let most = causal.unwrap_or(MOST / self.length);
        let count = self.length.div_ceil(most.max(16));
        let rows = self.length.div_ceil(count);
        (0..self.length).step_by(rows).map(move |begin| {
            let end = self.length.min(begin + rows);
            let columns = if self.heads.causal { end } else { self.length };
            (begin..end, columns)
        })
    }

    fn seen(&self, row: usize) -> usize {
        let causal = self.heads.causal.then_some(row + 1);
        causal.unwrap_or(self.length)
    }

    /// Multiplies rows of shares, or of their gradients, by the mask.
    #[inline(always)]
    fn keep(&self, shares: &mut [f32], rows: Range<usize>, columns: usize) {
        let Some((kept, begin)) = self.kept else {
            return;
        };
        for (row, shares) in rows.zip(shares.chunks_exact_mut(columns)) {
            kept.multiply(begin + row * self.length, shares);
        }
    }

    /// Writes its `own` columns of the output, and appends what [`softmax_of`] returns for each row.
    fn forward(&self, output: &mut [f32], own: Columns, divisors: &mut Vec<f32>) {
        let [q, k, v] = self.parts();
        let mut scores = vec![0.0; self.scratch()];
        for (rows, columns) in self.blocks() {
            let scores = &mut scores[..rows.len() * columns];
            self.score(&rows, columns, [q, k], scores);
            vectorised!(|| {
                for (row, scores) in rows.clone().zip(scores.chunks_exact_mut(columns)) {
                    divisors.extend(softmax_of(scores, self.seen(row)));
                }
                self.keep(scores, rows.clone(), columns);
            });
            let target = own.of_mut(output, rows.clone());
            let shares = matrix(scores, rows.len(), columns);
            multiply(target, shares, v.of(self.projected, 0..columns), 1.0);
        }
    }

    /// Writes its columns of the gradient of queries, keys and values, which must hold zeros.
    fn backward(
        &self,
        gradient: &[f32],
        divisors: &[f32],
        target: &mut [f32],
        [of_q, of_k, of_v]: [Columns; 3],
    ) {
        let [q, k, v] = self.parts();
        let scratch = self.scratch();
        let mut buffers = [vec![0.0; scratch], vec![0.0; scratch], Vec::new()];
        for (rows, columns) in self.blocks() {
            let [shares, slopes, dropped] = &mut buffers;
            let [shares, slopes] = [shares, slopes].map(|all| &mut all[..rows.len() * columns]);
            let gradient = self.output().of(gradient, rows.clone());
            self.score(&rows, columns, [q, k], shares);
            let values = v.of(self.projected, 0..columns).transpose();
            let target_of_slopes = matrix_mut(slopes, rows.len(), columns);
            multiply(target_of_slopes, gradient, values, 1.0);
            vectorised!(|| {
                for (row, shares) in rows.clone().zip(shares.chunks_exact_mut(columns)) {
                    let divisors = [divisors[2 * row], divisors[2 * row + 1]];
                    share_again(shares, self.seen(row), divisors);
                }
                self.keep(slopes, rows.clone(), columns);
                dropped.clear();
                if self.kept.is_some() {
                    dropped.extend_from_slice(shares);
                    self.keep(dropped, rows.clone(), columns);
                }
            });
            let kept = self.kept.map_or(&*shares, |_| dropped);
            let kept = matrix(kept, rows.len(), columns).transpose();
            multiply_and_add(of_v.of_mut(target, 0..columns), kept, gradient);
            self.slope(shares, slopes, columns);
            let slopes = matrix(slopes, rows.len(), columns);
            let keys = k.of(self.projected, 0..columns);
            multiply(of_q.of_mut(target, rows.clone()), slopes, keys, 1.0);
            let queries = q.of(self.projected, rows.clone());
            multiply_and_add(of_k.of_mut(target, 0..columns), slopes.transpose(), queries);
        }
    }

    /// The number of scores in the largest block.
    fn scratch(&self) -> usize {
        let sizes = self.blocks().map(|(rows, columns)| rows.len() * columns);
        sizes.max().unwrap_or(0)
    }

    fn score(&self, rows: &Range<usize>, columns: usize, [q, k]: [Columns; 2], scores: &mut [f32]) {
        let queries = q.of(self.projected, rows.clone());
        let keys = k.of(self.projected, 0..columns).transpose();
        let target = matrix_mut(scores, rows.len(), columns);
        multiply(target, queries, keys, self.heads.scale(self.width));
    }

    /// Turns the gradients of shares into those of products of queries and keys.
    fn slope(&self, shares: &[f32], slopes: &mut [f32], columns: usize) {
        let scale = self.heads.scale(self.width);
        let rows = (shares.chunks_exact(columns)).zip(slopes.chunks_exact_mut(columns));
        vectorised!(|| for (shares, slopes) in rows {
            let mean = sum_of_pairs(shares, slopes, |share, slope| share * slope);
            let pairs = slopes.iter_mut().zip(shares);
            pairs.for_each(|(slope, share)| *slope = share * (*slope - mean) * scale);
        });
    }
}

/// The softmax of the first `seen` scores, in place, and zeros after them. Returns the largest score,
/// and the inverse of the sum of exponentials.
#[inline(always)]
fn softmax_of(scores: &mut [f32], seen: usize) -> [f32; 2] {
    let (scores, hidden) = scores.split_at_mut(seen);
    hidden.fill(0.0);
    let most = largest(scores);
    change(
        scores,
        #[inline(always)]
        |score| exp(score - most),
    );
    let inverse = 1.0 / sum_of(scores, |x| x);
    scores.iter_mut().for_each(|x| *x *= inverse);
    [most, inverse]
}

#[inline(always)]
fn share_again(scores: &mut [f32], seen: usize, [most, inverse]: [f32; 2]) {
    let (scores, hidden) = scores.split_at_mut(seen);
    hidden.fill(0.0);
    change(
        scores,
        #[inline(always)]
        |score| exp(score - most) * inverse,
    );
}
