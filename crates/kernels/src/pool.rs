//! Pooling over windows that may reach over the edge of the map.
//!
//! A map of h rows is pooled to ⌈h / stride⌉: window i begins at row i·stride − (size − 1)/2, and
//! what lies outside the map does not count. For odd sizes that is a padding of half the window.
//!
//! Each plane is copied into a larger one with the edges filled in. There, rows no longer matter:
//! a window's row is a shift by one, its column a shift by the pitch, for all places at once.

use burn::{
    nn::{
        PaddingConfig2d,
        pool::{AvgPool2dConfig, MaxPool2dConfig},
    },
    tensor::Tensor,
};
use burn_flex::FlexTensor;

use crate::{
    differentiable::{self, Kernel, Operand},
    planes::{Dims, dims, in_order, in_parts, numbers, tensor, vectorised},
};

/// Windows of `size`×`size`, `stride` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Rows and columns of a window: from 1 to 15.
    pub size: usize,
    /// Rows and columns from a window to the next: at least 1.
    pub stride: usize,
}

/// A padded plane: where a number of a map lies in it.
#[derive(Clone, Copy, Debug)]
struct Padded {
    window: Window,
    /// Of the map.
    height: usize,
    width: usize,
}

impl Padded {
    fn new(window: Window, [_, _, height, width]: Dims) -> Self {
        Self {
            window,
            height,
            width,
        }
    }

    /// Numbers in a row.
    fn pitch(&self) -> usize {
        self.width + self.window.size - 1
    }

    fn len(&self) -> usize {
        self.pitch() * (self.height + self.window.size - 1)
    }

    /// The first number of a row of the map.
    fn row(&self, row: usize) -> usize {
        let before = (self.window.size - 1) / 2;
        (row + before) * self.pitch() + before
    }

    /// The rows and columns of the pooled map.
    fn pooled(&self) -> [usize; 2] {
        [self.height, self.width].map(|length| length.div_ceil(self.window.stride))
    }

    /// Copies a map into `plane`, whose edges stay as they are.
    #[inline(always)]
    fn fill(&self, plane: &mut [f32], map: &[f32]) {
        for (row, numbers) in map.chunks_exact(self.width).enumerate() {
            plane[self.row(row)..][..self.width].copy_from_slice(numbers);
        }
    }

    /// Appends the map in `plane`.
    #[inline(always)]
    fn take(&self, plane: &[f32], map: &mut Vec<f32>) {
        for row in 0..self.height {
            map.extend_from_slice(&plane[self.row(row)..][..self.width]);
        }
    }
}

/// The largest number of each window of `x` `[n, c, h, w]`: `[n, c, ⌈h/stride⌉, ⌈w/stride⌉]`. NaN
/// counts as the largest. The gradient goes to the first of several that are equal, row by row.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_kernels::{Window, max_pool};
///
/// let x = Tensor::<4>::from_floats([[[[1.0, 5.0, 2.0], [4.0, 3.0, 0.0]]]], &Device::flex());
/// let y = max_pool(x, Window { size: 3, stride: 2 });
/// assert_eq!(y.into_data().try_to_vec::<f32>().unwrap(), [5.0, 5.0]);
/// ```
///
/// # Panics
///
/// If the window is empty, or larger than 15, or the stride zero.
#[must_use]
pub fn max_pool(x: Tensor<4>, window: Window) -> Tensor<4> {
    pool(&x, window, MaxPool(window)).unwrap_or_else(|| {
        let config = MaxPool2dConfig::new([window.size; 2]).with_strides([window.stride; 2]);
        config.with_padding(around(window)).init().forward(x)
    })
}

/// The padding, for Burn's own pools.
fn around(window: Window) -> PaddingConfig2d {
    let half = window.size / 2;
    match window.size % 2 {
        0 => PaddingConfig2d::Same,
        _ => PaddingConfig2d::Explicit(half, half, half, half),
    }
}

fn pool<K: Kernel<1>>(x: &Tensor<4>, window: Window, kernel: K) -> Option<Tensor<4>> {
    assert!(
        (1..16).contains(&window.size) && window.stride > 0,
        "{window:?}"
    );
    if x.shape().num_elements() == 0 {
        return None;
    }
    let (output, _) = differentiable::run(kernel, [Operand::of(x)?])?;
    Some(output.into_tensor())
}

#[derive(Clone, Debug)]
struct MaxPool(Window);

impl Kernel<1> for MaxPool {
    /// The input: to find the largest again is quicker than to keep where they were.
    type Saved = FlexTensor;

    fn forward(&self, [x]: [FlexTensor; 1], _: bool) -> (FlexTensor, FlexTensor) {
        let x = in_order(x);
        let shape @ [samples, channels, height, width] = dims(&x);
        let padded = Padded::new(self.0, shape);
        let [rows, columns] = padded.pooled();
        let maps = numbers(&x);
        let size = height * width;
        let output = in_parts(samples * channels, rows * columns, |part, output| {
            let mut plane = vec![f32::NEG_INFINITY; padded.len()];
            vectorised(|| {
                padded.fill(&mut plane, &maps[part * size..][..size]);
                slide(&mut plane, self.0.size, 1, larger);
                slide(&mut plane, self.0.size, padded.pitch(), larger);
                padded.pick(&plane, output);
            });
        });
        (tensor(output, [samples, channels, rows, columns]), x)
    }

    fn backward(
        &self,
        x: FlexTensor,
        gradient: FlexTensor,
        _: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let gradient = in_order(gradient);
        let shape @ [samples, channels, height, width] = dims(&x);
        let padded = Padded::new(self.0, shape);
        let [rows, columns] = padded.pooled();
        let (maps, gradients) = (numbers(&x), numbers(&gradient));
        let (size, pooled) = (height * width, rows * columns);
        let of_x = in_parts(samples * channels, size, |part, output| {
            let map = &maps[part * size..][..size];
            let gradients = &gradients[part * pooled..][..pooled];
            vectorised(|| padded.take(&self.returned(padded, map, gradients), output));
        });
        [Some(tensor(of_x, shape))]
    }
}

impl MaxPool {
    /// The gradient of a padded plane.
    ///
    /// Place by place of a window, for all windows at once: where a window's number there is its
    /// largest, what is left of its gradient goes there.
    #[inline(always)]
    fn returned(&self, padded: Padded, map: &[f32], gradients: &[f32]) -> Vec<f32> {
        let mut plane = vec![f32::NEG_INFINITY; padded.len()];
        padded.fill(&mut plane, map);
        let mut largest = plane.clone();
        slide(&mut largest, self.0.size, 1, larger);
        slide(&mut largest, self.0.size, padded.pitch(), larger);
        let mut left = vec![0.0; padded.len()];
        padded.put(gradients.iter().copied(), &mut left);
        let mut returned = vec![0.0; padded.len()];
        let steps = 0..self.0.size;
        for shift in steps
            .clone()
            .flat_map(|row| (steps.clone()).map(move |column| row * padded.pitch() + column))
        {
            let targets = returned[shift..].iter_mut().zip(&plane[shift..]);
            let windows = left.iter_mut().zip(&largest);
            for ((target, &number), (left, &largest)) in targets.zip(windows) {
                let here = if number == largest { *left } else { 0.0 };
                *target += here;
                *left -= here;
            }
        }
        returned
    }
}

/// The larger of two, NaN being the largest.
#[inline(always)]
fn larger(best: f32, other: f32) -> f32 {
    if other > best || other.is_nan() {
        other
    } else {
        best
    }
}

/// Folds each number with the `size` − 1 that follow it at steps of `step`, as far as they go.
#[inline(always)]
fn slide(plane: &mut [f32], size: usize, step: usize, fold: impl Fn(f32, f32) -> f32) {
    // In blocks: what is written stays behind what is still to be read.
    let mut begin = 0;
    while begin < plane.len() {
        let mut block = [0.0; BLOCK];
        let length = BLOCK.min(plane.len() - begin);
        block[..length].copy_from_slice(&plane[begin..][..length]);
        for shift in (1..size).map(|i| i * step) {
            let others = plane.get(begin + shift..).unwrap_or_default();
            for (best, &other) in block[..length].iter_mut().zip(others) {
                *best = fold(*best, other);
            }
        }
        plane[begin..][..length].copy_from_slice(&block[..length]);
        begin += BLOCK;
    }
}

/// Numbers that are folded at once.
const BLOCK: usize = 64;

impl Padded {
    /// Puts a number to the first place of each window.
    #[inline(always)]
    fn put(&self, mut numbers: impl Iterator<Item = f32>, plane: &mut [f32]) {
        let [rows, columns] = self.pooled();
        let step = self.window.stride;
        for row in 0..rows {
            let row = &mut plane[row * step * self.pitch()..];
            let places = row.chunks_mut(step).take(columns);
            (places.zip(&mut numbers)).for_each(|(chunk, number)| chunk[0] = number);
        }
    }

    /// Appends the number at the first place of each window.
    #[inline(always)]
    fn pick(&self, plane: &[f32], output: &mut Vec<f32>) {
        let [rows, columns] = self.pooled();
        let step = self.window.stride;
        for row in 0..rows {
            let row = &plane[row * step * self.pitch()..];
            match step {
                1 => output.extend_from_slice(&row[..columns]),
                _ => output.extend(row.chunks(step).take(columns).map(|chunk| chunk[0])),
            }
        }
    }
}

/// The mean of each window of `x` `[n, c, h, w]`: `[n, c, ⌈h/stride⌉, ⌈w/stride⌉]`. Only what lies
/// in the map is counted.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_kernels::{Window, average_pool};
///
/// let x = Tensor::<4>::from_floats([[[[1.0, 5.0, 3.0]]]], &Device::flex());
/// let y = average_pool(x, Window { size: 3, stride: 1 });
/// assert_eq!(y.into_data().try_to_vec::<f32>().unwrap(), [3.0, 3.0, 4.0]);
/// ```
///
/// # Panics
///
/// If the size of the window is even, or larger than 15, or the stride zero.
#[must_use]
pub fn average_pool(x: Tensor<4>, window: Window) -> Tensor<4> {
    assert!(window.size % 2 == 1, "{window:?}");
    pool(&x, window, AveragePool(window)).unwrap_or_else(|| {
        let config = AvgPool2dConfig::new([window.size; 2]).with_strides([window.stride; 2]);
        let config = config
            .with_padding(around(window))
            .with_count_include_pad(false);
        config.init().forward(x)
    })
}

#[derive(Clone, Debug)]
struct AveragePool(Window);

impl Kernel<1> for AveragePool {
    type Saved = Dims;

    fn forward(&self, [x]: [FlexTensor; 1], _: bool) -> (FlexTensor, Dims) {
        let x = in_order(x);
        let shape @ [samples, channels, height, width] = dims(&x);
        let padded = Padded::new(self.0, shape);
        let [rows, columns] = padded.pooled();
        let counts = padded.counts();
        let maps = numbers(&x);
        let size = height * width;
        let output = in_parts(samples * channels, rows * columns, |part, output| {
            let mut plane = vec![0.0; padded.len()];
            vectorised(|| {
                padded.fill(&mut plane, &maps[part * size..][..size]);
                slide(&mut plane, self.0.size, 1, |a, b| a + b);
                slide(&mut plane, self.0.size, padded.pitch(), |a, b| a + b);
                let begin = output.len();
                padded.pick(&plane, output);
                let means = output[begin..].iter_mut().zip(&counts);
                means.for_each(|(sum, count)| *sum /= count);
            });
        });
        (tensor(output, [samples, channels, rows, columns]), shape)
    }

    fn backward(&self, shape: Dims, gradient: FlexTensor, _: [bool; 1]) -> [Option<FlexTensor>; 1] {
        let gradient = in_order(gradient);
        let [samples, channels, height, width] = shape;
        let padded = Padded::new(self.0, shape);
        let counts = padded.counts();
        let gradients = numbers(&gradient);
        // A number is in the windows that begin up to size − 1 before it, in both directions.
        let lead = (self.0.size - 1) * (padded.pitch() + 1);
        let of_x = in_parts(samples * channels, height * width, |part, output| {
            let mut plane = vec![0.0; padded.len() + lead];
            let gradients = &gradients[part * counts.len()..][..counts.len()];
            let shares = gradients
                .iter()
                .zip(&counts)
                .map(|(slope, count)| slope / count);
            vectorised(|| {
                padded.put(shares, &mut plane[lead..]);
                slide(&mut plane, self.0.size, 1, |a, b| a + b);
                slide(&mut plane, self.0.size, padded.pitch(), |a, b| a + b);
            });
            padded.take(&plane, output);
        });
        [Some(tensor(of_x, shape))]
    }
}

impl Padded {
    /// How many numbers of the map lie in each window.
    fn counts(&self) -> Vec<f32> {
        let Window { size, stride } = self.window;
        let before = (size - 1) / 2;
        let inside = |length: usize| {
            (0..length.div_ceil(stride)).map(move |i| {
                let first = (i * stride).saturating_sub(before);
                ((i * stride + size - before).min(length) - first) as f32
            })
        };
        inside(self.height)
            .flat_map(|rows| inside(self.width).map(move |columns| rows * columns))
            .collect()
    }
}
