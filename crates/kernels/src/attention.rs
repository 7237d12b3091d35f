//! Attention without copies of queries, keys and values, and without keeping what each place makes of
//! each other.
//!
//! Heads are columns of one tensor, which products read where they lie. Some rows of scores at a time
//! are made, used and made again for the gradient, as Dao et al. do ("FlashAttention", 2022), so that
//! they stay in the cache. Rows are whole: on a CPU there is room, and the softmax needs one pass.

use std::ops::Range;

use burn::tensor::{Bool, Tensor, activation::softmax};
use burn_flex::FlexTensor;

use crate::{
    differentiable::{self, Kernel, Operand},
    exponential::exp,
    planes::{in_order, in_shares, joined, numbers, tensor, vectorised},
    products::{Columns, matrix, matrix_mut, multiply, multiply_and_add},
    rows::{change, largest, sum_of, sum_of_pairs},
    widened::widened,
};

/// How attention is cut into heads, and what a place may look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// The number of heads. It divides the width of the model.
    pub count: usize,
    /// Whether a place looks at itself and at places before it only.
    pub causal: bool,
}

/// Scaled dot-product attention of a sequence with itself, in several heads: softmax(Q Kᵀ / √w) V
/// (Vaswani et al., "Attention Is All You Need", 2017), where w is the width of a head.
///
/// `projected` is `[n, length, 3 · d]`: queries, keys and values next to each other, each with its heads
/// next to each other. The result is `[n, length, d]`. `kept`, of `[n, heads, length, length]`, is what
/// the softmax is multiplied by where dropout is wanted; it has no gradient.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_kernels::{Heads, attention};
///
/// // One head of width 1. Queries are 0, so that a place takes the mean of the values it sees.
/// let projected = Tensor::<3>::from_floats([[[0.0, 1.0, 4.0], [0.0, 2.0, 8.0]]], &Device::flex());
/// let heads = Heads { count: 1, causal: true };
/// let y = attention(projected, heads, None).into_data().try_to_vec::<f32>()?;
/// assert_eq!(y, [4.0, 6.0]);
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
///
/// # Panics
///
/// If the number of heads does not divide d, or `kept` has another shape.
#[must_use]
pub fn attention(projected: Tensor<3>, heads: Heads, kept: Option<Tensor<4>>) -> Tensor<3> {
    let [samples, length, width] = projected.dims();
    let fits = heads.count > 0 && width.is_multiple_of(3 * heads.count);
    assert!(
        fits,
        "{width} numbers of queries, keys and values cannot be cut into {heads:?}"
    );
    if let Some(kept) = &kept {
        let expected = [samples, heads.count, length, length];
        assert_eq!(kept.dims(), expected, "what attention keeps");
    }
    by_kernel(&projected, heads, kept.as_ref()).unwrap_or_else(|| by_burn(projected, heads, kept))
}

fn by_kernel(projected: &Tensor<3>, heads: Heads, kept: Option<&Tensor<4>>) -> Option<Tensor<3>> {
    if projected.dims().contains(&0) {
        return None;
    }
    let kept = match kept {
        Some(kept) => match Operand::of(&kept.clone().inner())? {
            Operand::Plain(kept) => Some(in_order(kept)),
            Operand::Tracked(_) => return None,
        },
        None => None,
    };
    let kernel = Attention { heads, kept };
    let (output, _) = differentiable::run(kernel, [Operand::of(projected)?])?;
    Some(output.into_tensor())
}

fn by_burn(projected: Tensor<3>, heads: Heads, kept: Option<Tensor<4>>) -> Tensor<3> {
    let [samples, length, width] = projected.dims();
    let (d, count) = (width / 3, heads.count);
    let part = |part: usize| {
        let columns = projected.clone().narrow(2, part * d, d);
        let by_head = columns.reshape([samples, length, count, d / count]);
        by_head.swap_dims(1, 2)
    };
    let [q, k, v] = [0, 1, 2].map(part);
    let mut scores = q.matmul(k.swap_dims(2, 3)).mul_scalar(heads.scale(d));
    if heads.causal {
        let later = Tensor::<2, Bool>::tril_mask([length, length], 0, &scores.device());
        scores = scores.mask_fill(later.unsqueeze(), f32::NEG_INFINITY);
    }
    let dtype = scores.dtype();
    let mut shares = softmax(widened(scores), 3);
    if let Some(kept) = kept {
        let kept = kept.cast(shares.dtype());
        let kept = match shares.is_autodiff() && !kept.is_autodiff() {
            true => kept.autodiff(),
            false => kept,
        };
        shares = shares * kept;
    }
    (shares.cast(dtype))
        .matmul(v)
        .swap_dims(1, 2)
        .reshape([samples, length, d])
}

impl Heads {
    /// What products of queries and keys are multiplied by.
    fn scale(self, d: usize) -> f32 {
        1.0 / ((d / self.count) as f32).sqrt()
    }
}

#[derive(Clone, Debug)]
struct Attention {
    heads: Heads,
    kept: Option<FlexTensor>,
}

#[derive(Clone, Debug)]
struct Saved {
    projected: FlexTensor,
    /// What makes shares of each row of scores: `[n, heads, length, 2]`.
    divisors: FlexTensor,
}

impl Kernel<1> for Attention {
    type Saved = Saved;

    fn forward(&self, inputs: [FlexTensor; 1]) -> (FlexTensor, Saved) {
        let [projected] = inputs.map(in_order);
        let [samples, length, width] = projected.layout().shape().dims();
        let shares = in_shares(samples, numbers(&projected).len(), |range| {
            let mut output = vec![0.0; range.len() * length * width / 3];
            let mut divisors = Vec::with_capacity(2 * range.len() * self.heads.count * length);
            let outputs = output.chunks_exact_mut(length * width / 3);
            for (sample, output) in range.zip(outputs) {
                for head in self.heads_of(sample, &projected) {
                    head.forward(output, &mut divisors);
                }
            }
            (output, divisors)
        });
        let (outputs, divisors): (Vec<_>, Vec<_>) = shares.into_iter().unzip();
        let divisors = tensor(joined(divisors), [samples, self.heads.count, length, 2]);
        let output = tensor(joined(outputs), [samples, length, width / 3]);
        (
            output,
            Saved {
                projected,
                divisors,
            },
        )
    }

    fn backward(
        &self,
        Saved {
            projected,
            divisors,
        }: Saved,
        gradient: FlexTensor,
        _: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let gradient = in_order(gradient);
        let [samples, length, width] = projected.layout().shape().dims();
        let (size, rows) = (length * width, 2 * self.heads.count * length);
        let shares = in_shares(samples, numbers(&projected).len(), |range| {
            let mut of_projected = vec![0.0; range.len() * size];
            let targets = of_projected.chunks_exact_mut(size);
            for (sample, target) in range.zip(targets) {
                let gradient = &numbers(&gradient)[sample * size / 3..][..size / 3];
                let divisors = &numbers(&divisors)[sample * rows..][..rows];
                let heads = self.heads_of(sample, &projected);
                for (head, divisors) in heads.zip(divisors.chunks_exact(2 * length)) {
                    head.backward(gradient, divisors, target);
                }
            }
            of_projected
        });
        [Some(tensor(joined(shares), [samples, length, width]))]
    }
}

impl Attention {
    fn heads_of<'a>(
        &'a self,
        sample: usize,
        projected: &'a FlexTensor,
    ) -> impl Iterator<Item = Head<'a>> {
        let [_, length, width] = projected.layout().shape().dims();
        let (size, square) = (length * width, length * length);
        let projected = &numbers(projected)[sample * size..][..size];
        (0..self.heads.count).map(move |index| Head {
            heads: self.heads,
            index,
            length,
            d: width / 3,
            projected,
            kept: self.kept.as_ref().map(|kept| {
                let begin = (sample * self.heads.count + index) * square;
                &numbers(kept)[begin..][..square]
            }),
        })
    }
}

/// One head of one sample.
struct Head<'a> {
    heads: Heads,
    index: usize,
    length: usize,
    d: usize,
    /// `[length, 3 · d]`.
    projected: &'a [f32],
    /// `[length, length]`.
    kept: Option<&'a [f32]>,
}

impl Head<'_> {
    /// Its queries, keys and values among the columns of all.
    fn parts(&self) -> [Columns; 3] {
        let count = self.d / self.heads.count;
        [0, 1, 2].map(|part| Columns {
            first: part * self.d + self.index * count,
            count,
            width: 3 * self.d,
        })
    }

    /// Its place in the output.
    fn output(&self) -> Columns {
        let count = self.d / self.heads.count;
        let first = self.index * count;
        let width = self.d;
        Columns {
            first,
            count,
            width,
        }
    }

    /// Rows of scores that are made at a time, and the columns that they need.
    fn blocks(&self) -> impl Iterator<Item = (Range<usize>, usize)> {
        const MOST: usize = 1 << 16;
        // A causal block ends where its last place stands, so that small ones save work.
        let most = if self.heads.causal {
            32
        } else {
            MOST / self.length
        };
        let count = self.length.div_ceil(most.max(16));
        let rows = self.length.div_ceil(count);
        (0..self.length).step_by(rows).map(move |begin| {
            let end = self.length.min(begin + rows);
            let columns = if self.heads.causal { end } else { self.length };
            (begin..end, columns)
        })
    }

    /// How many places a row may look at.
    fn seen(&self, row: usize) -> usize {
        if self.heads.causal {
            row + 1
        } else {
            self.length
        }
    }

    /// Multiplies rows of shares, or of their gradients, by what dropout keeps of them.
    #[inline(always)]
    fn keep(&self, shares: &mut [f32], rows: Range<usize>, columns: usize) {
        let Some(kept) = self.kept else { return };
        let kept = kept.chunks_exact(self.length).skip(rows.start);
        for (shares, kept) in shares.chunks_exact_mut(columns).zip(kept) {
            shares
                .iter_mut()
                .zip(kept)
                .for_each(|(share, kept)| *share *= kept);
        }
    }

    /// Writes to its columns of the output, and appends the two numbers of each row.
    fn forward(&self, output: &mut [f32], divisors: &mut Vec<f32>) {
        let [q, k, v] = self.parts();
        let mut scores = vec![0.0; self.scratch()];
        for (rows, columns) in self.blocks() {
            let scores = &mut scores[..rows.len() * columns];
            self.score(&rows, columns, [q, k], scores);
            vectorised(
                #[inline(always)]
                || {
                    for (row, scores) in rows.clone().zip(scores.chunks_exact_mut(columns)) {
                        divisors.extend(softmax_of(scores, self.seen(row)));
                    }
                    self.keep(scores, rows.clone(), columns);
                },
            );
            let target = self.output().of_mut(output, rows.clone());
            let shares = matrix(scores, rows.len(), columns);
            multiply(target, shares, v.of(self.projected, 0..columns), 1.0);
        }
    }

    /// Writes to its columns of the gradient of queries, keys and values, which are zero before.
    fn backward(&self, gradient: &[f32], divisors: &[f32], target: &mut [f32]) {
        let [q, k, v] = self.parts();
        let scratch = self.scratch();
        let mut buffers = [vec![0.0; scratch], vec![0.0; scratch], Vec::new()];
        for (rows, columns) in self.blocks() {
            let [shares, slopes, dropped] = &mut buffers;
            let (shares, slopes) = (
                &mut shares[..rows.len() * columns],
                &mut slopes[..rows.len() * columns],
            );
            let gradient = self.output().of(gradient, rows.clone());
            self.score(&rows, columns, [q, k], shares);
            let values = v.of(self.projected, 0..columns).transpose();
            multiply(
                matrix_mut(slopes, rows.len(), columns),
                gradient,
                values,
                1.0,
            );
            vectorised(
                #[inline(always)]
                || {
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
                },
            );
            let kept = if self.kept.is_some() {
                &dropped[..]
            } else {
                &*shares
            };
            let kept = matrix(kept, rows.len(), columns).transpose();
            multiply_and_add(v.of_mut(target, 0..columns), kept, gradient);
            self.slope(shares, slopes, columns);
            let slopes = matrix(slopes, rows.len(), columns);
            let keys = k.of(self.projected, 0..columns);
            multiply(q.of_mut(target, rows.clone()), slopes, keys, 1.0);
            let queries = q.of(self.projected, rows.clone());
            multiply_and_add(k.of_mut(target, 0..columns), slopes.transpose(), queries);
        }
    }

    /// Room for the scores of the largest block.
    fn scratch(&self) -> usize {
        let sizes = self.blocks().map(|(rows, columns)| rows.len() * columns);
        sizes.max().unwrap_or(0)
    }

    fn score(&self, rows: &Range<usize>, columns: usize, [q, k]: [Columns; 2], scores: &mut [f32]) {
        let queries = q.of(self.projected, rows.clone());
        let keys = k.of(self.projected, 0..columns).transpose();
        let target = matrix_mut(scores, rows.len(), columns);
        multiply(target, queries, keys, self.heads.scale(self.d));
    }

    /// From the gradients of shares to those of products of queries and keys.
    fn slope(&self, shares: &[f32], slopes: &mut [f32], columns: usize) {
        let scale = self.heads.scale(self.d);
        vectorised(
            #[inline(always)]
            || {
                let rows = shares
                    .chunks_exact(columns)
                    .zip(slopes.chunks_exact_mut(columns));
                for (shares, slopes) in rows {
                    let mean = sum_of_pairs(shares, slopes, |share, slope| share * slope);
                    let pairs = slopes.iter_mut().zip(shares);
                    pairs.for_each(|(slope, share)| *slope = share * (*slope - mean) * scale);
                }
            },
        );
    }
}

/// The softmax of the first `seen` scores, in place, and zeros after them. Returns the largest score, and
/// one over the sum of the exponentials of all less that.
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

/// The same softmax by what it returned.
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
