//! Convolutions, each in the form that runs fastest.

use burn::{
    module::Module,
    nn::{
        BatchNorm, BatchNormConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
    },
    tensor::{Device, Tensor, activation::relu, s},
};

/// ReLU, convolution without bias, batch normalization: `[n, in, h, w]` to `[n, out, h', w']`.
#[derive(Module, Debug)]
pub(crate) struct ReluConvNorm {
    pub conv: Conv2d,
    pub bn: BatchNorm,
}

impl ReluConvNorm {
    /// With an odd `kernel`, padded so that a stride of 2 yields the upper half of the map.
    pub fn new(
        channels: [usize; 2],
        kernel: [usize; 2],
        stride: [usize; 2],
        device: &Device,
    ) -> Self {
        Self {
            conv: convolution(channels, kernel, stride, device),
            bn: BatchNormConfig::new(channels[1]).init(device),
        }
    }

    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.conv_norm(relu(x))
    }

    /// The same for an input that has been rectified.
    pub fn conv_norm(&self, x: Tensor<4>) -> Tensor<4> {
        self.bn.forward(convolve(&self.conv, x))
    }
}

/// A convolution without bias, padded by half its kernel.
pub(crate) fn convolution(
    channels: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    device: &Device,
) -> Conv2d {
    let [height, width] = kernel.map(|size| size / 2);
    Conv2dConfig::new(channels, kernel)
        .with_stride(stride)
        .with_padding(PaddingConfig2d::Explicit(height, width, height, width))
        .with_bias(false)
        .init(device)
}

/// Runs a convolution without bias: as a matrix product if it is 1×1, else as it is.
///
/// Burn's backward pass of a convolution is a transposed convolution and one with swapped
/// dimensions: on a CPU, a matrix product is two to five times as fast for both passes.
pub(crate) fn convolve(conv: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    match conv.kernel_size {
        [1, 1] => pointwise(conv.weight.val(), conv.stride, x),
        _ => conv.forward(x),
    }
}

/// The 1×1 convolution of `x` `[n, in, h, w]` by `weight` `[out, in, 1, 1]`.
fn pointwise(weight: Tensor<4>, stride: [usize; 2], x: Tensor<4>) -> Tensor<4> {
    let x = match stride {
        [1, 1] => x,
        [rows, columns] => x.slice(s![.., .., ..;rows, ..;columns]),
    };
    let [samples, channels, height, width] = x.dims();
    let [filters, ..] = weight.dims();
    weight
        .reshape([1, filters, channels])
        .expand([samples, filters, channels])
        .matmul(x.reshape([samples, channels, height * width]))
        .reshape([samples, filters, height, width])
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Distribution, Tolerance};

    use super::*;

    /// The output of `forward` and the gradients of x and of the weight, for a random loss.
    fn run(
        conv: &Conv2d,
        x: &Tensor<4>,
        forward: impl Fn(&Conv2d, Tensor<4>) -> Tensor<4>,
    ) -> [Tensor<4>; 3] {
        let x = x.clone().require_grad();
        let y = forward(conv, x.clone());
        let slope = Tensor::arange(0..y.shape().num_elements() as i64, &x.device())
            .float()
            .sin();
        let grads = (y.clone() * slope.reshape(y.dims())).sum().backward();
        let dx = x.grad(&grads).unwrap();
        [y.inner(), dx, conv.weight.val().grad(&grads).unwrap()]
    }

    #[test]
    fn the_matrix_product_is_the_convolution() {
        let device = Device::flex().autodiff();
        for (stride, size) in [(1, [6, 5]), (2, [6, 8]), (2, [7, 5]), (2, [1, 1])] {
            let conv = convolution([3, 4], [1, 1], [stride; 2], &device);
            let x = Tensor::random([2, 3, size[0], size[1]], Distribution::Default, &device);
            let ours = run(&conv, &x, convolve);
            let burns = run(&conv, &x, Conv2d::forward);
            for (ours, burns) in ours.into_iter().zip(burns) {
                ours.into_data()
                    .assert_approx_eq::<f32>(&burns.into_data(), Tolerance::rel_abs(1e-5, 1e-5));
            }
        }
    }
}
