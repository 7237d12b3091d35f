//! Gradients beside a convolution of one channel are wrong on wgpu.
//!
//! A map goes through a ReLU, a convolution of 3 × 3 without bias, and a function. The gradients of the map and of the
//! weights are compared with those on the CPU (Burn 0.22.1, with fusion):
//!
//! ```sh
//! cargo run --release -p one-channel --features wgpu
//! ```
//!
//! From two channels to two, they are the same on both devices.

use std::error::Error;

use burn::tensor::{
    Device, Tensor, TensorData, activation::relu, module::conv2d, ops::ConvOptions,
};

const SIDE: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    if !cfg!(feature = "wgpu") {
        return Err("no GPU to compare with: run it with --features wgpu".into());
    }
    println!("channels  largest difference from the CPU, by the largest gradient");
    println!(" in  out     of the map  of the weights");
    for channels in [[1, 1], [1, 2], [2, 1], [2, 2]] {
        let [cpu, gpu] = [Device::flex(), Device::default()].map(|on| gradients(channels, &on));
        let [map, weights] = [0, 1].map(|of| difference(&gpu[of], &cpu[of]));
        let [from, to] = channels;
        println!("{from:3}  {to:3}  {map:13.1e}  {weights:14.1e}");
    }
    Ok(())
}

/// Those of the map and of the weights.
fn gradients([from, to]: [usize; 2], device: &Device) -> [Vec<f32>; 2] {
    let device = device.clone().autodiff();
    let map = numbers([2, from, SIDE, SIDE], &device).require_grad();
    let weights = numbers([to, from, 3, 3], &device).require_grad();
    let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
    let out = conv2d(relu(map.clone()), weights.clone(), None, options).tanh();
    let slope = numbers(out.dims(), &device.clone().inner())
        .powi_scalar(2)
        .autodiff();
    let gradients = (out * slope).sum().backward();
    [map, weights].map(|tensor| {
        let gradient = tensor.grad(&gradients).map(Tensor::into_data);
        gradient.map_or_else(Vec::new, |gradient| gradient.iter::<f32>().collect())
    })
}

/// Numbers from -1 to 1, the same on every device.
fn numbers(shape: [usize; 4], device: &Device) -> Tensor<4> {
    let count: usize = shape.iter().product();
    let numbers: Vec<_> = (0..count).map(|index| (1.7 * index as f32).sin()).collect();
    Tensor::from_data(TensorData::new(numbers, shape), device)
}

fn difference(found: &[f32], expected: &[f32]) -> f32 {
    let largest = expected.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let pairs = found.iter().zip(expected);
    pairs.fold(0.0, |most: f32, (a, b)| most.max((a - b).abs())) / largest
}
