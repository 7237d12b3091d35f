//! Convolution as matrix products, forward and backward.
//!
//! Burn's gradient of a convolution is a transposed convolution and one with swapped dimensions;
//! on a CPU, products with the patches of the input (Chellapilla et al., "High Performance
//! Convolutional Neural Networks for Document Processing", 2006) take a fraction of the time.

use burn::{
    backend::{Flex, ops::FloatTensorOps},
    nn::{PaddingConfig2d, conv::Conv2d},
    tensor::{Shape, Tensor},
};
use burn_flex::FlexTensor;

use crate::{
    differentiable::{self, Kernel, Operand},
    planes::{Dims, dims, in_order, in_parts, numbers, tensor, vectorised},
};

/// Runs a convolution on `x` `[n, in, h, w]`: as `conv` would, but for rounding.
///
/// ```
/// use burn::{nn::conv::Conv2dConfig, tensor::{Device, Distribution, Tensor, Tolerance}};
/// use stovepipe_kernels::convolve;
///
/// let device = Device::flex();
/// let conv = Conv2dConfig::new([3, 4], [1, 7]).with_bias(false).init(&device);
/// let x = Tensor::random([2, 3, 8, 8], Distribution::Default, &device);
/// let (ours, burns) = (convolve(&conv, x.clone()), conv.forward(x));
/// ours.into_data().assert_approx_eq::<f32>(&burns.into_data(), Tolerance::rel_abs(1e-5, 1e-5));
/// ```
///
/// # Panics
///
/// As Burn does, if the input does not fit.
#[must_use]
pub fn convolve(conv: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    by_products(conv, &x).unwrap_or_else(|| conv.forward(x))
}

fn by_products(conv: &Conv2d, x: &Tensor<4>) -> Option<Tensor<4>> {
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
    let fits = x.dims()[1] == channels && x.shape().num_elements() > 0;
    if !is_plain || !fits {
        return None;
    }
    let kernel = Convolution {
        kernel: [rows, columns],
        stride: conv.stride,
        padding,
    };
    kernel.output(x.dims())?;
    let operands = [Operand::of(x)?, Operand::of(&weight)?];
    let (output, _) = differentiable::run(kernel, operands)?;
    Some(output.into_tensor())
}

#[derive(Clone, Debug)]
struct Convolution {
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
}

#[derive(Clone, Debug)]
struct Saved {
    x: FlexTensor,
    weight: FlexTensor,
}

impl Kernel<2> for Convolution {
    type Saved = Saved;

    fn forward(&self, inputs: [FlexTensor; 2], _: bool) -> (FlexTensor, Saved) {
        let [x, weight] = inputs.map(in_order);
        let [filters, channels, rows, columns] = dims(&weight);
        let matrix = weight.reshape(Shape::new([1, filters, channels * rows * columns]));
        let shape = self.output_of(dims(&x), filters);
        let output = Flex::float_matmul(matrix, self.patches(&x));
        (output.reshape(Shape::new(shape)), Saved { x, weight })
    }

    fn backward(
        &self,
        Saved { x, weight }: Saved,
        gradient: FlexTensor,
        [of_x, of_weight]: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let [filters, channels, rows, columns] = dims(&weight);
        let size = channels * rows * columns;
        let [samples, _, height, width] = dims(&gradient);
        let gradient = in_order(gradient).reshape(Shape::new([samples, filters, height * width]));
        let of_weight = of_weight.then(|| {
            let patches = self.patches(&x).transpose(1, 2);
            let products = Flex::float_matmul(gradient.clone(), patches);
            Flex::float_sum_dim(products, 0).reshape(weight.layout().shape().clone())
        });
        let of_x = of_x.then(|| {
            let matrix = weight
                .reshape(Shape::new([1, filters, size]))
                .transpose(1, 2);
            self.fold(Flex::float_matmul(matrix, gradient), dims(&x))
        });
        [of_x, of_weight]
    }
}

impl Convolution {
    /// The rows and columns of the output; `None` if the kernel is larger than the padded map.
    fn output(&self, [_, _, height, width]: Dims) -> Option<[usize; 2]> {
        let length = |length: usize, i: usize| {
            let slack = (length + 2 * self.padding[i]).checked_sub(self.kernel[i])?;
            Some(slack / self.stride[i] + 1)
        };
        Some([length(height, 0)?, length(width, 1)?])
    }

    fn output_of(&self, shape: Dims, filters: usize) -> Dims {
        let [rows, columns] = self.output(shape).unwrap_or_default();
        [shape[0], filters, rows, columns]
    }

    /// Whether patches are the map itself.
    fn is_pointwise(&self) -> bool {
        (self.kernel, self.stride, self.padding) == ([1; 2], [1; 2], [0; 2])
    }

    /// What each number of the kernel meets: `[n, in · rows · columns, h' · w']`.
    fn patches(&self, x: &FlexTensor) -> FlexTensor {
        let shape @ [samples, channels, height, width] = dims(x);
        if self.is_pointwise() {
            return x.reshape(Shape::new([samples, channels, height * width]));
        }
        let [rows, columns] = self.output(shape).unwrap_or_default();
        let taps = self.kernel[0] * self.kernel[1];
        let maps = numbers(x);
        let size = height * width;
        let patches = in_parts(
            samples * channels,
            taps * rows * columns,
            |part, patches| {
                let map = &maps[part * size..][..size];
                vectorised(|| {
                    self.for_each_row(shape, |row, places| match row {
                        Some(row) => places.read(&map[row * width..][..width], patches),
                        None => patches.resize(patches.len() + columns, 0.0),
                    })
                });
            },
        );
        tensor(patches, [samples, channels * taps, rows * columns])
    }

    /// Adds up patches where they came from: the transpose of [`patches`](Self::patches).
    fn fold(&self, patches: FlexTensor, shape: Dims) -> FlexTensor {
        if self.is_pointwise() {
            return patches.reshape(Shape::new(shape));
        }
        let [samples, channels, height, width] = shape;
        let [rows, columns] = self.output(shape).unwrap_or_default();
        let length = self.kernel[0] * self.kernel[1] * rows * columns;
        let patches = numbers(&patches);
        let maps = in_parts(samples * channels, height * width, |part, maps| {
            let begin = maps.len();
            maps.resize(begin + height * width, 0.0);
            let map = &mut maps[begin..];
            let mut lines = patches[part * length..][..length].chunks_exact(columns);
            vectorised(|| {
                self.for_each_row(shape, |row, places| {
                    let line = lines.next().unwrap_or_default();
                    if let Some(row) = row {
                        places.add(line, &mut map[row * width..][..width]);
                    }
                })
            });
        });
        tensor(maps, shape)
    }

    /// Calls `work` for each row of the kernel, column of the kernel and row of the output, in
    /// order, with the row of the map that they meet, if any, and the places in it.
    #[inline(always)]
    fn for_each_row(
        &self,
        shape @ [_, _, height, width]: Dims,
        mut work: impl FnMut(Option<usize>, Places),
    ) {
        let [rows, columns] = self.output(shape).unwrap_or_default();
        for (i, j) in (0..self.kernel[0]).flat_map(|i| (0..self.kernel[1]).map(move |j| (i, j))) {
            let places = Places::new(j, columns, width, self.stride[1], self.padding[1]);
            for row in 0..rows {
                let met = (row * self.stride[0] + i).checked_sub(self.padding[0]);
                work(met.filter(|&row| row < height), places);
            }
        }
    }
}

/// Which columns of a row a column of the kernel meets: none for the first outputs, then every
/// `step`-th from `first` on, then none.
#[derive(Clone, Copy)]
struct Places {
    before: usize,
    met: usize,
    after: usize,
    first: usize,
    step: usize,
}

impl Places {
    fn new(column: usize, outputs: usize, width: usize, step: usize, padding: usize) -> Self {
        // Output o meets column o · step + column − padding, if that is at least 0 and below width.
        let before = padding.saturating_sub(column).div_ceil(step).min(outputs);
        let end = (width + padding)
            .saturating_sub(column)
            .div_ceil(step)
            .min(outputs);
        let met = end.saturating_sub(before);
        Self {
            before,
            met,
            after: outputs - before - met,
            first: (before * step + column).saturating_sub(padding),
            step,
        }
    }

    #[inline(always)]
    fn read(self, row: &[f32], line: &mut Vec<f32>) {
        line.resize(line.len() + self.before, 0.0);
        let met = row.get(self.first..).unwrap_or_default();
        match self.step {
            1 => line.extend_from_slice(&met[..self.met]),
            step => line.extend(met.iter().step_by(step).take(self.met)),
        }
        line.resize(line.len() + self.after, 0.0);
    }

    #[inline(always)]
    fn add(self, line: &[f32], row: &mut [f32]) {
        let line = &line[self.before..][..self.met];
        let met = row.get_mut(self.first..).unwrap_or_default();
        match self.step {
            1 => met.iter_mut().zip(line).for_each(|(sum, x)| *sum += x),
            step => met
                .iter_mut()
                .step_by(step)
                .zip(line)
                .for_each(|(sum, x)| *sum += x),
        }
    }
}
