//! Normalization by the root of the mean square in one pass over memory, forward and backward.

use burn::tensor::Tensor;
use burn_flex::FlexTensor;
use stovepipe_autodiff::{Kernel, Operand, at_least_f32, contiguous, tensor, values};

use crate::{
    everywhere::normalize,
    planes::{in_shares, joined_pairs, vectorised},
    rows::{ROWS, folded, on_cpu_in_f32, sum_of, sum_of_pairs, width},
};

/// x / √(mean of x² + ε) · γ, with the mean of each row of `x` `[…, d]`, and γ of `[d]` (Zhang and
/// Sennrich, "Root Mean Square Layer Normalization", 2019).
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_kernels::rms_norm;
///
/// let device = Device::flex();
/// let x = Tensor::<2>::from_floats([[1.0, 7.0], [-30.0, 40.0]], &device);
/// let y = rms_norm(x, Tensor::ones([2], &device), 1e-6).into_data().try_to_vec::<f32>().unwrap();
/// let root = 1250f32.sqrt();
/// assert!(y.iter().zip([0.2, 1.4, -30.0 / root, 40.0 / root]).all(|(y, x)| (y - x).abs() < 1e-5));
/// ```
///
/// # Panics
///
/// Like Burn, if the sizes do not fit.
#[must_use]
pub fn rms_norm<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, epsilon: f64) -> Tensor<D> {
    let gamma = at_least_f32(gamma);
    let found = on_cpu_in_f32(&x, |x| by_kernel(x, &gamma, epsilon));
    found.unwrap_or_else(|| normalize(x, gamma, None, epsilon))
}

fn by_kernel<const D: usize>(x: &Tensor<D>, gamma: &Tensor<1>, epsilon: f64) -> Option<Tensor<D>> {
    let shape = x.dims();
    if gamma.dims() != [shape[D - 1]] || shape.contains(&0) {
        return None;
    }
    let kernel = ScaleRows(epsilon as f32);
    let (output, _) = kernel.run([Operand::of(x)?, Operand::of(gamma)?])?;
    Some(output.into_tensor())
}

/// By this ε.
#[derive(Clone, Debug)]
struct ScaleRows(f32);

/// The input, γ, and what each row was multiplied by.
type Saved = [FlexTensor; 3];

impl Kernel<2> for ScaleRows {
    type Saved = Saved;

    fn forward(&self, inputs: [FlexTensor; 2]) -> (FlexTensor, Saved) {
        let [x, gamma] = inputs.map(contiguous);
        let (all, width) = (values(&x), width(&x));
        let rows = all.len() / width;
        let shares = in_shares(rows, all.len(), &|range| {
            self.scaled(&all[range.start * width..range.end * width], values(&gamma))
        });
        let (output, scales) = joined_pairs(shares);
        let output = tensor(output, x.layout().shape().clone());
        (output, [x, gamma, tensor(scales, [rows])])
    }

    fn backward(
        &self,
        [x, gamma, scales]: Saved,
        gradient: FlexTensor,
        [_, needs_gamma]: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let gradient = contiguous(gradient);
        let width = width(&x);
        let rows = Rows {
            x: values(&x),
            gamma: values(&gamma),
            scales: values(&scales),
            slopes: values(&gradient),
        };
        let blocks = (rows.x.len() / width).div_ceil(ROWS);
        let shares = in_shares(blocks, rows.x.len(), &|range| {
            let mut of_x = Vec::with_capacity(range.len() * ROWS * width);
            let mut sums = vec![0.0; range.len() * width];
            for (block, sums) in range.zip(sums.chunks_exact_mut(width)) {
                vectorised!(|| rows.slope(block, &mut of_x, sums));
            }
            (of_x, sums)
        });
        let (of_x, sums) = joined_pairs(shares);
        let of_x = tensor(of_x, x.layout().shape().clone());
        [
            Some(of_x),
            needs_gamma.then(|| tensor(folded(&sums, width), [width])),
        ]
    }
}

impl ScaleRows {
    /// Scaled rows, and the factor of each.
    fn scaled(&self, x: &[f32], gamma: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let width = gamma.len();
        let mut output = Vec::with_capacity(x.len());
        let mut scales = Vec::with_capacity(x.len() / width);
        vectorised!(|| for row in x.chunks_exact(width) {
            let scale = 1.0 / (sum_of(row, |x| x * x) / width as f32 + self.0).sqrt();
            output.extend(row.iter().zip(gamma).map(|(x, gamma)| x * scale * gamma));
            scales.push(scale);
        });
        (output, scales)
    }
}

struct Rows<'a> {
    x: &'a [f32],
    gamma: &'a [f32],
    scales: &'a [f32],
    slopes: &'a [f32],
}

impl<'a> Rows<'a> {
    /// Appends the gradient of a block of rows, and adds to that of γ.
    #[inline(always)]
    fn slope(&self, block: usize, of_x: &mut Vec<f32>, of_gamma: &mut [f32]) {
        let width = self.gamma.len();
        let begin = block * ROWS;
        let rows_from = |values: &'a [f32]| values[begin * width..].chunks_exact(width);
        let rows = rows_from(self.x).zip(rows_from(self.slopes)).take(ROWS);
        let mut scaled = vec![0.0; width];
        for ((x, slope), &scale) in rows.zip(&self.scales[begin..]) {
            for ((x, slope), of_gamma) in x.iter().zip(slope).zip(of_gamma.iter_mut()) {
                *of_gamma += slope * x * scale;
            }
            for (scaled, (slope, gamma)) in scaled.iter_mut().zip(slope.iter().zip(self.gamma)) {
                *scaled = slope * gamma;
            }
            let projected = sum_of_pairs(&scaled, x, |slope, x| slope * x);
            let of_square = projected * scale * scale / width as f32;
            let pairs = scaled.iter().zip(x);
            of_x.extend(pairs.map(|(slope, x)| scale * (slope - x * of_square)));
        }
    }
}
