//! A mean over 3×3 that leaves padding out, as two matrix products.

use std::ops::Range;

use burn::{
    module::Module,
    tensor::{DType, Device, Tensor, TensorData},
};

/// The mean over those pixels of each 3×3 window that lie inside the map: `[n, c, h, w]` to
/// `[n, c, ⌈h/s⌉, ⌈w/s⌉]` with stride s.
///
/// It is a sum along the rows, then one along the columns, each of them a product with a matrix of
/// three diagonals, and a division by the number of pixels. On a CPU this is several times as fast
/// as Burn's average pooling, and it need not keep its input for the backward pass. The division
/// comes last and alone, as in PyTorch, so that rounding is the same but for the order of sums.
#[derive(Module, Debug)]
pub(crate) struct Average3x3 {
    stride: usize,
}

impl Average3x3 {
    pub fn new(stride: usize) -> Self {
        Self { stride }
    }

    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let [_, _, height, width] = x.dims();
        let counts = self.counts(height, width, (&x.device(), x.dtype()));
        self.sum_rows(self.sum_rows(x)) / counts
    }

    /// Adds along the last dimension and swaps it with the one before.
    fn sum_rows(&self, x: Tensor<4>) -> Tensor<4> {
        let [samples, channels, height, width] = x.dims();
        let bands = self.bands(width, (&x.device(), x.dtype()));
        let [_, outputs] = bands.dims();
        x.reshape([samples * channels * height, width])
            .matmul(bands)
            .reshape([samples, channels, height, outputs])
            .swap_dims(2, 3)
    }

    /// The matrix `[size, ⌈size/stride⌉]` whose columns are 1 within a window and 0 elsewhere.
    fn bands(&self, size: usize, options: (&Device, DType)) -> Tensor<2> {
        let outputs = size.div_ceil(self.stride);
        let mut bands = vec![0f32; size * outputs];
        for (output, window) in self.windows(size).enumerate() {
            window.for_each(|input| bands[input * outputs + output] = 1.0);
        }
        Tensor::from_data(TensorData::new(bands, [size, outputs]), options)
    }

    /// The number of pixels in each window: `[1, 1, ⌈h/s⌉, ⌈w/s⌉]`.
    fn counts(&self, height: usize, width: usize, options: (&Device, DType)) -> Tensor<4> {
        let rows = self.windows(height).map(|rows| rows.len());
        let counts: Vec<f32> = rows
            .flat_map(|rows| {
                self.windows(width)
                    .map(move |columns| (rows * columns.len()) as f32)
            })
            .collect();
        let shape = [
            1,
            1,
            height.div_ceil(self.stride),
            width.div_ceil(self.stride),
        ];
        Tensor::from_data(TensorData::new(counts, shape), options)
    }

    /// The places along one dimension that each window covers.
    fn windows(&self, size: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let centers = (0..size).step_by(self.stride);
        centers.map(move |center| center.saturating_sub(1)..(center + 2).min(size))
    }
}

#[cfg(test)]
mod tests {
    use burn::{
        nn::{PaddingConfig2d, pool::AvgPool2dConfig},
        tensor::{Distribution, Tolerance},
    };

    use super::*;

    #[test]
    fn it_is_average_pooling_without_padding() {
        let device = Device::flex().autodiff();
        for (stride, [height, width]) in [(1, [6, 5]), (2, [6, 9]), (2, [7, 4]), (1, [1, 1])] {
            let x = Tensor::random([2, 3, height, width], Distribution::Default, &device);
            let run = |forward: &dyn Fn(Tensor<4>) -> Tensor<4>| {
                let x = x.clone().require_grad();
                let y = forward(x.clone());
                let grads = y.clone().powi_scalar(2).sum().backward();
                [y.inner(), x.grad(&grads).unwrap()]
            };
            let pool = AvgPool2dConfig::new([3, 3])
                .with_strides([stride; 2])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .with_count_include_pad(false)
                .init();
            let ours = run(&|x| Average3x3::new(stride).forward(x));
            let burns = run(&|x| pool.forward(x));
            for (ours, burns) in ours.into_iter().zip(burns) {
                ours.into_data()
                    .assert_approx_eq::<f32>(&burns.into_data(), Tolerance::rel_abs(1e-5, 1e-5));
            }
        }
    }
}
