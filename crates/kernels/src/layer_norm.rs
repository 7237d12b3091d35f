//! Layer normalization in one pass over memory, forward and backward.

use burn::tensor::Tensor;
use burn_flex::FlexTensor;
use stovepipe_autodiff::{Kernel, Operand, at_least_f32, contiguous, tensor, values};

use crate::{
    everywhere::normalize,
    planes::{in_shares, joined_pairs, vectorised},
    rows::{ROWS, folded, on_cpu_in_f32, sum_of, sum_of_pairs, width},
};

/// (x − mean) / √(variance + ε) · γ + β, with the mean and variance of each row of `x` `[…, d]`, and γ
/// and β of `[d]` (Ba et al., "Layer Normalization", 2016).
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_kernels::layer_norm;
///
/// let device = Device::flex();
/// let x = Tensor::<2>::from_floats([[1.0, 3.0], [50.0, 30.0]], &device);
/// let (gamma, beta) = (Tensor::ones([2], &device), Tensor::zeros([2], &device));
/// let y = layer_norm(x, gamma, beta, 1e-5).into_data().try_to_vec::<f32>().unwrap();
/// assert!(y.iter().zip([-1.0, 1.0, 1.0, -1.0]).all(|(y, expected)| (y - expected).abs() < 1e-4));
/// ```
///
/// # Panics
///
/// Like Burn, if the sizes do not fit.
#[must_use]
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    let [gamma, beta] = [gamma, beta].map(at_least_f32);
    let found = on_cpu_in_f32(&x, |x| by_kernel(x, &gamma, &beta, epsilon));
    found.unwrap_or_else(|| normalize(x, gamma, Some(beta), epsilon))
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
    let kernel = NormalizeRows(epsilon as f32);
    let operands = [Operand::of(x)?, Operand::of(gamma)?, Operand::of(beta)?];
    let (output, _) = kernel.run(operands)?;
    Some(output.into_tensor())
}

/// By this ε.
#[derive(Clone, Debug)]
struct NormalizeRows(f32);

#[derive(Clone, Debug)]
struct SavedRows {
    x: FlexTensor,
    gamma: FlexTensor,
    centers: FlexTensor,
    /// 1 / √(variance + ε) of each row.
    scales: FlexTensor,
}

impl Kernel<3> for NormalizeRows {
    type Saved = SavedRows;

    fn forward(&self, inputs: [FlexTensor; 3]) -> (FlexTensor, SavedRows) {
        let [x, gamma, beta] = inputs.map(contiguous);
        let (all, width) = (values(&x), width(&x));
        let rows = all.len() / width;
        let shares = in_shares(rows, all.len(), &|range| {
            let rows = all[range.start * width..range.end * width].chunks_exact(width);
            self.normalized(rows, values(&gamma), values(&beta))
        });
        let (output, statistics) = joined_pairs(shares);
        let (centers, scales) = statistics.into_iter().unzip();
        let output = tensor(output, x.layout().shape().clone());
        let saved = SavedRows {
            x,
            gamma,
            centers: tensor(centers, [rows]),
            scales: tensor(scales, [rows]),
        };
        (output, saved)
    }

    fn backward(
        &self,
        saved: SavedRows,
        gradient: FlexTensor,
        _: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let gradient = contiguous(gradient);
        let (x, slopes) = (values(&saved.x), values(&gradient));
        let width = width(&saved.x);
        let blocks = (x.len() / width).div_ceil(ROWS);
        let shares = in_shares(blocks, x.len(), &|range| {
            let mut of_x = Vec::with_capacity(range.len() * ROWS * width);
            let mut sums = vec![0.0; range.len() * 2 * width];
            for (block, sums) in range.zip(sums.chunks_exact_mut(2 * width)) {
                vectorised!(|| saved.slope(block, slopes, &mut of_x, sums));
            }
            (of_x, sums)
        });
        let (of_x, sums) = joined_pairs(shares);
        let mut of_gamma = folded(&sums, 2 * width);
        let of_beta = of_gamma.split_off(width);
        [
            Some(tensor(of_x, saved.x.layout().shape().clone())),
            Some(tensor(of_gamma, [width])),
            Some(tensor(of_beta, [width])),
        ]
    }
}

impl NormalizeRows {
    /// Normalized rows, and the mean and inverse deviation of each.
    fn normalized<'a>(
        &self,
        rows: impl ExactSizeIterator<Item = &'a [f32]>,
        gamma: &[f32],
        beta: &[f32],
    ) -> (Vec<f32>, Vec<(f32, f32)>) {
        let width = gamma.len();
        let mut output = Vec::with_capacity(rows.len() * width);
        let mut statistics = Vec::with_capacity(rows.len());
        vectorised!(|| for row in rows {
            let center = sum_of(row, |x| x) / width as f32;
            let squares = sum_of(row, |x| (x - center) * (x - center));
            let scale = 1.0 / (squares / width as f32 + self.0).sqrt();
            let columns = row.iter().zip(gamma.iter().zip(beta));
            output.extend(columns.map(|(x, (gamma, beta))| (x - center) * scale * gamma + beta));
            statistics.push((center, scale));
        });
        (output, statistics)
    }
}

impl SavedRows {
    /// Appends the gradient of a block of rows, and adds to those of γ and β: the two halves of `sums`.
    #[inline(always)]
    fn slope<'a>(&'a self, block: usize, slopes: &'a [f32], of_x: &mut Vec<f32>, sums: &mut [f32]) {
        let gamma = values(&self.gamma);
        let width = gamma.len();
        let (of_gamma, of_beta) = sums.split_at_mut(width);
        let begin = block * ROWS;
        let rows_from = |values: &'a [f32]| values[begin * width..].chunks_exact(width);
        let rows = rows_from(values(&self.x)).zip(rows_from(slopes)).take(ROWS);
        let [centers, scales] = [&self.centers, &self.scales].map(|all| &values(all)[begin..]);
        let mut scaled = vec![0.0; width];
        for ((x, slope), (&center, &scale)) in rows.zip(centers.iter().zip(scales)) {
            let sums = of_gamma.iter_mut().zip(of_beta.iter_mut());
            for ((x, slope), (of_gamma, of_beta)) in x.iter().zip(slope).zip(sums) {
                *of_gamma += slope * (x - center) * scale;
                *of_beta += slope;
            }
            for (scaled, (slope, gamma)) in scaled.iter_mut().zip(slope.iter().zip(gamma)) {
                *scaled = slope * gamma;
            }
            let plain = sum_of(&scaled, |slope| slope) / width as f32;
            let projected = sum_of_pairs(&scaled, x, |slope, x| slope * (x - center));
            let of_distance = projected * scale * scale / width as f32;
            let pairs = scaled.iter().zip(x);
            let change = |(slope, x)| scale * (slope - plain - (x - center) * of_distance);
            of_x.extend(pairs.map(change));
        }
    }
}
