//! Pooling over windows that may reach over the edge of the map.
//!
//! A map of h rows is pooled to ⌈h / stride⌉: window i begins at row i·stride − (size − 1)/2, and
//! what lies outside the map does not count. For odd sizes that is a padding of half the window.
//!
//! A window is taken at every place of the map, first along its row, then along its column; of
//! these, every `stride`-th is kept.

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
    taps::{Taps, masked},
};

/// Windows of `size`×`size`, `stride` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Rows and columns of a window: from 1 to 15.
    pub size: usize,
    /// Rows and columns from a window to the next: at least 1.
    pub stride: usize,
}

/// The windows over maps of one size.
#[derive(Clone, Debug)]
struct Windows {
    stride: usize,
    height: usize,
    width: usize,
    taps: Taps,
}

impl Windows {
    fn new(Window { size, stride }: Window, [_, _, height, width]: Dims) -> Self {
        let taps = Taps::new([height, width], [size; 2], [(size - 1) / 2; 2]);
        Self {
            stride,
            height,
            width,
            taps,
        }
    }

    /// The numbers of a map.
    fn len(&self) -> usize {
        self.height * self.width
    }

    /// The rows and columns of the pooled map.
    fn pooled(&self) -> [usize; 2] {
        [self.height, self.width].map(|length| length.div_ceil(self.stride))
    }

    /// Folds each window of a map, beginning with `neutral`.
    #[inline(always)]
    fn fold(&self, map: &[f32], neutral: f32, fold: impl Fn(f32, f32) -> f32) -> Vec<f32> {
        let mut rows = vec![neutral; self.len()];
        for tap in self.taps.in_row() {
            let met = map[tap.met].iter().zip(tap.mask);
            for (sum, (&number, &mask)) in rows[tap.centers].iter_mut().zip(met) {
                *sum = fold(*sum, masked(number, mask, neutral));
            }
        }
        let mut windows = vec![neutral; self.len()];
        for tap in self.taps.in_column() {
            for (sum, &row) in windows[tap.centers].iter_mut().zip(&rows[tap.met]) {
                *sum = fold(*sum, row);
            }
        }
        windows
    }

    /// Appends the windows that are kept.
    #[inline(always)]
    fn keep(&self, windows: &[f32], output: &mut Vec<f32>) {
        if self.stride == 1 {
            return output.extend_from_slice(windows);
        }
        for row in windows.chunks(self.stride * self.width) {
            output.extend(row[..self.width].chunks(self.stride).map(|chunk| chunk[0]));
        }
    }

    /// A map with numbers at the windows that are kept, and zeros else.
    #[inline(always)]
    fn spread(&self, mut numbers: impl Iterator<Item = f32>) -> Vec<f32> {
        if self.stride == 1 {
            return numbers.collect();
        }
        let mut map = vec![0.0; self.len()];
        for row in map.chunks_mut(self.stride * self.width) {
            let places = row[..self.width].chunks_mut(self.stride);
            (places.zip(&mut numbers)).for_each(|(chunk, number)| chunk[0] = number);
        }
        map
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
        let shape @ [samples, channels, ..] = dims(&x);
        let windows = Windows::new(self.0, shape);
        let [rows, columns] = windows.pooled();
        let maps = numbers(&x);
        let output = in_parts(samples * channels, rows * columns, |part, output| {
            let map = &maps[part * windows.len()..][..windows.len()];
            vectorised(|| windows.keep(&windows.fold(map, f32::NEG_INFINITY, larger), output));
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
        let shape @ [samples, channels, ..] = dims(&x);
        let windows = Windows::new(self.0, shape);
        let (maps, gradients) = (numbers(&x), numbers(&gradient));
        let (size, pooled) = (windows.len(), windows.pooled().iter().product::<usize>());
        let of_x = in_parts(samples * channels, size, |part, output| {
            let map = &maps[part * size..][..size];
            let gradients = &gradients[part * pooled..][..pooled];
            output.resize(output.len() + size, 0.0);
            let begin = output.len() - size;
            vectorised(|| give_back(&windows, map, gradients, &mut output[begin..]));
        });
        [Some(tensor(of_x, shape))]
    }
}

/// Adds the gradients of the windows of a map to those of its numbers.
///
/// Tap by tap, for all windows at once: where a window's number there is its largest, what is left
/// of its gradient goes there.
#[inline(always)]
fn give_back(windows: &Windows, map: &[f32], gradients: &[f32], of_map: &mut [f32]) {
    let largest = windows.fold(map, f32::NEG_INFINITY, larger);
    let mut left = windows.spread(gradients.iter().copied());
    for tap in windows.taps.all() {
        let targets = of_map[tap.met.clone()].iter_mut().zip(&map[tap.met]);
        let centers = left[tap.centers.clone()]
            .iter_mut()
            .zip(&largest[tap.centers]);
        let pairs = targets.zip(centers).zip(tap.mask);
        for (((target, &number), (left, &largest)), &mask) in pairs {
            let here = if number == largest { *left } else { 0.0 };
            let here = masked(here, mask, 0.0);
            *target += here;
            *left -= here;
        }
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
        let shape @ [samples, channels, ..] = dims(&x);
        let windows = Windows::new(self.0, shape);
        let [rows, columns] = windows.pooled();
        let counts = windows.counts();
        let maps = numbers(&x);
        let output = in_parts(samples * channels, rows * columns, |part, output| {
            let map = &maps[part * windows.len()..][..windows.len()];
            let begin = output.len();
            vectorised(|| {
                windows.keep(&windows.fold(map, 0.0, |a, b| a + b), output);
                let means = output[begin..].iter_mut().zip(&counts);
                means.for_each(|(sum, count)| *sum /= count);
            });
        });
        (tensor(output, [samples, channels, rows, columns]), shape)
    }

    fn backward(&self, shape: Dims, gradient: FlexTensor, _: [bool; 1]) -> [Option<FlexTensor>; 1] {
        let gradient = in_order(gradient);
        let [samples, channels, ..] = shape;
        let windows = Windows::new(self.0, shape);
        let counts = windows.counts();
        let gradients = numbers(&gradient);
        let of_x = in_parts(samples * channels, windows.len(), |part, output| {
            let gradients = &gradients[part * counts.len()..][..counts.len()];
            output.resize(output.len() + windows.len(), 0.0);
            let begin = output.len() - windows.len();
            vectorised(|| share_out(&windows, gradients, &counts, &mut output[begin..]));
        });
        [Some(tensor(of_x, shape))]
    }
}

/// Adds the gradients of the windows' means to those of the numbers of a map.
#[inline(always)]
fn share_out(windows: &Windows, gradients: &[f32], counts: &[f32], of_map: &mut [f32]) {
    let shares = gradients.iter().zip(counts);
    let shares = windows.spread(shares.map(|(gradient, count)| gradient / count));
    let mut rows = vec![0.0; windows.len()];
    for tap in windows.taps.in_column() {
        for (sum, &share) in rows[tap.met].iter_mut().zip(&shares[tap.centers]) {
            *sum += share;
        }
    }
    for tap in windows.taps.in_row() {
        let centers = rows[tap.centers].iter().zip(tap.mask);
        for (sum, (&row, &mask)) in of_map[tap.met].iter_mut().zip(centers) {
            *sum += masked(row, mask, 0.0);
        }
    }
}

impl Windows {
    /// How many numbers of the map lie in each window that is kept.
    fn counts(&self) -> Vec<f32> {
        let ones = vec![1.0; self.len()];
        let mut counts = Vec::new();
        self.keep(&self.fold(&ones, 0.0, |a, b| a + b), &mut counts);
        counts
    }
}
