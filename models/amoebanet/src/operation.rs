//! The operations of a cell.

use burn::{
    module::Module,
    nn::{BatchNorm, BatchNormConfig, conv::Conv2d},
    tensor::{Device, Tensor},
};
use stovepipe_kernels::{
    PoolWindow, average_pool, batch_norm, max_pool, relu_convolve, relu_convolve_odd,
};

use crate::{
    convolution::{ReluConvNorm, convolution},
    genotype::Choice,
    separable::{DepthwiseKernel, SeparableConvNorm, separable_twice},
};

/// An operation on a state `[n, c, h, w]`; with stride 2 it yields `[n, c', ⌈h/2⌉, ⌈w/2⌉]`.
#[derive(Module, Debug)]
pub(crate) enum Operation {
    /// Convolutions in sequence: the identity if there is none.
    Chain(Vec<ReluConvNorm>),
    /// Two separable convolutions in sequence.
    Separable([SeparableConvNorm; 2]),
    /// An identity that halves the map.
    Reduce(FactorizedReduce),
    /// The maximum of each window.
    MaxPool(Pooling),
    /// The mean of each window, without padding.
    AveragePool(Pooling),
}

impl Operation {
    /// An operation that keeps the number of channels.
    pub fn new(choice: Choice, channels: usize, stride: usize, device: &Device) -> Self {
        let bottleneck = |steps| Self::bottleneck(channels, steps, device);
        let separable = |size, dilation| {
            let kernel = DepthwiseKernel { size, dilation };
            Self::Separable(separable_twice(channels, kernel, stride, device))
        };
        match choice {
            Choice::Identity if stride > 1 => Self::reduce([channels; 2], device),
            Choice::Identity => Self::Chain(Vec::new()),
            Choice::Conv1x1 => Self::conv_1x1([channels; 2], stride, device),
            Choice::Conv3x3 => bottleneck(&[([3, 3], [stride; 2])]),
            Choice::Conv1x7And7x1 => bottleneck(&[([1, 7], [1, stride]), ([7, 1], [stride, 1])]),
            Choice::Separable3x3 => separable(3, 1),
            Choice::DilatedSeparable5x5 => separable(5, 2),
            Choice::MaxPool2x2 => Self::MaxPool(Pooling::new(2, stride)),
            Choice::MaxPool3x3 => Self::MaxPool(Pooling::new(3, stride)),
            Choice::AveragePool3x3 => Self::AveragePool(Pooling::new(3, stride)),
        }
    }

    /// ReLU, 1×1 convolution, batch norm.
    pub fn conv_1x1(channels: [usize; 2], stride: usize, device: &Device) -> Self {
        let unit = ReluConvNorm::new(channels, [1, 1], [stride; 2], device);
        Self::Chain(vec![unit])
    }

    /// Halves the map and changes the number of channels.
    pub fn reduce(channels: [usize; 2], device: &Device) -> Self {
        Self::Reduce(FactorizedReduce::new(channels, device))
    }

    /// Convolutions by kernels and strides, on a quarter of the channels.
    fn bottleneck(channels: usize, steps: &[([usize; 2], [usize; 2])], device: &Device) -> Self {
        let inner = (channels / 4).max(1);
        let unit = |channels, kernel, stride| ReluConvNorm::new(channels, kernel, stride, device);
        let mut chain = vec![unit([channels, inner], [1, 1], [1, 1])];
        let steps = steps.iter();
        chain.extend(steps.map(|&(kernel, stride)| unit([inner, inner], kernel, stride)));
        chain.push(unit([inner, channels], [1, 1], [1, 1]));
        Self::Chain(chain)
    }

    /// Whether it is a factorized reduction, which halves the map.
    pub fn halves(&self) -> bool {
        matches!(self, Self::Reduce(_))
    }

    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        match self {
            Self::Chain(chain) => chain.iter().fold(x, |x, unit| unit.forward(x)),
            Self::Separable(units) => units.iter().fold(x, |x, unit| unit.forward(x)),
            Self::Reduce(reduce) => reduce.forward(x),
            Self::MaxPool(pool) => max_pool(x, pool.window),
            Self::AveragePool(pool) => average_pool(x, pool.window),
        }
    }
}

#[derive(Module, Debug)]
pub(crate) struct Pooling {
    #[module(skip)]
    window: PoolWindow,
}

impl Pooling {
    fn new(size: usize, stride: usize) -> Self {
        let window = PoolWindow { size, stride };
        Self { window }
    }
}

/// ReLU, two 1×1 convolutions of stride 2, batch norm: `[n, in, h, w]` to `[n, out, ⌈h/2⌉, ⌈w/2⌉]`. One
/// convolution reads the even pixels, the other the odd ones; each makes half of the channels.
#[derive(Module, Debug)]
pub(crate) struct FactorizedReduce {
    conv1: Conv2d,
    conv2: Conv2d,
    bn: BatchNorm,
}

impl FactorizedReduce {
    fn new([input, output]: [usize; 2], device: &Device) -> Self {
        let half = |filters| convolution([input, filters], [1, 1], [2, 2], device);
        Self {
            conv1: half(output / 2),
            conv2: half(output - output / 2),
            bn: BatchNormConfig::new(output).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        batch_norm(&self.bn, self.halve(x))
    }

    fn halve(&self, x: Tensor<4>) -> Tensor<4> {
        let even = relu_convolve(&self.conv1, x.clone());
        let odd = relu_convolve_odd(&self.conv2, x);
        Tensor::cat(vec![even, odd], 1)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Distribution, Tolerance, activation::relu, s};

    use super::*;

    const SIZES: [[usize; 2]; 5] = [[6, 8], [7, 7], [7, 4], [2, 5], [1, 1]];
    const CHOICES: [Choice; 9] = [
        Choice::Identity,
        Choice::Conv1x1,
        Choice::Conv3x3,
        Choice::Conv1x7And7x1,
        Choice::Separable3x3,
        Choice::DilatedSeparable5x5,
        Choice::MaxPool2x2,
        Choice::MaxPool3x3,
        Choice::AveragePool3x3,
    ];

    fn image(channels: usize, [height, width]: [usize; 2], device: &Device) -> Tensor<4> {
        let shape = [2, channels, height, width];
        Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
    }

    fn assert_close(ours: Tensor<4>, other: Tensor<4>) {
        ours.into_data()
            .assert_approx_eq::<f32>(&other.into_data(), Tolerance::rel_abs(1e-5, 1e-5));
    }

    /// Folds the pixels of each window inside the image. The window of an output pixel starts at
    /// `stride` times its place less `before`.
    fn pool(
        x: &Tensor<4>,
        size: usize,
        stride: usize,
        before: usize,
        fold: fn(&[f32]) -> f32,
    ) -> Tensor<4> {
        let [samples, channels, height, width] = x.dims();
        let pixels = x.to_data().try_into_vec_as::<f32>().unwrap();
        let (rows, columns) = (height.div_ceil(stride), width.div_ceil(stride));
        let mut result = Vec::new();
        for plane in pixels.chunks(height * width) {
            for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |c| (row, c))) {
                let inside = |start: usize, limit: usize| {
                    let places = (start..start + size).filter_map(move |i| i.checked_sub(before));
                    places.filter(move |&i| i < limit)
                };
                let window: Vec<f32> = inside(row * stride, height)
                    .flat_map(|i| inside(column * stride, width).map(move |j| (i, j)))
                    .map(|(i, j)| plane[i * width + j])
                    .collect();
                result.push(fold(&window));
            }
        }
        let result = Tensor::<1>::from_floats(&result[..], &x.device());
        result.reshape([samples, channels, rows, columns])
    }

    fn largest(window: &[f32]) -> f32 {
        window.iter().copied().fold(f32::NEG_INFINITY, f32::max)
    }

    fn mean(window: &[f32]) -> f32 {
        window.iter().sum::<f32>() / window.len() as f32
    }

    #[test]
    fn every_operation_halves_the_map_and_rounds_up() {
        let device = Device::flex();
        let cases = (CHOICES.into_iter()).flat_map(|choice| SIZES.map(|size| (choice, size)));
        for (choice, size) in cases {
            for stride in [1, 2] {
                let y = Operation::new(choice, 4, stride, &device).forward(image(4, size, &device));
                let [height, width] = size.map(|n| n.div_ceil(stride));
                let what = format!("{choice:?} of {size:?} by {stride}");
                assert_eq!(y.dims(), [2, 4, height, width], "{what}");
            }
        }
    }

    #[test]
    fn pools_ignore_the_padding() {
        let device = Device::flex();
        for size in SIZES {
            let x = image(3, size, &device);
            for stride in [1, 2] {
                let ours = |choice| Operation::new(choice, 3, stride, &device).forward(x.clone());
                assert_close(ours(Choice::MaxPool2x2), pool(&x, 2, stride, 0, largest));
                assert_close(ours(Choice::MaxPool3x3), pool(&x, 3, stride, 1, largest));
                assert_close(ours(Choice::AveragePool3x3), pool(&x, 3, stride, 1, mean));
            }
        }
    }

    /// As PyTorch's models do: remove the first row and column, add zeros at the end, and convolve with
    /// stride 2.
    fn halved_by_convolution(reduce: &FactorizedReduce, x: Tensor<4>) -> Tensor<4> {
        let x = relu(x);
        let [samples, channels, height, width] = x.dims();
        let mut shifted = Tensor::zeros(x.dims(), &x.device());
        if height > 1 && width > 1 {
            let rest = x.clone().slice(s![.., .., 1.., 1..]);
            shifted =
                shifted.slice_assign([0..samples, 0..channels, 0..height - 1, 0..width - 1], rest);
        }
        let even = reduce.conv1.forward(x);
        let odd = reduce.conv2.forward(shifted);
        Tensor::cat(vec![even, odd], 1)
    }

    #[test]
    fn a_factorized_reduction_is_two_convolutions() {
        let device = Device::flex().autodiff();
        for size in SIZES {
            let reduce = FactorizedReduce::new([3, 5], &device);
            let run = |forward: fn(&FactorizedReduce, Tensor<4>) -> Tensor<4>| {
                let x = Tensor::arange(0..(6 * size[0] * size[1]) as i64, &device).float();
                let x = x.cos().reshape([2, 3, size[0], size[1]]).require_grad();
                let y = forward(&reduce, x.clone());
                let grads = y.clone().powi_scalar(2).sum().backward();
                let [first, second] = [&reduce.conv1, &reduce.conv2]
                    .map(|conv| conv.weight.val().grad(&grads).unwrap());
                [y.inner(), x.grad(&grads).unwrap(), first, second]
            };
            let (ours, other) = (run(FactorizedReduce::halve), run(halved_by_convolution));
            for (ours, other) in ours.into_iter().zip(other) {
                assert_close(ours, other);
            }
        }
    }

    #[test]
    fn a_bottleneck_narrows_to_a_quarter() {
        let device = Device::flex();
        let kernels = |choice| match Operation::new(choice, 8, 2, &device) {
            Operation::Chain(chain) => chain.iter().map(|unit| unit.conv.weight.dims()).collect(),
            _ => Vec::<[usize; 4]>::new(),
        };
        let square = [[2, 8, 1, 1], [2, 2, 3, 3], [8, 2, 1, 1]];
        assert_eq!(kernels(Choice::Conv3x3), square);
        let lines = [[2, 8, 1, 1], [2, 2, 1, 7], [2, 2, 7, 1], [8, 2, 1, 1]];
        assert_eq!(kernels(Choice::Conv1x7And7x1), lines);
    }
}
