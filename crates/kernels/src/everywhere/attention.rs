//! Attention in blocks of rows: neither pass holds all scores.
//!
//! Burn's own attention is no choice: it has no gradient and no dropout, and where a GPU's tuning
//! prefers it, it stores all scores, too.

use std::ops::Range;

use burn::{
    backend::DispatchTensor,
    tensor::{Bool, Tensor, activation::softmax, s},
};
use stovepipe_autodiff::{Operation, at_least_f32};

use crate::heads::Heads;

/// The most scores in memory at once, unless a single row has more: 64 MiB in f32.
const SCORES: usize = 1 << 24;

/// See [`crate::attention()`].
pub(crate) fn attention(projected: Tensor<3>, heads: Heads, kept: Option<Tensor<4>>) -> Tensor<3> {
    in_blocks(projected, heads, kept, SCORES)
}

fn in_blocks(
    projected: Tensor<3>,
    heads: Heads,
    kept: Option<Tensor<4>>,
    most: usize,
) -> Tensor<3> {
    let kept = kept.map(Tensor::inner);
    let attention = Attention { heads, kept, most };
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
        let [q, k, v] = self.split(Tensor::from_dispatch(projected));
        let gradient = by_heads(Tensor::from_dispatch(gradient), self.heads.count);
        let (dtype, scale) = (q.dtype(), self.scale(&q));
        let mut of_q = Vec::new();
        let (mut of_k, mut of_v) = (k.zeros_like(), v.zeros_like());
        for rows in self.blocks(&q) {
            let seen = self.seen(&rows, &q);
            let [k, v] = [&k, &v].map(|all| all.clone().slice(s![.., .., ..seen, ..]));
            let [q, gradient] =
                [&q, &gradient].map(|all| all.clone().slice(s![.., .., rows.clone(), ..]));
            let shares = self.shares(q.clone(), k.clone(), &rows);
            let kept = self.thinned(shares.clone(), &rows).cast(dtype);
            let part = kept.swap_dims(2, 3).matmul(gradient.clone());
            of_v = of_v.clone().slice_assign(
                s![.., .., ..seen, ..],
                of_v.slice(s![.., .., ..seen, ..]) + part,
            );
            let of_shares = self.thinned(at_least_f32(gradient.matmul(v.swap_dims(2, 3))), &rows);
            let along = (of_shares.clone() * shares.clone()).sum_dim(3);
            let of_scores = (shares * (of_shares - along)).cast(dtype).mul_scalar(scale);
            of_q.push(of_scores.clone().matmul(k));
            let part = of_scores.swap_dims(2, 3).matmul(q);
            of_k = of_k.clone().slice_assign(
                s![.., .., ..seen, ..],
                of_k.slice(s![.., .., ..seen, ..]) + part,
            );
        }
        let [of_k, of_v] = [of_k, of_v].map(|of_all| self.added_up(of_all));
        let parts = [Tensor::cat(of_q, 2), of_k, of_v].map(joined);
        [Some(Tensor::cat(parts.to_vec(), 2).into_dispatch())]
    }
}

impl Attention {
    fn output(&self, projected: Tensor<3>) -> Tensor<3> {
        let [q, k, v] = self.split(projected);
        let blocks = self.blocks(&q).map(|rows| {
            let seen = self.seen(&rows, &q);
            let [k, v] = [&k, &v].map(|all| all.clone().slice(s![.., .., ..seen, ..]));
            let q = q.clone().slice(s![.., .., rows.clone(), ..]);
            let dtype = q.dtype();
            let shares = self.thinned(self.shares(q, k, &rows), &rows);
            shares.cast(dtype).matmul(v)
        });
        joined(Tensor::cat(blocks.collect(), 2))
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

    fn blocks(&self, q: &Tensor<4>) -> impl Iterator<Item = Range<usize>> + use<> {
        let [samples, count, length, _] = q.dims();
        let rows = (self.most / (samples * count * length).max(1)).clamp(1, length.max(1));
        (0..length)
            .step_by(rows)
            .map(move |first| first..(first + rows).min(length))
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
    fn shares(&self, q: Tensor<4>, k: Tensor<4>, rows: &Range<usize>) -> Tensor<4> {
        let scale = self.scale(&q);
        let mut scores = q.matmul(k.swap_dims(2, 3)).mul_scalar(scale);
        if self.heads.causal {
            let shape = [rows.len(), rows.end];
            let later = Tensor::<2, Bool>::tril_mask(shape, rows.start as i64, &scores.device());
            scores = scores.mask_fill(later.unsqueeze(), f32::NEG_INFINITY);
        }
        softmax(at_least_f32(scores), 3)
    }

    /// Shares times what is kept of them.
    fn thinned(&self, shares: Tensor<4>, rows: &Range<usize>) -> Tensor<4> {
        let Some(kept) = &self.kept else {
            return shares;
        };
        let kept = kept
            .clone()
            .slice(s![.., .., rows.clone(), ..shares.dims()[3]]);
        let kept = kept.cast(shares.dtype());
        match shares.is_autodiff() {
            true => shares * kept.autodiff(),
            false => shares * kept,
        }
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
    use burn::tensor::{Device, Distribution, Tolerance};

    use super::*;

    /// Blocks of one row, of some, and the last one smaller, next to all rows at once.
    #[test]
    fn blocks_change_nothing_but_the_rounding() {
        let device = Device::flex();
        let [samples, length, width] = [2, 7, 12];
        let random = |shape| Tensor::<3>::random(shape, Distribution::Normal(0.0, 1.0), &device);
        let (projected, slopes) = (random([samples, length, 3 * width]), random([2, 7, 12]));
        for (causal, drops) in [(false, false), (false, true), (true, false), (true, true)] {
            let heads = Heads::new(3, causal);
            let kept = drops.then(|| {
                let shape = [samples, 3, length, length];
                Tensor::<4>::random(shape, Distribution::Bernoulli(0.8), &device)
            });
            let run = |rows: usize| {
                let x = projected.clone().autodiff().require_grad();
                let most = rows * samples * 3 * length;
                let y = in_blocks(x.clone(), heads, kept.clone(), most);
                let gradients = (y.clone() * slopes.clone().autodiff()).sum().backward();
                [y.inner(), x.grad(&gradients).unwrap()].map(Tensor::into_data)
            };
            let all = run(length);
            for rows in [1, 2, 3, 6] {
                for (found, expected) in run(rows).iter().zip(&all) {
                    found.assert_approx_eq::<f32>(expected, Tolerance::rel_abs(1e-5, 1e-6));
                }
            }
        }
    }

    #[test]
    fn no_block_has_more_scores_than_fit() {
        let rows = |shape: [usize; 4], most| {
            let (heads, kept) = (Heads::new(shape[1], false), None);
            let attention = Attention { heads, kept, most };
            let q = Tensor::zeros(shape, &Device::flex());
            attention
                .blocks(&q)
                .map(|rows| rows.len())
                .collect::<Vec<_>>()
        };
        assert_eq!(rows([2, 3, 7, 4], 2 * 3 * 7 * 3), [3, 3, 1]);
        assert_eq!(rows([2, 3, 7, 4], 2 * 3 * 7 * 7), [7]);
        assert_eq!(rows([2, 3, 4, 4], 1), [1, 1, 1, 1]); // a row at least
    }
}
