//! The kernels for images against Burn's operations: outputs, gradients, statistics.

use crate::common;

use burn::{
    module::{Module, Param},
    nn::{
        BatchNorm, BatchNormConfig, InstanceNormConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
        pool::{AvgPool2dConfig, MaxPool2d, MaxPool2dConfig},
    },
    tensor::{DType, Device, Tensor, Tolerance, activation::relu, s},
};
use stovepipe_kernels::{
    PoolWindow, average_pool, batch_norm, convolve, instance_norm, max_pool, relu_convolve,
    relu_convolve_odd,
};

const SIZES: [[usize; 2]; 7] = [[1, 1], [2, 3], [4, 4], [5, 7], [8, 8], [9, 17], [33, 40]];

fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    common::normal(shape, 0.5, 2.0)
}

fn close<const D: usize>(ours: Tensor<D>, burns: Tensor<D>, what: &str) {
    assert_eq!(ours.dims(), burns.dims(), "{what}");
    let norm = |x: Tensor<D>| x.powi_scalar(2).sum().sqrt().into_scalar::<f32>();
    let (difference, norm) = (norm(ours - burns.clone()), norm(burns));
    let limit = 1e-5 * norm.max(1e-3);
    assert!(difference <= limit, "{what}: {difference} of {norm}");
}

/// The output of `run`, and the gradients of `x` and `weights`.
fn outcome<const D: usize>(
    x: &Tensor<4>,
    weights: &[&Param<Tensor<D>>],
    run: impl Fn(Tensor<4>) -> Tensor<4>,
) -> (Tensor<4>, Tensor<4>, Vec<Tensor<D>>) {
    let x = x.clone().autodiff().require_grad();
    let y = run(x.clone());
    let gradients = common::loss(y.clone()).backward();
    let of_weights = (weights.iter()).map(|weight| weight.val().grad(&gradients).unwrap());
    (y.inner(), x.grad(&gradients).unwrap(), of_weights.collect())
}

/// Compares outputs and gradients.
fn same<const D: usize>(
    (y, dx, dw): (Tensor<4>, Tensor<4>, Vec<Tensor<D>>),
    (expected_y, expected_dx, expected_dw): (Tensor<4>, Tensor<4>, Vec<Tensor<D>>),
    what: &str,
) {
    close(y, expected_y, &format!("{what}: output"));
    close(dx, expected_dx, &format!("{what}: gradient of x"));
    assert_eq!(dw.len(), expected_dw.len(), "{what}");
    for (ours, burns) in dw.into_iter().zip(expected_dw) {
        close(ours, burns, &format!("{what}: gradient of a weight"));
    }
}

/// Compares with a tape, on the autodiff device without, and without autodiff.
fn compare(
    x: &Tensor<4>,
    ours: impl Fn(Tensor<4>) -> Tensor<4>,
    burns: impl Fn(Tensor<4>) -> Tensor<4>,
    what: &str,
) {
    let expected = outcome::<1>(x, &[], &burns);
    let y = expected.0.clone();
    same(outcome(x, &[], &ours), expected, what);
    let no_tape = ours(x.clone().autodiff()).inner();
    close(no_tape, y.clone(), &format!("{what}: no tape"));
    close(ours(x.clone()), y, &format!("{what}: no autodiff"));
}

#[test]
fn pools_equal_burns() {
    for (size, stride) in [(2, 1), (2, 2), (3, 1), (3, 2), (3, 3), (5, 2), (1, 2)] {
        for map in SIZES {
            let window = PoolWindow { size, stride };
            let what = format!("{size} by {stride} of {map:?}");
            // More maps than a run has, and not a multiple of it.
            let x = random([3, 30, map[0], map[1]]);
            let half = size / 2;
            let padding = match size % 2 {
                0 => PaddingConfig2d::Same,
                _ => PaddingConfig2d::Explicit(half, half, half, half),
            };
            let config = MaxPool2dConfig::new([size; 2]).with_strides([stride; 2]);
            let largest = config.with_padding(padding.clone()).init();
            let ours = |x| max_pool(x, window);
            compare(&x, ours, |x| largest.forward(x), &format!("max {what}"));
            if size % 2 == 1 {
                let config = AvgPool2dConfig::new([size; 2]).with_strides([stride; 2]);
                let config = config.with_padding(padding);
                let mean = config.with_count_include_pad(false).init();
                let ours = |x| average_pool(x, window);
                compare(&x, ours, |x| mean.forward(x), &format!("average {what}"));
            }
        }
    }
}

/// A window, and Burn's pool with it.
fn three_by_three() -> (PoolWindow, MaxPool2d) {
    let config = MaxPool2dConfig::new([3, 3]).with_strides([1, 1]);
    let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
    let window = PoolWindow { size: 3, stride: 1 };
    (window, config.with_padding(padding).init())
}

#[test]
fn the_first_of_equals_gets_the_gradient() {
    let x = Tensor::<4>::ones([1, 1, 4, 5], &Device::flex());
    let (window, largest) = three_by_three();
    let ours = |x| max_pool(x, window);
    compare(&x, ours, |x| largest.forward(x), "equals");
}

#[test]
fn a_view_is_pooled_as_its_copy() {
    let x = random([2, 3, 6, 5]);
    let (window, largest) = three_by_three();
    let view = |x: Tensor<4>| max_pool(x.swap_dims(2, 3), window);
    compare(&x, view, |x| largest.forward(x.swap_dims(2, 3)), "view");
}

#[test]
fn nan_is_the_largest() {
    let x = Tensor::<4>::from_floats([[[[f32::NAN, 1.0, 2.0, 3.0]]]], &Device::flex());
    let y = max_pool(x, PoolWindow { size: 3, stride: 1 }).into_data();
    let y = y.try_to_vec::<f32>().unwrap();
    assert!(y[0].is_nan() && y[1].is_nan());
    assert_eq!(y[2..], [3.0, 3.0]);
}

fn conv(
    channels: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
) -> Conv2d {
    let [rows, columns] = padding;
    Conv2dConfig::new(channels, kernel)
        .with_stride(stride)
        .with_padding(PaddingConfig2d::Explicit(rows, columns, rows, columns))
        .with_bias(false)
        .init(&Device::flex())
}

#[test]
fn convolutions_equal_burns() {
    let kernels = [
        ([1, 1], [1, 1], [0, 0]),
        ([1, 1], [2, 2], [0, 0]),
        ([3, 3], [1, 1], [1, 1]),
        ([3, 3], [2, 2], [1, 1]),
        ([3, 3], [1, 1], [0, 0]),
        ([1, 7], [1, 1], [0, 3]),
        ([7, 1], [1, 1], [3, 0]),
        ([1, 7], [1, 2], [0, 3]),
        ([7, 1], [2, 1], [3, 0]),
        ([2, 4], [3, 2], [1, 2]),
    ];
    for (kernel, stride, padding) in kernels {
        for map in SIZES {
            let fits = (0..2).all(|i| map[i] + 2 * padding[i] >= kernel[i]);
            if !fits {
                continue;
            }
            let what = format!("{kernel:?} by {stride:?} of {map:?}");
            let x = random([3, 4, map[0], map[1]]);
            let plain = conv([4, 6], kernel, stride, padding);
            close(convolve(&plain, x.clone()), plain.forward(x.clone()), &what);
            let conv = plain.train();
            type Run<'a> = &'a dyn Fn(Tensor<4>) -> Tensor<4>;
            let compare = |ours: Run<'_>, burns: Run<'_>, name: &str| {
                let run = |forward: Run<'_>| outcome(&x, &[&conv.weight], forward);
                same(run(ours), run(burns), &format!("{name} {what}"));
            };
            compare(&|x| convolve(&conv, x), &|x| conv.forward(x), "plain");
            let burns = |x| conv.forward(relu(x));
            compare(&|x| relu_convolve(&conv, x), &burns, "relu");
            let moved = |x: Tensor<4>| x.pad([(0, 1), (0, 1)], 0.0).slice(s![.., .., 1.., 1..]);
            let burns = |x| conv.forward(moved(relu(x)));
            compare(&|x| relu_convolve_odd(&conv, x), &burns, "odd");
        }
    }
}

/// For GPUs, they get a second channel or filter.
#[test]
fn convolutions_of_one_channel_or_filter_equal_burns() {
    for channels in [[1, 1], [1, 3], [3, 1]] {
        let config = Conv2dConfig::new(channels, [3, 3]).with_dilation([2, 2]);
        let conv = config.init(&Device::flex()).train();
        let x = random([2, channels[0], 9, 9]);
        let ours = outcome(&x, &[&conv.weight], |x| relu_convolve(&conv, x));
        let burns = outcome(&x, &[&conv.weight], |x| conv.forward(relu(x)));
        same(ours, burns, &format!("{channels:?}"));
    }
}

#[test]
fn other_convolutions_equal_burns() {
    let device = Device::flex();
    let x = random([2, 4, 9, 9]);
    let configs = [
        Conv2dConfig::new([4, 4], [3, 3]).with_groups(4),
        Conv2dConfig::new([4, 4], [3, 3]).with_dilation([2, 2]),
        Conv2dConfig::new([4, 4], [3, 3]),
        Conv2dConfig::new([4, 4], [2, 2]).with_padding(PaddingConfig2d::Same),
    ];
    for config in configs {
        let conv = config.init(&device);
        let burns = conv.forward(x.clone());
        close(convolve(&conv, x.clone()), burns, &format!("{config}"));
    }
}

#[test]
fn batch_norm_equals_burns() {
    for map in SIZES.into_iter().skip(1) {
        let x = random([3, 5, map[0], map[1]]);
        let norm = || {
            let mut norm = BatchNormConfig::new(5).init(&Device::flex()).train();
            let device = Device::flex().autodiff();
            let param = |values: [f32; 5]| Param::from_tensor(Tensor::from_floats(values, &device));
            norm.gamma = param([0.5, 1.0, -2.0, 3.0, 0.1]);
            norm.beta = param([0.5, 1.0, 2.0, -3.0, 0.0]);
            norm
        };
        let (own, other) = (norm(), norm());
        let ours = outcome(&x, &[&own.gamma, &own.beta], |x| batch_norm(&own, x));
        let burns = outcome(&x, &[&other.gamma, &other.beta], |x| other.forward(x));
        let (what, expected_y) = (format!("batch norm of {map:?}"), burns.0.clone());
        same(ours, burns, &what);
        let quiet = batch_norm(&own.clone().no_grad(), x.clone().autodiff());
        close(quiet.inner(), expected_y, &format!("{what}: no tape"));
        other.forward(x.clone().autodiff());

        let (own, other) = (own.valid(), other.valid());
        let statistics =
            |norm: &BatchNorm| [&norm.running_mean, &norm.running_var].map(|s| s.value());
        for (ours, burns) in statistics(&own).into_iter().zip(statistics(&other)) {
            close(ours, burns, &format!("{what}: statistics"));
        }
        let evaluated = batch_norm(&own, x.clone());
        close(evaluated, other.forward(x), &format!("{what}: evaluation"));
    }
}

#[test]
fn instance_norm_equals_burns() {
    let config = InstanceNormConfig::new(5).with_affine(false);
    let norm = config.init(&Device::flex());
    for map in SIZES.into_iter().skip(1) {
        let x = random([3, 5, map[0], map[1]]);
        let what = format!("instance norm of {map:?}");
        let ours = |x| instance_norm(x, norm.epsilon);
        compare(&x, ours, |x| norm.forward(x), &what);
        // Each sample by itself.
        let alone = x.clone().slice(s![1..2]);
        let together = instance_norm(x, 1e-5).slice(s![1..2]);
        assert_eq!(instance_norm(alone, 1e-5).to_data(), together.to_data());
    }
    let empty = instance_norm(random([0, 5, 2, 2]), 1e-5);
    assert_eq!(empty.dims(), [0, 5, 2, 2]);
}

#[test]
fn threads_change_nothing_but_rounding() {
    let x = random([4, 6, 40, 50]);
    let conv = conv([6, 5], [3, 3], [1, 1], [1, 1]).train();
    let norm = BatchNormConfig::new(5).init(&Device::flex()).train();
    let run = |x: Tensor<4>| {
        let y = batch_norm(&norm, convolve(&conv, x));
        let y = max_pool(y, PoolWindow { size: 3, stride: 2 });
        average_pool(y, PoolWindow { size: 3, stride: 1 })
    };
    let with = |threads| common::pool(threads).install(|| outcome::<1>(&x, &[], run));
    same(with(3), with(1), "threads");
}

#[test]
fn burns_gradient_checkpointing_uses_burns_operations() {
    let device = Device::flex().autodiff().gradient_checkpointing();
    let x = Tensor::<4>::from_data(random([2, 3, 5, 5]).into_data(), &device).require_grad();
    let y = max_pool(x.clone(), PoolWindow { size: 3, stride: 1 });
    let gradients = y.sum().backward();
    let sum = x.grad(&gradients).unwrap().sum().into_data();
    sum.assert_approx_eq::<f32>(&[2.0 * 3.0 * 25.0].into(), Tolerance::default());
}

/// In f16, squares overflow from 256 on, and means of bf16 are coarse: norms compute in f32, and round
/// the output.
#[test]
fn norms_in_f16_and_bf16_compute_in_f32() {
    let shape = [3, 4, 5, 6];
    let spread = common::normal::<4>(shape, 500.0, 1000.0);
    let device = Device::flex();
    for (dtype, rounding) in [(DType::BF16, 0.5f32.powi(8)), (DType::F16, 0.5f32.powi(11))] {
        let narrow = |x: Tensor<4>| x.autodiff().cast(dtype);
        let exact = |x: Tensor<4>| narrow(x).cast(DType::F32);
        let norm = || BatchNormConfig::new(4).init(&device.clone().autodiff());
        let norms = [norm(), norm()];
        let x = || (narrow(spread.clone()), exact(spread.clone()));
        let [(few, all), (few_too, all_too)] = [x(), x()];
        for (found, expected) in [
            (batch_norm(&norms[0], few), batch_norm(&norms[1], all)),
            (instance_norm(few_too, 1e-5), instance_norm(all_too, 1e-5)),
        ] {
            assert_eq!(found.dtype(), dtype);
            let expected = expected.inner();
            let difference = (found.inner().cast(DType::F32) - expected.clone()).abs();
            // Rounded once.
            let over = difference - expected.abs().mul_scalar(rounding).add_scalar(1e-6);
            assert!(over.max().into_scalar::<f32>() <= 0.0, "{dtype:?}");
        }
        // Running statistics of f32 are not rounded.
        let [found, expected] = norms.map(|norm| norm.valid().running_var.value());
        assert_eq!(found.dtype(), DType::F32);
        assert_eq!(found.to_data(), expected.to_data());
        // Evaluation, too.
        let norm = norm().valid();
        let x = spread.clone().cast(dtype);
        let found = batch_norm(&norm, x.clone());
        let expected = norm.forward(x.cast(DType::F32)).cast(dtype);
        assert_eq!(found.to_data(), expected.to_data());
    }
}

#[test]
fn gradients_come_back_in_the_type_of_the_input() {
    let norm = BatchNormConfig::new(4).init(&Device::flex().autodiff());
    for run in [
        (|norm, x| batch_norm(norm, x)) as fn(&BatchNorm, Tensor<4>) -> Tensor<4>,
        |_, x| instance_norm(x, 1e-5),
    ] {
        let x = random([2, 4, 3, 3]).cast(DType::BF16).autodiff();
        let x = x.require_grad();
        let gradients = run(&norm, x.clone()).powi_scalar(3).sum().backward();
        let gradient = x.grad(&gradients).unwrap();
        assert_eq!(gradient.dtype(), DType::BF16);
        assert!(gradient.abs().max().into_scalar::<f32>() > 0.0);
    }
}
