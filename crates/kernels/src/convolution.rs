//! Convolution as matrix products, forward and backward.
//!
//! Burn's gradient of a convolution is a transposed convolution and one with swapped dimensions;
//! on a CPU, products with the patches of the input (Chellapilla et al., "High Performance
//! Convolutional Neural Networks for Document Processing", 2006) take a fraction of the time.
//! They are made sample by sample, so that patches never leave the cache, and a ReLU before the
//! convolution is computed as they are made.

use burn::{
    module::Param,
    nn::{PaddingConfig2d, conv::Conv2d},
    tensor::{Tensor, activation::relu, s},
};
use burn_flex::FlexTensor;
use faer::{Accum, MatMut, Par, linalg::matmul::matmul};

use crate::{
    differentiable::{self, Kernel, Operand},
    patches::Patches,
    planes::{dims, in_order, in_shares, joined, numbers, tensor, vectorised},
    products::matrix,
};

/// The convolution of the positive part of `x` `[n, in, h, w]`: `conv.forward(relu(x))` but for
/// rounding.
///
/// ```
/// use burn::{nn::conv::Conv2dConfig, tensor::{Device, Distribution, Tensor, Tolerance}};
/// use burn::tensor::activation::relu;
/// use stovepipe_kernels::relu_convolve;
///
/// let device = Device::flex();
/// let conv = Conv2dConfig::new([3, 4], [1, 7]).with_bias(false).init(&device);
/// let x = Tensor::random([2, 3, 8, 8], Distribution::Normal(0.0, 1.0), &device);
/// let (ours, burns) = (relu_convolve(&conv, x.clone()), conv.forward(relu(x)));
/// ours.into_data().assert_approx_eq::<f32>(&burns.into_data(), Tolerance::rel_abs(1e-5, 1e-5));
/// ```
///
/// # Panics
///
/// As Burn does, if the input does not fit.
#[must_use]
pub fn relu_convolve(conv: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    by_products(conv, &x, true, 0).unwrap_or_else(|| by_burn(conv, relu(x)))
}

/// Like [`relu_convolve`], but begins at row and column 1, with a row and a column of zeros at the
/// end: with a stride of 2, the odd pixels instead of the even ones.
///
/// ```
/// use burn::{module::Param, nn::conv::Conv2dConfig, tensor::{Device, Tensor}};
/// use stovepipe_kernels::relu_convolve_odd;
///
/// let device = Device::flex();
/// let mut conv = Conv2dConfig::new([1, 1], [1, 1]).with_stride([2, 2]).with_bias(false).init(&device);
/// conv.weight = Param::from_tensor(Tensor::ones([1, 1, 1, 1], &device));
/// let x = Tensor::from_floats([[[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]]], &device);
/// let y = relu_convolve_odd(&conv, x).into_data().try_to_vec::<f32>().unwrap();
/// assert_eq!(y, [5.0, 0.0, 0.0, 0.0]);
/// ```
///
/// # Panics
///
/// As Burn does, if the input does not fit.
#[must_use]
pub fn relu_convolve_odd(conv: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    by_products(conv, &x, true, 1).unwrap_or_else(|| {
        let moved = relu(x)
            .pad([(0, 1), (0, 1)], 0.0)
            .slice(s![.., .., 1.., 1..]);
        by_burn(conv, moved)
    })
}

/// The convolution of `x` `[n, in, h, w]`: `conv.forward(x)` but for rounding.
///
/// ```
/// use burn::{nn::conv::Conv2dConfig, tensor::{Device, Distribution, Tensor, Tolerance}};
/// use stovepipe_kernels::convolve;
///
/// let device = Device::flex();
/// let conv = Conv2dConfig::new([3, 4], [3, 3]).with_bias(false).init(&device);
/// let x = Tensor::random([2, 3, 8, 8], Distribution::Default, &device);
/// let (ours, burns) = (convolve(&conv, x.clone()), conv.forward(x));
/// ours.into_data().assert_approx_eq::<f32>(&burns.into_data(), Tolerance::rel_abs(1e-5, 1e-5));
/// ```
///
/// # Panics
///
/// As Burn does, if the input does not fit.
#[must_use]
pub fn convolve(conv: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    by_products(conv, &x, false, 0).unwrap_or_else(|| by_burn(conv, x))
}

/// On a GPU, fused kernels of Burn 0.22 make wrong gradients next to a convolution of one channel or
/// one filter: it gets a second, of zeros.
fn by_burn(conv: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    let (channels, filters) = (x.dims()[1], conv.weight.dims()[0]);
    if channels > 1 && filters > 1 {
        return conv.forward(x);
    }
    let mut weight = in_pairs(conv.weight.val(), 0);
    if channels == 1 {
        weight = in_pairs(weight, 1);
    }
    let bias = conv.bias.as_ref();
    let widened = Conv2d {
        weight: Param::initialized(conv.weight.id, weight),
        bias: bias.map(|bias| Param::initialized(bias.id, in_pairs(bias.val(), 0))),
        ..conv.clone()
    };
    widened.forward(in_pairs(x, 1)).narrow(1, 0, filters)
}

/// With zeros beside what is alone along a dimension.
fn in_pairs<const D: usize>(tensor: Tensor<D>, dim: usize) -> Tensor<D> {
    match tensor.dims()[dim] {
        1 => Tensor::cat(vec![tensor.clone(), tensor.zeros_like()], dim),
        _ => tensor,
    }
}

fn by_products(conv: &Conv2d, x: &Tensor<4>, rectified: bool, first: usize) -> Option<Tensor<4>> {
    let weight = conv.weight.val();
    let [_, channels, rows, columns] = weight.dims();
    let padding = match conv.padding {
        PaddingConfig2d::Valid => [0; 2],
        PaddingConfig2d::Explicit(top, left, bottom, right) if (top, left) == (bottom, right) => {
            [top, left]
        }
        _ => return None,
    };
    let is_plain = conv.groups == 1 && conv.dilation == [1, 1] && conv.bias.is_none();
    let shape = x.dims();
    let fits = shape[1] == channels && shape.iter().all(|&length| length > 0);
    if !is_plain || !fits {
        return None;
    }
    let kernel = Convolution {
        patches: Patches::new(
            [rows, columns],
            conv.stride,
            padding,
            first,
            [shape[2], shape[3]],
        )?,
        rectified,
    };
    let operands = [Operand::of(x)?, Operand::of(&weight)?];
    let (output, _) = differentiable::run(kernel, operands)?;
    Some(output.into_tensor())
}

#[derive(Clone, Debug)]
struct Convolution {
    patches: Patches,
    rectified: bool,
}

#[derive(Clone, Debug)]
struct Saved {
    x: FlexTensor,
    weight: FlexTensor,
}

impl Kernel<2> for Convolution {
    const WEIGHT: Option<usize> = Some(1);

    type Saved = Saved;

    fn forward(&self, inputs: [FlexTensor; 2]) -> (FlexTensor, Saved) {
        let [x, weight] = inputs.map(in_order);
        let samples = dims(&x)[0];
        let sizes @ [filters, _, places] = self.sizes(&weight);
        let [rows, columns] = self.patches.output();
        let shares = in_shares(samples, samples * filters * places, |range| {
            let mut scratch = Vec::new();
            let mut output = Vec::with_capacity(range.len() * filters * places);
            for sample in range {
                let patches = self.patches_of(sample, &x, &mut scratch);
                let begin = output.len();
                output.resize(begin + filters * places, 0.0);
                apply(numbers(&weight), patches, &mut output[begin..], sizes);
            }
            output
        });
        let output = tensor(joined(shares), [samples, filters, rows, columns]);
        (output, Saved { x, weight })
    }

    fn backward(
        &self,
        Saved { x, weight }: Saved,
        gradient: FlexTensor,
        wanted: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let gradient = in_order(gradient);
        let shape @ [samples, ..] = dims(&x);
        let shares = in_shares(samples, numbers(&x).len(), |range| {
            self.backward_of(range, &x, &weight, &gradient, wanted)
        });
        let (of_x, of_weight): (Vec<_>, Vec<_>) = shares.into_iter().unzip();
        let sum = |mut sum: Vec<f32>, share: Vec<f32>| {
            sum.iter_mut()
                .zip(share)
                .for_each(|(sum, number)| *sum += number);
            sum
        };
        let of_weight = of_weight.into_iter().reduce(sum).unwrap_or_default();
        [
            wanted[0].then(|| tensor(joined(of_x), shape)),
            wanted[1].then(|| tensor(of_weight, dims(&weight))),
        ]
    }
}

impl Convolution {
    /// Filters, numbers of a patch, and patches of a sample.
    fn sizes(&self, weight: &FlexTensor) -> [usize; 3] {
        let [filters, channels, rows, columns] = dims(weight);
        let [height, width] = self.patches.output();
        [filters, channels * rows * columns, height * width]
    }

    /// The patches of a sample, `[numbers of a patch, patches]`: in `scratch`, unless the map is
    /// that already.
    fn patches_of<'a>(
        &self,
        sample: usize,
        x: &'a FlexTensor,
        scratch: &'a mut Vec<f32>,
    ) -> &'a [f32] {
        let [_, channels, height, width] = dims(x);
        let size = height * width;
        let map = &numbers(x)[sample * channels * size..][..channels * size];
        if self.patches.are_the_map() && !self.rectified {
            return map;
        }
        let length = self.patches.size();
        // What the patches do not meet stays zero from the first sample on.
        scratch.resize(channels * length, 0.0);
        let planes = map.chunks_exact(size).zip(scratch.chunks_exact_mut(length));
        vectorised(|| match self.rectified {
            true => planes.for_each(|(plane, patches)| self.patches.read(plane, patches, positive)),
            false => planes.for_each(|(plane, patches)| self.patches.read(plane, patches, |x| x)),
        });
        scratch
    }

    /// The gradients of a range of samples, and what they add to that of the weight.
    fn backward_of(
        &self,
        samples: std::ops::Range<usize>,
        x: &FlexTensor,
        weight: &FlexTensor,
        gradient: &FlexTensor,
        [wants_x, wants_weight]: [bool; 2],
    ) -> (Vec<f32>, Vec<f32>) {
        let sizes @ [filters, patch, places] = self.sizes(weight);
        let weight = numbers(weight);
        let [_, channels, height, width] = dims(x);
        let size = channels * height * width;
        let mut of_x = Vec::with_capacity(if wants_x { samples.len() * size } else { 0 });
        let mut of_weight = vec![0.0; if wants_weight { filters * patch } else { 0 }];
        let mut of_patches = vec![0.0; if wants_x { patch * places } else { 0 }];
        let mut scratch = Vec::new();
        for sample in samples {
            let slope = &numbers(gradient)[sample * filters * places..][..filters * places];
            if wants_weight {
                let patches = self.patches_of(sample, x, &mut scratch);
                add_product(slope, patches, &mut of_weight, sizes);
            }
            if wants_x {
                let map = &numbers(x)[sample * size..][..size];
                self.append_gradient(map, weight, slope, &mut of_patches, &mut of_x, sizes);
            }
        }
        (of_x, of_weight)
    }

    /// Appends the gradient of a sample, given that of its output.
    fn append_gradient(
        &self,
        map: &[f32],
        weight: &[f32],
        slope: &[f32],
        of_patches: &mut [f32],
        of_x: &mut Vec<f32>,
        [filters, patch, places]: [usize; 3],
    ) {
        let begin = of_x.len();
        of_x.resize(begin + map.len(), 0.0);
        let of_map = &mut of_x[begin..];
        let (direct, target) = match self.patches.are_the_map() {
            true => (true, &mut of_map[..]),
            false => (false, &mut of_patches[..]),
        };
        let product = MatMut::from_row_major_slice_mut(target, patch, places);
        let transposed = matrix(weight, filters, patch).transpose();
        matmul(
            product,
            Accum::Replace,
            transposed,
            matrix(slope, filters, places),
            1.0,
            Par::Seq,
        );
        vectorised(|| {
            if !direct {
                let planes = of_map.chunks_exact_mut(self.patches.map_size());
                let parts = of_patches.chunks_exact(self.patches.size());
                planes
                    .zip(parts)
                    .for_each(|(plane, part)| self.patches.add(part, plane));
            }
            if self.rectified {
                let pairs = of_map.iter_mut().zip(map);
                pairs.for_each(|(slope, &x)| *slope = if x <= 0.0 { 0.0 } else { *slope });
            }
        });
    }
}

/// What ReLU leaves of a number: NaN stays.
#[inline(always)]
fn positive(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}

/// output = weight · patches
fn apply(weight: &[f32], patches: &[f32], output: &mut [f32], [m, k, n]: [usize; 3]) {
    let product = MatMut::from_row_major_slice_mut(output, m, n);
    let (weight, patches) = (matrix(weight, m, k), matrix(patches, k, n));
    matmul(product, Accum::Replace, weight, patches, 1.0, Par::Seq);
}

/// sum += slope · patchesᵀ
fn add_product(slope: &[f32], patches: &[f32], sum: &mut [f32], [m, k, n]: [usize; 3]) {
    let sum = MatMut::from_row_major_slice_mut(sum, m, k);
    let patches = matrix(patches, k, n).transpose();
    matmul(sum, Accum::Add, matrix(slope, m, n), patches, 1.0, Par::Seq);
}
