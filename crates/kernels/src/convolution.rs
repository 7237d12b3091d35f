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
    planes::{are_few, dims, fill_rows, fill_shares, vectorised},
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
        let (each, size) = (filters * places, samples * work(filters * patch * places));
        let mut output = vec![0.0; samples * each];
        for_samples(samples, &mut output, size, &|range, output, size| {
            let mut scratch = Vec::new();
            for (sample, output) in range.zip(output.chunks_exact_mut(each)) {
                let patches = self.patches_of(sample, &x, &mut scratch, size);
                self.product(&weight, patches, output, size);
            }
        });
        let output = tensor(output, [samples, filters, rows, columns]);
        (output, [x, weight])
    }

    fn backward(
        &self,
        [x, weight]: Self::Saved,
        gradient: FlexTensor,
        [needs_x, needs_weight]: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let gradient = contiguous(gradient);
        let shape @ [samples, channels, height, width] = dims(&x);
        let [filters, patch, places] = self.sizes(&weight);
        let map = channels * height * width;
        let slope =
            |sample: usize| &values(&gradient)[sample * filters * places..][..filters * places];
        let mut of_x = vec![0.0; if needs_x { samples * map } else { 0 }];
        let size = samples * work(filters * patch * places);
        let sums = for_samples(samples, &mut of_x, size, &|range, of_x, size| {
            let mut of_weight = vec![0.0; if needs_weight { filters * patch } else { 0 }];
            let (mut scratch, mut of_patches) = (Vec::new(), Vec::new());
            for (index, sample) in range.enumerate() {
                if needs_weight {
                    let patches = self.patches_of(sample, &x, &mut scratch, size);
                    self.add_product(slope(sample), patches, &mut of_weight, size);
                }
                if needs_x {
                    let of_map = &mut of_x[index * map..][..map];
                    let sample = Slope {
                        map: &values(&x)[sample * map..][..map],
                        weight: &weight,
                        slope: slope(sample),
                    };
                    self.gradient_of(sample, of_map, &mut of_patches, size);
                }
            }
            of_weight
        });
        let sum = |mut sum: Vec<f32>, share: Vec<f32>| {
            add(&mut sum, &share);
            sum
        };
        let of_weight = sums.into_iter().reduce(sum).unwrap_or_default();
        [
            needs_x.then(|| tensor(of_x, shape)),
            needs_weight.then(|| tensor(of_weight, dims(&weight))),
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
        size: usize,
    ) -> &'a [f32] {
        let [_, channels, height, width] = dims(x);
        let plane = height * width;
        let map = &values(x)[sample * channels * plane..][..channels * plane];
        if self.patches.are_the_map() && !self.rectified {
            return map;
        }
        let length = self.patches.size();
        // Places outside the map stay zero from the first sample on.
        scratch.resize(channels * length, 0.0);
        fill_shares(scratch, channels, size, &|channels, scratch| {
            let map = &map[channels.start * plane..];
            let planes = map
                .chunks_exact(plane)
                .zip(scratch.chunks_exact_mut(length));
            vectorised!(|| if self.rectified {
                planes.for_each(|(plane, patches)| self.patches.read(plane, patches, positive));
            } else {
                planes.for_each(|(plane, patches)| self.patches.read(plane, patches, |x| x));
            });
        });
        scratch
    }

    /// The output of a sample, filter by filter.
    fn product(&self, weight: &FlexTensor, patches: &[f32], output: &mut [f32], size: usize) {
        let [filters, patch, places] = self.sizes(weight);
        let (weight, patches) = (
            matrix(values(weight), filters, patch),
            matrix(patches, patch, places),
        );
        fill_rows(output, (filters, 1), size, &|own, output| {
            let weight = weight.subrows(own.start, own.len());
            multiply(matrix_mut(output, own.len(), places), weight, patches, 1.0);
        });
    }

    /// Adds a sample's gradient of the weight, filter by filter.
    fn add_product(&self, slope: &[f32], patches: &[f32], of_weight: &mut [f32], size: usize) {
        let [height, width] = self.patches.output();
        let places = height * width;
        let (filters, patch) = (slope.len() / places, patches.len() / places);
        let slope = matrix(slope, filters, places);
        let patches = matrix(patches, patch, places).transpose();
        fill_rows(of_weight, (filters, 1), size, &|own, of_weight| {
            let slope = slope.subrows(own.start, own.len());
            multiply_and_add(matrix_mut(of_weight, own.len(), patch), slope, patches);
        });
    }

    /// The gradient of a sample's map, which must hold zeros, channel by channel.
    fn gradient_of(
        &self,
        sample: Slope<'_>,
        of_map: &mut [f32],
        scratch: &mut Vec<f32>,
        size: usize,
    ) {
        let channels = of_map.len() / self.patches.map_size();
        let taps = self.patches.size() / (sample.slope.len() / dims(sample.weight)[0]);
        if size == 0 {
            return self.gradient_of_channels(&sample, 0..channels, of_map, scratch);
        }
        fill_rows(of_map, (channels, taps), size, &|own, of_map| {
            self.gradient_of_channels(&sample, own, of_map, &mut Vec::new());
        });
    }

    fn gradient_of_channels(
        &self,
        &Slope { map, weight, slope }: &Slope<'_>,
        own: Range<usize>,
        of_map: &mut [f32],
        scratch: &mut Vec<f32>,
    ) {
        let [filters, patch, places] = self.sizes(weight);
        let (taps, plane) = (patch / dims(weight)[1], self.patches.map_size());
        let weight = matrix(values(weight), filters, patch);
        let weight = weight
            .subcols(own.start * taps, own.len() * taps)
            .transpose();
        let slope = matrix(slope, filters, places);
        let rows = own.len() * taps;
        let direct = self.patches.are_the_map();
        if !direct {
            scratch.resize(rows * places, 0.0);
        }
        let target: &mut [f32] = if direct { of_map } else { scratch };
        multiply(matrix_mut(target, rows, places), weight, slope, 1.0);
        vectorised!(|| {
            if !direct {
                let parts = scratch.chunks_exact(self.patches.size());
                let pairs = of_map.chunks_exact_mut(plane).zip(parts);
                pairs.for_each(|(plane, part)| self.patches.add(part, plane));
            }
            if self.rectified {
                let pairs = of_map.iter_mut().zip(&map[own.start * plane..]);
                pairs.for_each(|(slope, &x)| *slope = if x <= 0.0 { 0.0 } else { *slope });
            }
        });
    }
}

/// What the gradient of a sample's map needs: the map, the weight, and the gradient of the output.
struct Slope<'a> {
    map: &'a [f32],
    weight: &'a FlexTensor,
    slope: &'a [f32],
}

/// Work on a range of samples, with their part of the output, and the size of what threads are to share of
/// a sample.
type OfSamples<'a, R> = dyn Fn(Range<usize>, &mut [f32], usize) -> R + Sync + 'a;

/// Runs work of a size: each sample by all threads, or samples among the threads.
fn for_samples<R: Send>(
    samples: usize,
    output: &mut [f32],
    size: usize,
    run: &OfSamples<'_, R>,
) -> Vec<R> {
    match are_few(samples, size) {
        true => vec![run(0..samples, output, size)],
        false => fill_shares(output, samples, size, &|range, own| run(range, own, 0)),
    }
}

/// As how many values a number of multiplications counts: as many as take the time of one value.
const fn work(products: usize) -> usize {
    products / 32
}

/// ReLU, except that NaN stays NaN.
#[inline(always)]
fn positive(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}
