//! Instance normalization, computed as a batch normalization.

use burn::tensor::Tensor;
use stovepipe_autodiff::at_least_f32;

use crate::batch_norm;

/// Normalizes each map of `x` `[n, c, h, w]` to mean 0 and variance 1, in training and in
/// evaluation: (x − mean) / √(variance + ε) (Ulyanov et al., "Instance Normalization: The Missing
/// Ingredient for Fast Stylization", 2016, without scale and shift).
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_kernels::instance_norm;
///
/// let x = Tensor::<4>::from_floats([[[[1.0, 3.0]], [[50.0, 30.0]]]], &Device::flex());
/// let y = instance_norm(x, 1e-5).into_data().try_to_vec::<f32>().unwrap();
/// assert!(y.iter().zip([-1.0, 1.0, 1.0, -1.0]).all(|(y, expected)| (y - expected).abs() < 1e-4));
/// ```
#[must_use]
pub fn instance_norm(x: Tensor<4>, epsilon: f64) -> Tensor<4> {
    let shape @ [samples, channels, height, width] = x.dims();
    if x.shape().num_elements() == 0 {
        return x;
    }
    // For a batch norm, these are the channels of one sample.
    let dtype = x.dtype();
    let maps = at_least_f32(x).reshape([1, samples * channels, height, width]);
    let output = by_kernel(&maps, epsilon).unwrap_or_else(|| by_burn(maps, epsilon));
    output.reshape(shape).cast(dtype)
}

fn by_kernel(maps: &Tensor<4>, epsilon: f64) -> Option<Tensor<4>> {
    let (channels, device) = ([maps.dims()[1]], maps.device());
    let gamma = Tensor::ones(channels, &device);
    let beta = Tensor::zeros(channels, &device);
    let (output, _) = batch_norm::by_kernel(maps, &gamma, &beta, epsilon)?;
    Some(output)
}

fn by_burn(maps: Tensor<4>, epsilon: f64) -> Tensor<4> {
    let mean = |x: Tensor<4>| x.mean_dim(3).mean_dim(2);
    let centered = maps.clone() - mean(maps);
    let variance = mean(centered.clone().powi_scalar(2));
    centered / variance.add_scalar(epsilon).sqrt()
}
