//! Attention in groups of samples, or in blocks of rows: neither pass holds all scores, except for the factors of
//! dropout of a group.
//!
//! Burn's own attention is no choice: it has no gradient and no dropout, and where a GPU's tuning
//! prefers it, it stores all scores, too.

use std::ops::Range;

use burn::{
    backend::DispatchTensor,
    tensor::{Bool, Device, Tensor, activation::softmax, s},
};
use stovepipe_autodiff::{Operation, arange, at_least_f32};

use crate::{heads::Heads, random::Mask};

/// The most scores in memory at once, unless a single row has more: 64 MiB in f32.
const SCORES: usize = 1 << 24;

/// See [`crate::attention()`].
pub(crate) fn attention(projected: Tensor<3>, heads: Heads, mask: Option<Mask>) -> Tensor<3> {
    in_blocks(projected, heads, mask, SCORES)
}

fn in_blocks(projected: Tensor<3>, heads: Heads, mask: Option<Mask>, most: usize) -> Tensor<3> {
    let attention = Attention { heads, mask, most };
    let found = attention.clone().run([projected.clone().into_dispatch()]);
    match found {
        Some(output) => Tensor::from_dispatch(output),
        // Burn differentiates each operation.
        None => attention.output(projected),
    }
}

#[derive(Clone, Debug)]
struct Attention {
    heads: Heads,
    mask: Option<Mask>,
    most: usize,
}

/// Attention of a group of samples.
struct Group {
    heads: Heads,
    /// The factors of the mask, `[samples, heads, length, length]`.
    kept: Option<Tensor<4>>,
    most: usize,
}

impl Operation<1> for Attention {
    fn forward(&self, [projected]: [DispatchTensor; 1]) -> DispatchTensor {
        self.output(Tensor::from_dispatch(projected))
            .into_dispatch()
    }

    fn backward(
        &self,
        [projected]: [DispatchTensor; 1],
        gradient: DispatchTensor,
        _: [bool; 1],
    ) -> [Option<DispatchTensor>; 1] {
        let (projected, gradient) = (
            Tensor::from_dispatch(projected),
            Tensor::from_dispatch(gradient),
        );
        let mut later = Later::default();
        let found = self.groups(&projected).map(|samples| {
            let group = self.of_samples(&samples, &projected);
            let [projected, gradient] = [&projected, &gradient].map(|all| part(all, 0, &samples));
            group.gradient(projected, gradient, &mut later)
        });
        [Some(cat(found.collect(), 0).into_dispatch())]
    }
}

impl Attention {
    fn output(&self, projected: Tensor<3>) -> Tensor<3> {
        let mut later = Later::default();
        let found = self.groups(&projected).map(|samples| {
            let group = self.of_samples(&samples, &projected);
            group.output(part(&projected, 0, &samples), &mut later)
        });
        cat(found.collect(), 0)
    }

    /// Samples whose scores fit, or one.
    fn groups(&self, projected: &Tensor<3>) -> impl Iterator<Item = Range<usize>> + use<> {
        let [samples, length, _] = projected.dims();
        in_parts(
            samples,
            self.most / (self.heads.count * length * length).max(1),
        )
    }

    fn of_samples(&self, samples: &Range<usize>, projected: &Tensor<3>) -> Group {
        let ([all, length, _], device) = (projected.dims(), projected.device().inner());
        let kept = self.mask.map(|mask| {
            let shape = |samples| [samples, self.heads.count, length, length];
            match mask.samples() == all {
                true => (mask.of(samples).factors(&device)).reshape(shape(samples.len())),
                // Its samples are others.
                false => part(&mask.factors(&device).reshape(shape(all)), 0, samples),
            }
        });
        Group {
            heads: self.heads,
            kept,
            most: self.most,
        }
    }
}

impl Group {
    fn gradient(&self, projected: Tensor<3>, gradient: Tensor<3>, later: &mut Later) -> Tensor<3> {
        let [q, k, v] = self.split(projected);
        let gradient = by_heads(gradient, self.heads.count);
        let (dtype, scale) = (q.dtype(), self.scale(&q));
        let (mut of_q, mut of_k, mut of_v) = (Vec::new(), None, None);
        for rows in self.blocks(&q) {
            let seen = 0..self.seen(&rows, &q);
            let [seen_k, seen_v] = [&k, &v].map(|all| part(all, 2, &seen));
            let [q, gradient] = [&q, &gradient].map(|all| part(all, 2, &rows));
            let shares = self.shares([q.clone(), seen_k.clone()], &rows, later);
            let kept = self.thinned(shares.clone(), &rows).cast(dtype);
            let own = kept.swap_dims(2, 3).matmul(gradient.clone());
            of_v = Some(added(of_v, own, &v));
            let of_kept = at_least_f32(gradient.matmul(seen_v.swap_dims(2, 3)));
            let of_shares = self.thinned(of_kept, &rows);
            let along = (of_shares.clone() * shares.clone()).sum_dim(3);
            let of_scores = (shares * (of_shares - along)).cast(dtype).mul_scalar(scale);
            of_q.push(of_scores.clone().matmul(seen_k));
            let own = of_scores.swap_dims(2, 3).matmul(q);
            of_k = Some(added(of_k, own, &k));
        }
        let of_all = |sum: Option<Tensor<4>>| self.added_up(sum.unwrap_or_else(|| k.zeros_like()));
        let parts = [cat(of_q, 2), of_all(of_k), of_all(of_v)].map(joined);
        Tensor::cat(parts.to_vec(), 2)
    }

    fn output(&self, projected: Tensor<3>, later: &mut Later) -> Tensor<3> {
        let [q, k, v] = self.split(projected);
        let blocks = self.blocks(&q).map(|rows| {
            let seen = 0..self.seen(&rows, &q);
            let [k, v] = [&k, &v].map(|all| part(all, 2, &seen));
            let q = part(&q, 2, &rows);
            let dtype = q.dtype();
            let shares = self.thinned(self.shares([q, k], &rows, later), &rows);
            shares.cast(dtype).matmul(v)
        });
        joined(cat(blocks.collect(), 2))
    }

    /// Queries, keys and values, each `[n, heads, length, width of a head]`.
    fn split(&self, projected: Tensor<3>) -> [Tensor<4>; 3] {
        let Heads { count, keys, .. } = self.heads;
        let width = projected.dims()[2] / (count + 2 * keys);
        let part = |first: usize, heads: usize| {
            let part = projected.clone().narrow(2, first * width, heads * width);
            by_heads(part, heads)
        };
        let [k, v] = [count, count + keys].map(|first| self.repeated(part(first, keys)));
        [part(0, count), k, v]
    }

    /// Keys or values for each of the heads that share them.
    fn repeated(&self, shared: Tensor<4>) -> Tensor<4> {
        let [samples, keys, length, width] = shared.dims();
        match self.heads.group() {
            1 => shared,
            group => (shared.unsqueeze_dim::<5>(2).repeat_dim(2, group)).reshape([
                samples,
                keys * group,
                length,
                width,
            ]),
        }
    }

    /// The reverse of [`repeated`](Self::repeated), for gradients.
    fn added_up(&self, of_all: Tensor<4>) -> Tensor<4> {
        let [samples, _, length, width] = of_all.dims();
        let (keys, group) = (self.heads.keys, self.heads.group());
        match group {
            1 => of_all,
            _ => (of_all.reshape([samples, keys, group, length, width]))
                .sum_dim(2)
                .squeeze_dim(2),
        }
    }

    fn scale(&self, q: &Tensor<4>) -> f32 {
        self.heads.scale(q.dims()[3])
    }

    /// Rows whose scores fit, or one: all of a group that has several samples.
    fn blocks(&self, q: &Tensor<4>) -> impl Iterator<Item = Range<usize>> + use<> {
        let [samples, count, length, _] = q.dims();
        in_parts(length, self.most / (samples * count * length).max(1))
    }

    /// How many positions a block of rows sees.
    fn seen(&self, rows: &Range<usize>, q: &Tensor<4>) -> usize {
        if self.heads.causal {
            rows.end
        } else {
            q.dims()[2]
        }
    }

    /// The softmax of the scores of some rows.
    fn shares(&self, [q, k]: [Tensor<4>; 2], rows: &Range<usize>, later: &mut Later) -> Tensor<4> {
        let scale = self.scale(&q);
        let mut scores = q.matmul(k.swap_dims(2, 3)).mul_scalar(scale);
        if self.heads.causal {
            let later = later.of(rows, &scores.device());
            scores = scores.mask_fill(later.unsqueeze(), f32::NEG_INFINITY);
        }
        softmax(at_least_f32(scores), 3)
    }

    /// Shares times what is kept of them.
    fn thinned(&self, shares: Tensor<4>, rows: &Range<usize>) -> Tensor<4> {
        let Some(kept) = &self.kept else {
            return shares;
        };
        let kept = part(&part(kept, 2, rows), 3, &(0..shares.dims()[3]));
        let kept = kept.cast(shares.dtype());
        shares * kept
    }
}

/// Ranges of `most` of so many, and the rest.
fn in_parts(count: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let most = most.clamp(1, count.max(1));
    (0..count.max(1))
        .step_by(most)
        .map(move |first| first..(first + most).min(count))
}

/// A range of a dimension. Burn copies the whole, too.
fn part<const D: usize>(all: &Tensor<D>, dim: usize, range: &Range<usize>) -> Tensor<D> {
    match range.len() == all.dims()[dim] {
        true => all.clone(),
        false => all.clone().narrow(dim, range.start, range.len()),
    }
}

/// Burn copies a single tensor, too.
fn cat<const D: usize>(mut parts: Vec<Tensor<D>>, dim: usize) -> Tensor<D> {
    match parts.len() {
        1 => parts.remove(0),
        _ => Tensor::cat(parts, dim),
    }
}

/// Adds the gradient of the first positions of `all`, or of all of them.
fn added(sum: Option<Tensor<4>>, own: Tensor<4>, all: &Tensor<4>) -> Tensor<4> {
    match (sum, own.dims() == all.dims()) {
        (None, true) => own,
        (Some(sum), true) => sum + own,
        (sum, false) => {
            let first = s![.., .., ..own.dims()[2], ..];
            let sum = sum.unwrap_or_else(|| all.zeros_like());
            sum.clone().slice_assign(first, sum.slice(first) + own)
        }
    }
}

/// For each of some rows, which positions up to their end come after it: those asked for last.
#[derive(Default)]
struct Later(Option<(Range<usize>, Tensor<2, Bool>)>);

impl Later {
    fn of(&mut self, rows: &Range<usize>, device: &Device) -> Tensor<2, Bool> {
        if let Some((known, later)) = &self.0
            && known == rows
        {
            return later.clone();
        }
        let all = |range: Range<usize>| arange(range.start as i64..range.end as i64, device);
        let shape = [rows.len(), rows.end];
        let position = all(0..rows.end).unsqueeze_dim::<2>(0).expand(shape);
        let own = all(rows.clone()).unsqueeze_dim::<2>(1).expand(shape);
        let later = position.greater(own);
        self.0 = Some((rows.clone(), later.clone()));
        later
    }
}

/// `[n, length, heads · width]` to `[n, heads, length, width]`.
fn by_heads(x: Tensor<3>, heads: usize) -> Tensor<4> {
    let [samples, length, d] = x.dims();
    x.reshape([samples, length, heads, d / heads])
        .swap_dims(1, 2)
}

/// The reverse of [`by_heads`].
fn joined(x: Tensor<4>) -> Tensor<3> {
    let [samples, count, length, width] = x.dims();
    x.swap_dims(1, 2).reshape([samples, length, count * width])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use burn::tensor::Tolerance;

    use super::{super::normal, *};
    use crate::random::Draw;

    /// Blocks of one row, of some, and the last one smaller, and samples by themselves, next to all at once.
    #[test]
    fn blocks_change_nothing_but_the_rounding() {
        let [samples, length, width] = [2, 7, 12];
        let projected = normal(0, [samples, length, 3 * width], 0.0);
        let slopes = normal(1, [samples, length, width], 0.0);
        for (causal, drops) in [(false, false), (false, true), (true, false), (true, true)] {
            let heads = Heads::new(3, causal);
            // Its samples are those of the input, or another.
            let of_mask = if causal { samples } else { 1 };
            let draw = Draw {
                key: [1, 2],
                first: 3,
                samples: of_mask,
                each: samples / of_mask * 3 * length * length,
            };
            let mask = drops.then(|| Mask::new(draw, 0.8, 1.25));
            let run = |most: usize| {
                let x = projected.clone().autodiff().require_grad();
                let y = in_blocks(x.clone(), heads, mask, most);
                let gradients = (y.clone() * slopes.clone().autodiff()).sum().backward();
                [y.inner(), x.grad(&gradients).unwrap()].map(Tensor::into_data)
            };
            let all = run(samples * 3 * length * length);
            let by_kernel = crate::attention(projected.clone(), heads, mask).into_data();
            all[0].assert_approx_eq::<f32>(&by_kernel, Tolerance::rel_abs(1e-5, 1e-6));
            // Rows of a sample, and a sample.
            for rows in [1, 2, 3, 6, length] {
                for (found, expected) in run(rows * 3 * length).iter().zip(&all) {
                    found.assert_approx_eq::<f32>(expected, Tolerance::rel_abs(1e-5, 1e-6));
                }
            }
        }
    }

    #[test]
    fn no_block_has_more_scores_than_fit() {
        let sizes = |parts: &mut dyn Iterator<Item = Range<usize>>| -> Vec<usize> {
            parts.map(|range| range.len()).collect()
        };
        let of = |samples, length, most| {
            let (heads, mask) = (Heads::new(3, false), None);
            let attention = Attention { heads, mask, most };
            let projected = Tensor::zeros([samples, length, 9], &Device::flex());
            let first = attention.groups(&projected).next().unwrap();
            let group = attention.of_samples(&first, &projected);
            let [q, ..] = group.split(part(&projected, 0, &first));
            [
                sizes(&mut attention.groups(&projected)),
                sizes(&mut group.blocks(&q)),
            ]
        };
        assert_eq!(of(5, 7, 2 * 3 * 7 * 7), [vec![2, 2, 1], vec![7]]);
        assert_eq!(of(5, 7, 5 * 3 * 7 * 7), [vec![5], vec![7]]);
        assert_eq!(of(2, 7, 3 * 7 * 3), [vec![1, 1], vec![3, 3, 1]]);
        assert_eq!(of(2, 4, 1), [vec![1, 1], vec![1; 4]]); // a row at least
    }
}
