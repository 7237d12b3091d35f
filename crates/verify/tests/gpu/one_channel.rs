//! Maps with one channel on a GPU. On wgpu, the gradients of Burn's own operations next to a convolution are
//! wrong.

use burn::{
    module::Param,
    nn::{
        BatchNormConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
    },
    tensor::{Device, Tensor},
};
use stovepipe_kernels::{batch_norm, convolve, relu_convolve, relu_convolve_odd};

use crate::{
    beside_cpu::{tolerance, two_devices},
    models::{pattern, relative_difference},
};

/// From one or two channels to one or two.
type Operation = fn(&Conv2d, Tensor<4>) -> Tensor<4>;

const OPERATIONS: [(&str, Operation); 8] = [
    ("a convolution", convolve),
    ("a convolution of a function", |conv, x| {
        convolve(conv, x.tanh())
    }),
    ("a function of a convolution", |conv, x| {
        convolve(conv, x).tanh()
    }),
    ("a ReLU before a convolution", relu_convolve),
    (
        "a ReLU before a convolution, one pixel on",
        relu_convolve_odd,
    ),
    ("a norm of a convolution", |conv, x| {
        normed(convolve(conv, x))
    }),
    ("a norm before a ReLU and a convolution", |conv, x| {
        relu_convolve(conv, normed(x))
    }),
    ("norms on both sides", |conv, x| {
        normed(relu_convolve(conv, normed(x)))
    }),
];

fn normed(x: Tensor<4>) -> Tensor<4> {
    let norm = BatchNormConfig::new(x.dims()[1]).init(&x.device());
    batch_norm(&norm, x)
}

/// A kernel, and a map of so many pixels a side.
#[derive(Clone, Copy, Debug)]
struct Shape {
    kernel: [usize; 2],
    stride: usize,
    side: usize,
}

const fn shape(kernel: [usize; 2], stride: usize, side: usize) -> Shape {
    Shape {
        kernel,
        stride,
        side,
    }
}

const SHAPES: [Shape; 3] = [
    shape([3, 3], 1, 16),
    shape([1, 1], 2, 8),
    shape([1, 7], 1, 4),
];
const CHANNELS: [[usize; 2]; 4] = [[1, 1], [1, 2], [2, 1], [2, 2]];

#[test]
fn gradients_are_those_of_the_cpu_for_any_number_of_channels() {
    let Some([_, gpu]) = two_devices() else {
        return;
    };
    // A weight's gradient is a sum over samples and pixels, and a norm subtracts most of it.
    let limits = [("input", 0.1), ("weight", 1.0)].map(|(of, share)| (of, share * tolerance(&gpu)));
    let mut wrong = Vec::new();
    let cases = OPERATIONS.iter().flat_map(|operation| {
        let shapes = SHAPES.iter().map(move |shape| (operation, shape));
        shapes.flat_map(|(operation, shape)| CHANNELS.map(|channels| (operation, shape, channels)))
    });
    for ((what, operation), shape, channels) in cases {
        let expected = gradients(&Device::flex(), channels, *shape, *operation);
        let found = gradients(&gpu.device, channels, *shape, *operation);
        for ((of, limit), (found, expected)) in limits.iter().zip(found.iter().zip(&expected)) {
            let difference = relative_difference(found, expected);
            if difference.is_nan() || difference > *limit {
                wrong.push(format!(
                    "{what}, {shape:?}, {channels:?}, of the {of}: {difference}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The gradients of the input and the weight of a convolution, if the output's gradient is a pattern.
fn gradients(
    device: &Device,
    [from, to]: [usize; 2],
    Shape {
        kernel,
        stride,
        side,
    }: Shape,
    operation: Operation,
) -> [Vec<f32>; 2] {
    let device = device.clone().autodiff();
    let on_device = |tensor: Tensor<4>| tensor.to_device(&device.clone().inner()).autodiff();
    let [rows, columns] = kernel.map(|length| length / 2);
    let padding = PaddingConfig2d::Explicit(rows, columns, rows, columns);
    let config = Conv2dConfig::new([from, to], kernel).with_stride([stride; 2]);
    let mut conv = config.with_padding(padding).with_bias(false).init(&device);
    conv.weight = Param::from_tensor(on_device(pattern([to, from, kernel[0], kernel[1]])));
    let x = on_device(pattern([4, from, side, side]) - 0.3).require_grad();
    let y = operation(&conv, x.clone());
    let slope = on_device(pattern(y.dims()).powi_scalar(2));
    let gradients = (y * slope).sum().backward();
    [x.grad(&gradients), conv.weight.grad(&gradients)]
        .map(|gradient| gradient.unwrap().into_data().try_to_vec().unwrap())
}
