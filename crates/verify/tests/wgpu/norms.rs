//! A batch norm on wgpu.

use burn::{
    nn::BatchNormConfig,
    tensor::{Device, Tensor, module::conv2d, ops::ConvOptions},
};
use stovepipe_kernels::batch_norm;

use crate::{
    beside_cpu::two_devices,
    models::{pattern, relative_difference},
};

/// After a convolution, the gradient of Burn's own is wrong where there is one channel.
#[test]
fn gradients_are_those_of_the_cpu_for_any_number_of_channels() {
    let Some([gpu, _]) = two_devices() else {
        return;
    };
    for channels in [1, 2] {
        let expected = gradient(&Device::flex(), channels);
        let found = gradient(&gpu.device, channels);
        let difference = relative_difference(&found, &expected);
        assert!(difference < 1e-5, "{channels}: {difference}");
    }
}

/// Of the input of a convolution and a norm, where what comes out meets a pattern.
fn gradient(device: &Device, channels: usize) -> Vec<f32> {
    let device = device.clone().autodiff();
    let norm = BatchNormConfig::new(channels).init(&device);
    let on_device = |tensor: Tensor<4>| tensor.to_device(&device.clone().inner()).autodiff();
    let x = on_device(pattern([4, channels, 16, 16])).require_grad();
    let kernel = on_device(pattern([channels, channels, 3, 3]));
    let padded = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
    let y = batch_norm(&norm, conv2d(x.clone(), kernel, None, padded));
    let slope = on_device(pattern([4, channels, 16, 16]).powi_scalar(2));
    let gradients = (y * slope).sum().backward();
    let gradient = x.grad(&gradients).unwrap();
    gradient.into_data().try_to_vec().unwrap()
}
