//! Layer normalization in one pass over memory each way.

use burn::tensor::{Tensor, module};
use burn_flex::FlexTensor;

use crate::{
    differentiable::{self, Kernel, Operand},
    planes::{in_order, in_shares, joined, numbers, tensor, vectorised},
    rows::{ROWS, folded, sum_of, sum_of_pairs, width},
    widened::widened,
};

/// (x − mean) / √(variance + ε) · γ + β, by the mean and the variance of each row: `[…, d]` to the same,
/// with γ and β of `[d]` (Ba et al., "Layer Normalization", 2016).
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_kernels::layer_norm;
///
/// let device = Device::flex();
/// let x = Tensor::<2>::from_floats([[1.0, 3.0], [50.0, 30.0]], &device);
/// let (gamma, beta) = (Tensor::ones([2], &device), Tensor::zeros([2], &device));
/// let y = layer_norm(x, gamma, beta, 1e-5).into_data().try_to_vec::<f32>()?;
/// assert!(y.iter().zip([-1.0, 1.0, 1.0, -1.0]).all(|(y, expected)| (y - expected).abs() < 1e-4));
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
///
/// # Panics
///
/// As Burn does, if the sizes do not fit.
#[must_use]
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    let dtype = x.dtype();
    let (x, [gamma, beta]) = (widened(x), [gamma, beta].map(widened));
    by_kernel(&x, &gamma, &beta, epsilon)
        .unwrap_or_else(|| module::layer_norm(x, gamma, Some(beta), epsilon))
        .cast(dtype)
}

fn by_kernel<const D: usize>(
    x: &Tensor<D>,
    gamma: &Tensor<1>,
    beta: &Tensor<1>,
    epsilon: f64,
) -> Option<Tensor<D>> {
    let shape = x.dims();
    let width = [shape[D - 1]];
    if gamma.dims() != width || beta.dims() != width || shape.contains(&0) {
        return None;
    }
    let kernel = Normalize {
        epsilon: epsilon as f32,
    };
    let operands = [Operand::of(x)?, Operand::of(gamma)?, Operand::of(beta)?];
    let (output, _) = differentiable::run(kernel, operands)?;
    Some(output.into_tensor())
}

#[derive(Clone, Debug)]
struct Normalize {
    epsilon: f32,
}

#[derive(Clone, Debug)]
struct Saved {
    x: FlexTensor,
    gamma: FlexTensor,
    /// The mean of each row.
    centers: FlexTensor,
    /// 1 / √(variance + ε) of each row.
    scales: FlexTensor,
}

impl Kernel<3> for Normalize {
    type Saved = Saved;

    fn forward(&self, inputs: [FlexTensor; 3]) -> (FlexTensor, Saved) {
        let [x, gamma, beta] = inputs.map(in_order);
        let (all, width) = (numbers(&x), width(&x));
        let rows = all.len() / width;
        let shares = in_shares(rows, all.len(), |range| {
            let rows = all[range.start * width..range.end * width].chunks_exact(width);
            self.normalized(rows, numbers(&gamma), numbers(&beta))
        });
        let (outputs, statistics): (Vec<_>, Vec<_>) = shares.into_iter().unzip();
        let (centers, scales): (Vec<_>, Vec<_>) = joined(statistics).into_iter().unzip();
        let output = tensor(joined(outputs), x.layout().shape().clone());
        let saved = Saved {
            x,
            gamma,
            centers: tensor(centers, [rows]),
            scales: tensor(scales, [rows]),
        };
        (output, saved)
    }

    fn backward(
        &self,
        saved: Saved,
        gradient: FlexTensor,
        _: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let gradient = in_order(gradient);
        let (x, slopes) = (numbers(&saved.x), numbers(&gradient));
        let width = width(&saved.x);
        let blocks = (x.len() / width).div_ceil(ROWS);
        let shares = in_shares(blocks, x.len(), |range| {
            let mut of_x = Vec::with_capacity(range.len() * ROWS * width);
            let mut sums = vec![0.0; range.len() * 2 * width];
            for (block, sums) in range.zip(sums.chunks_exact_mut(2 * width)) {
                vectorised(
                    #[inline(always)]
                    || saved.sloped(block, slopes, &mut of_x, sums),
                );
            }
            (of_x, sums)
        });
        let (of_x, sums): (Vec<_>, Vec<_>) = shares.into_iter().unzip();
        let mut of_gamma = folded(&joined(sums), 2 * width);
        let of_beta = of_gamma.split_off(width);
        [
            Some(tensor(joined(of_x), saved.x.layout().shape().clone())),
            Some(tensor(of_gamma, [width])),
            Some(tensor(of_beta, [width])),
        ]
    }
}

impl Normalize {
    /// Rows normalized, with the mean and the inverse deviation of each.
    fn normalized<'a>(
        &self,
        rows: impl ExactSizeIterator<Item = &'a [f32]>,
        gamma: &[f32],
        beta: &[f32],
    ) -> (Vec<f32>, Vec<(f32, f32)>) {
        let width = gamma.len();
        let mut output = Vec::with_capacity(rows.len() * width);
        let mut statistics = Vec::with_capacity(rows.len());
        vectorised(
            #[inline(always)]
            || {
                for row in rows {
                    let center = sum_of(row, |x| x) / width as f32;
                    let squares = sum_of(row, |x| (x - center) * (x - center));
                    let scale = 1.0 / (squares / width as f32 + self.epsilon).sqrt();
                    let numbers = row.iter().zip(gamma.iter().zip(beta));
                    output.extend(
                        numbers.map(|(x, (gamma, beta))| (x - center) * scale * gamma + beta),
                    );
                    statistics.push((center, scale));
                }
            },
        );
        (output, statistics)
    }
}

impl Saved {
    /// Appends the gradient of a block of rows, and adds to those of γ and β, which lie one after the
    /// other in `sums`.
    #[inline(always)]
    fn sloped<'a>(
        &'a self,
        block: usize,
        slopes: &'a [f32],
        of_x: &mut Vec<f32>,
        sums: &mut [f32],
    ) {
        let gamma = numbers(&self.gamma);
        let width = gamma.len();
        let (of_gamma, of_beta) = sums.split_at_mut(width);
        let begin = block * ROWS;
        let rows_from = |numbers: &'a [f32]| numbers[begin * width..].chunks_exact(width);
        let rows = rows_from(numbers(&self.x))
            .zip(rows_from(slopes))
            .take(ROWS);
        let [centers, scales] = [&self.centers, &self.scales].map(|all| &numbers(all)[begin..]);
        let mut scaled = vec![0.0; width];
        for ((x, slope), (&center, &scale)) in rows.zip(centers.iter().zip(scales)) {
            let sums = of_gamma.iter_mut().zip(of_beta.iter_mut());
            for ((x, slope), (of_gamma, of_beta)) in x.iter().zip(slope).zip(sums) {
                *of_gamma += slope * (x - center) * scale;
                *of_beta += slope;
            }
            let products = slope.iter().zip(gamma);
            (scaled.iter_mut().zip(products))
                .for_each(|(scaled, (slope, gamma))| *scaled = slope * gamma);
            let plain = sum_of(&scaled, |slope| slope) / width as f32;
            let projected = sum_of_pairs(&scaled, x, |slope, x| slope * (x - center));
            let of_distance = projected * scale * scale / width as f32;
            let pairs = scaled.iter().zip(x);
            of_x.extend(
                pairs.map(|(slope, x)| scale * (slope - plain - (x - center) * of_distance)),
            );
        }
    }
}
