//! Separable convolutions: first each channel, then all channels of each pixel.

use burn::{
    module::Module,
    nn::{
        BatchNorm, BatchNormConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
    },
    tensor::{Device, Tensor, activation::relu},
};
use stovepipe_kernels::{batch_norm, convolve};

use crate::convolution::convolution;

/// Two separable convolutions in sequence; the first one has the stride.
pub(crate) fn separable_twice(
    channels: usize,
    kernel: DepthwiseKernel,
    stride: usize,
    device: &Device,
) -> [SeparableConvNorm; 2] {
    [stride, 1].map(|stride| SeparableConvNorm::new(channels, kernel, stride, device))
}

/// The pixels of a channel that a separable convolution reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DepthwiseKernel {
    /// Rows and columns: an odd number.
    pub size: usize,
    /// How far apart they are: 1 for neighbours.
    pub dilation: usize,
}

/// ReLU, a depthwise k×k convolution, a 1×1 convolution, batch norm:
/// `[n, c, h, w]` to `[n, c, ⌈h/s⌉, ⌈w/s⌉]` with stride s.
#[derive(Module, Debug)]
pub(crate) struct SeparableConvNorm {
    depthwise: Conv2d,
    pointwise: Conv2d,
    bn: BatchNorm,
}

impl SeparableConvNorm {
    fn new(channels: usize, kernel: DepthwiseKernel, stride: usize, device: &Device) -> Self {
        Self {
            depthwise: depthwise(channels, kernel, stride, device),
            pointwise: convolution([channels; 2], [1, 1], [1, 1], device),
            bn: BatchNormConfig::new(channels).init(device),
        }
    }

    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        batch_norm(&self.bn, self.convolve(relu(x)))
    }

    fn convolve(&self, x: Tensor<4>) -> Tensor<4> {
        convolve(&self.pointwise, convolve(&self.depthwise, x))
    }
}

/// A depthwise convolution, padded so that a stride of 2 rounds up when it halves the map.
fn depthwise(channels: usize, kernel: DepthwiseKernel, stride: usize, device: &Device) -> Conv2d {
    let DepthwiseKernel { size, dilation } = kernel;
    let reach = dilation * (size / 2);
    Conv2dConfig::new([channels; 2], [size; 2])
        .with_stride([stride; 2])
        .with_dilation([dilation; 2])
        .with_groups(channels)
        .with_padding(PaddingConfig2d::Explicit(reach, reach, reach, reach))
        .with_bias(false)
        .init(device)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Tolerance;

    use super::*;

    const KERNELS: [DepthwiseKernel; 2] = [kernel(3, 1), kernel(5, 2)];
    const SIZES: [[usize; 2]; 4] = [[6, 8], [9, 7], [3, 2], [1, 1]];
    const CHANNELS: usize = 3;

    const fn kernel(size: usize, dilation: usize) -> DepthwiseKernel {
        DepthwiseKernel { size, dilation }
    }

    /// The terms of the depthwise convolution of a map: the indices of the output, the weight and the
    /// input within one channel.
    fn terms(
        [height, width]: [usize; 2],
        kernel: DepthwiseKernel,
        stride: usize,
    ) -> impl Iterator<Item = [usize; 3]> {
        let DepthwiseKernel { size, dilation } = kernel;
        // The middle tap reads at stride times the output's place.
        let read = move |output: usize, tap: usize, limit: usize| {
            let middle = (size - 1) / 2;
            let place = (output * stride + tap * dilation).checked_sub(middle * dilation);
            place.filter(|&place| place < limit)
        };
        let square = |n: usize, m: usize| (0..n).flat_map(move |i| (0..m).map(move |j| (i, j)));
        let columns = width.div_ceil(stride);
        square(height.div_ceil(stride), columns).flat_map(move |(row, column)| {
            square(size, size).filter_map(move |(i, j)| {
                let (y, x) = (read(row, i, height)?, read(column, j, width)?);
                Some([row * columns + column, i * size + j, y * width + x])
            })
        })
    }

    /// Computed by loops, for one sample: the output, and the gradients of x and of both weights, given
    /// the gradient `slope` of the output.
    struct Loops {
        y: Vec<f32>,
        dx: Vec<f32>,
        d_depthwise: Vec<f32>,
        d_pointwise: Vec<f32>,
    }

    fn loops(
        unit: &SeparableConvNorm,
        x: &[f32],
        slope: impl Fn(usize) -> f32,
        (size, kernel, stride): ([usize; 2], DepthwiseKernel, usize),
    ) -> Loops {
        let (depthwise, pointwise) = (floats(&unit.depthwise), floats(&unit.pointwise));
        let input = size[0] * size[1];
        let output = size[0].div_ceil(stride) * size[1].div_ceil(stride);
        let taps = kernel.size * kernel.size;
        let mut between = vec![0.0; CHANNELS * output];
        for c in 0..CHANNELS {
            for [o, tap, i] in terms(size, kernel, stride) {
                between[c * output + o] += depthwise[c * taps + tap] * x[c * input + i];
            }
        }
        let mut result = Loops {
            y: vec![0.0; CHANNELS * output],
            dx: vec![0.0; CHANNELS * input],
            d_depthwise: vec![0.0; CHANNELS * taps],
            d_pointwise: vec![0.0; CHANNELS * CHANNELS],
        };
        let mut d_between = vec![0.0; CHANNELS * output];
        for (to, from) in (0..CHANNELS).flat_map(|to| (0..CHANNELS).map(move |from| (to, from))) {
            let weight = pointwise[to * CHANNELS + from];
            for o in 0..output {
                let (y, m) = (to * output + o, from * output + o);
                result.y[y] += weight * between[m];
                d_between[m] += weight * slope(y);
                result.d_pointwise[to * CHANNELS + from] += slope(y) * between[m];
            }
        }
        for c in 0..CHANNELS {
            for [o, tap, i] in terms(size, kernel, stride) {
                let slope = d_between[c * output + o];
                result.dx[c * input + i] += slope * depthwise[c * taps + tap];
                result.d_depthwise[c * taps + tap] += slope * x[c * input + i];
            }
        }
        result
    }

    fn floats(conv: &Conv2d) -> Vec<f32> {
        let data = conv.weight.val().into_data();
        data.try_into_vec_as::<f32>().unwrap()
    }

    fn wave(size: [usize; 2]) -> Vec<f32> {
        let count = CHANNELS * size[0] * size[1];
        (0..count).map(|i| (1.7 * i as f32).sin()).collect()
    }

    fn image(values: &[f32], [height, width]: [usize; 2], device: &Device) -> Tensor<4> {
        Tensor::<1>::from_floats(values, device).reshape([1, CHANNELS, height, width])
    }

    fn assert_close<const D: usize>(ours: Tensor<D>, other: &[f32]) {
        let other = Tensor::<1>::from_floats(other, &ours.device()).reshape(ours.dims());
        ours.into_data()
            .assert_approx_eq::<f32>(&other.into_data(), Tolerance::rel_abs(1e-4, 1e-5));
    }

    #[test]
    fn output_and_gradients_equal_those_of_loops() {
        let device = Device::flex().autodiff();
        let cases = (KERNELS.into_iter()).flat_map(|kernel| SIZES.map(|size| (kernel, size)));
        for (kernel, size, stride) in cases.flat_map(|(k, size)| [1, 2].map(|s| (k, size, s))) {
            let unit = SeparableConvNorm::new(CHANNELS, kernel, stride, &device);
            let slope = |i: usize| (0.3 * i as f32).cos();
            let expected = loops(&unit, &wave(size), slope, (size, kernel, stride));

            let x = image(&wave(size), size, &device).require_grad();
            let y = unit.convolve(x.clone());
            assert_eq!(y.dims()[2..], size.map(|n| n.div_ceil(stride)));
            let slopes: Vec<f32> = (0..expected.y.len()).map(slope).collect();
            let slopes = Tensor::<1>::from_floats(&slopes[..], &device).reshape(y.dims());
            let grads = (y.clone() * slopes).sum().backward();
            assert_close(y.inner(), &expected.y);
            assert_close(x.grad(&grads).unwrap(), &expected.dx);
            let gradient = |conv: &Conv2d| conv.weight.val().grad(&grads).unwrap();
            assert_close(gradient(&unit.depthwise), &expected.d_depthwise);
            assert_close(gradient(&unit.pointwise), &expected.d_pointwise);
        }
    }

    #[test]
    fn the_first_of_two_has_the_stride() {
        let device = Device::flex();
        let size = [7, 6];
        for kernel in KERNELS {
            let units = separable_twice(CHANNELS, kernel, 2, &device);
            let x = image(&wave(size), size, &device);
            let ours = units.iter().fold(x, |x, unit| unit.forward(x));

            // In evaluation, an untrained batch norm divides by √(1 + ε).
            let mut expected = wave(size);
            for (unit, size, stride) in [(&units[0], size, 2), (&units[1], [4, 3], 1)] {
                expected.iter_mut().for_each(|x| *x = x.max(0.0));
                expected = loops(unit, &expected, |_| 0.0, (size, kernel, stride)).y;
                let deviation = (1.0 + unit.bn.epsilon as f32).sqrt();
                expected.iter_mut().for_each(|x| *x /= deviation);
            }
            assert_eq!(ours.dims(), [1, CHANNELS, 4, 3]);
            assert_close(ours, &expected);
        }
    }
}
