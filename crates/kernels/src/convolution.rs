//! Convolution as matrix products, forward and backward.
//!
//! Burn computes the gradient of a convolution with a transposed convolution and one with swapped
//! dimensions. On a CPU, products with the patches of the input (Chellapilla et al., "High
//! Performance Convolutional Neural Networks for Document Processing", 2006) take a fraction of the
//! time. Patches are made for one sample at a time, so that they stay in the cache, and a ReLU before
//! the convolution is computed with them.

use std::ops::Range;

use burn::{
    nn::{PaddingConfig2d, conv::Conv2d},
    tensor::{Tensor, activation::relu, s},
};
use burn_flex::FlexTensor;
use stovepipe_autodiff::{Kernel, Operand, contiguous, tensor, values};

use crate::{
    everywhere,
    patches::Patches,
    planes::{dims, in_shares, joined, vectorised},
    products::{matrix, matrix_mut, multiply, multiply_and_add},
    rows::add,
};

/// `conv.forward(relu(x))` up to rounding, for `x` `[n, in, h, w]`.
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
/// Like Burn, if the input does not fit.
#[must_use]
pub fn relu_convolve(conv: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    by_products(conv, &x, true, 0).unwrap_or_else(|| everywhere::convolve(conv, relu(x)))
}

/// Like [`relu_convolve`], but starts at row and column 1, with a row and a column of zeros at the
/// end. With a stride of 2, it reads the odd pixels, not the even ones.
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
/// Like Burn, if the input does not fit.
#[must_use]
pub fn relu_convolve_odd(conv: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    by_products(conv, &x, true, 1).unwrap_or_else(|| {
        let padded = relu(x).pad([(0, 1), (0, 1)], 0.0);
        everywhere::convolve(conv, padded.slice(s![.., .., 1.., 1..]))
    })
}

/// `conv.forward(x)` up to rounding, for `x` `[n, in, h, w]`.
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
/// Like Burn, if the input does not fit.
#[must_use]
pub fn convolve(conv: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    by_products(conv, &x, false, 0).unwrap_or_else(|| everywhere::convolve(conv, x))
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
    let map = [shape[2], shape[3]];
    let patches = Patches::new([rows, columns], conv.stride, padding, first, map)?;
    let kernel = Convolution { patches, rectified };
    let (output, _) = kernel.run([Operand::of(x)?, Operand::of(&weight)?])?;
    Some(output.into_tensor())
}

#[derive(Clone, Debug)]
struct Convolution {
    patches: Patches,
    rectified: bool,
}

impl Kernel<2> for Convolution {
    const WEIGHT: Option<usize> = Some(1);

    /// The input and the weight.
    type Saved = [FlexTensor; 2];

    fn forward(&self, inputs: [FlexTensor; 2]) -> (FlexTensor, Self::Saved) {
        let [x, weight] = inputs.map(contiguous);
        let samples = dims(&x)[0];
        let [filters, patch, places] = self.sizes(&weight);
        let [rows, columns] = self.patches.output();
        let shares = in_shares(samples, samples * filters * places, &|range| {
            let mut scratch = Vec::new();
            let mut output = Vec::with_capacity(range.len() * filters * places);
            for sample in range {
                let patches = self.patches_of(sample, &x, &mut scratch);
                let begin = output.len();
                output.resize(begin + filters * places, 0.0);
                let target = matrix_mut(&mut output[begin..], filters, places);
                let weight = matrix(values(&weight), filters, patch);
                multiply(target, weight, matrix(patches, patch, places), 1.0);
            }
            output
        });
        let output = tensor(joined(shares), [samples, filters, rows, columns]);
        (output, [x, weight])
    }

    fn backward(
        &self,
        [x, weight]: Self::Saved,
        gradient: FlexTensor,
        needed: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let gradient = contiguous(gradient);
        let shape @ [samples, ..] = dims(&x);
        let shares = in_shares(samples, values(&x).len(), &|range| {
            self.backward_of(range, &x, &weight, &gradient, needed)
        });
        let (of_x, of_weight): (Vec<_>, Vec<_>) = shares.into_iter().unzip();
        let sum = |mut sum: Vec<f32>, share: Vec<f32>| {
            add(&mut sum, &share);
            sum
        };
        let of_weight = of_weight.into_iter().reduce(sum).unwrap_or_default();
        [
            needed[0].then(|| tensor(joined(of_x), shape)),
            needed[1].then(|| tensor(of_weight, dims(&weight))),
        ]
    }
}

impl Convolution {
    /// Filters, values of a patch, and patches of a sample.
    fn sizes(&self, weight: &FlexTensor) -> [usize; 3] {
        let [filters, channels, rows, columns] = dims(weight);
        let [height, width] = self.patches.output();
        [filters, channels * rows * columns, height * width]
    }

    /// The patches of a sample, `[values of a patch, patches]`: in `scratch`, unless they are the map.
    fn patches_of<'a>(
        &self,
        sample: usize,
        x: &'a FlexTensor,
        scratch: &'a mut Vec<f32>,
    ) -> &'a [f32] {
        let [_, channels, height, width] = dims(x);
        let size = height * width;
        let map = &values(x)[sample * channels * size..][..channels * size];
        if self.patches.are_the_map() && !self.rectified {
            return map;
        }
        let length = self.patches.size();
        // Places outside the map stay zero from the first sample on.
        scratch.resize(channels * length, 0.0);
        let planes = map.chunks_exact(size).zip(scratch.chunks_exact_mut(length));
        vectorised!(|| if self.rectified {
            planes.for_each(|(plane, patches)| self.patches.read(plane, patches, positive));
        } else {
            planes.for_each(|(plane, patches)| self.patches.read(plane, patches, |x| x));
        });
        scratch
    }

    /// The gradients of a range of samples, and their share of the weight's.
    fn backward_of(
        &self,
        samples: Range<usize>,
        x: &FlexTensor,
        weight: &FlexTensor,
        gradient: &FlexTensor,
        [needs_x, needs_weight]: [bool; 2],
    ) -> (Vec<f32>, Vec<f32>) {
        let sizes @ [filters, patch, places] = self.sizes(weight);
        let weight = values(weight);
        let [_, channels, height, width] = dims(x);
        let size = channels * height * width;
        let mut of_x = Vec::with_capacity(if needs_x { samples.len() * size } else { 0 });
        let mut of_weight = vec![0.0; if needs_weight { filters * patch } else { 0 }];
        let mut of_patches = vec![0.0; if needs_x { patch * places } else { 0 }];
        let mut scratch = Vec::new();
        for sample in samples {
            let slope = &values(gradient)[sample * filters * places..][..filters * places];
            if needs_weight {
                let patches = self.patches_of(sample, x, &mut scratch);
                let target = matrix_mut(&mut of_weight, filters, patch);
                let patches = matrix(patches, patch, places).transpose();
                multiply_and_add(target, matrix(slope, filters, places), patches);
            }
            if needs_x {
                let map = &values(x)[sample * size..][..size];
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
        let direct = self.patches.are_the_map();
        let target: &mut [f32] = if direct { of_map } else { of_patches };
        let weight = matrix(weight, filters, patch).transpose();
        let slope = matrix(slope, filters, places);
        multiply(matrix_mut(target, patch, places), weight, slope, 1.0);
        vectorised!(|| {
            if !direct {
                let planes = of_map.chunks_exact_mut(self.patches.map_size());
                let parts = of_patches.chunks_exact(self.patches.size());
                let pairs = planes.zip(parts);
                pairs.for_each(|(plane, part)| self.patches.add(part, plane));
            }
            if self.rectified {
                let pairs = of_map.iter_mut().zip(map);
                pairs.for_each(|(slope, &x)| *slope = if x <= 0.0 { 0.0 } else { *slope });
            }
        });
    }
}

/// ReLU, except that NaN stays NaN.
#[inline(always)]
fn positive(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}
