//! Pooling over windows that may reach over the edge of the map.
//!
//! A map of h rows is pooled to ⌈h / stride⌉: window i begins at row i·stride − (size − 1)/2, and
//! what lies outside the map does not count. For odd sizes that is a padding of half the window.
//!
//! Windows are computed at every place of the map, first along rows, then along columns. Every
//! `stride`-th is kept.

use burn::{
    nn::{
        PaddingConfig2d,
        pool::{AvgPool2dConfig, MaxPool2dConfig},
    },
    tensor::Tensor,
};
use burn_flex::FlexTensor;
use stovepipe_autodiff::{Kernel, Operand, contiguous, tensor, values};

use crate::{
    planes::{Dims, dims, in_parts, vectorised},
    taps::{Tap, Taps, masked},
};

/// Windows of `size`×`size`, `stride` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolWindow {
    /// Rows and columns of a window: 2, or an odd number up to 15.
    pub size: usize,
    /// Rows and columns from a window to the next: at least 1.
    pub stride: usize,
}

impl PoolWindow {
    fn padding(self) -> PaddingConfig2d {
        let half = self.size / 2;
        match self.size % 2 {
            0 => PaddingConfig2d::Same,
            _ => PaddingConfig2d::Explicit(half, half, half, half),
        }
    }
}

/// The largest value of each window of `x` `[n, c, h, w]`: `[n, c, ⌈h/stride⌉, ⌈w/stride⌉]`. NaN
/// counts as the largest, and gets no gradient. Among equal values, the first one in row-major order
/// gets the gradient.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_kernels::{PoolWindow, max_pool};
///
/// let x = Tensor::<4>::from_floats([[[[1.0, 5.0, 2.0], [4.0, 3.0, 0.0]]]], &Device::flex());
/// let y = max_pool(x, PoolWindow { size: 3, stride: 2 });
/// assert_eq!(y.into_data().try_to_vec::<f32>().unwrap(), [5.0, 5.0]);
/// ```
///
/// # Panics
///
/// If the size of the window is neither 2 nor odd, or larger than 15, or the stride zero.
#[must_use]
pub fn max_pool(x: Tensor<4>, window: PoolWindow) -> Tensor<4> {
    // Burn places larger windows of even size differently.
    assert!(window.size == 2 || window.size % 2 == 1, "{window:?}");
    by_kernel(&x, window, false).unwrap_or_else(|| {
        let config = MaxPool2dConfig::new([window.size; 2]).with_strides([window.stride; 2]);
        config.with_padding(window.padding()).init().forward(x)
    })
}

/// The mean of each window of `x` `[n, c, h, w]`: `[n, c, ⌈h/stride⌉, ⌈w/stride⌉]`. Only values in
/// the map count.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_kernels::{PoolWindow, average_pool};
///
/// let x = Tensor::<4>::from_floats([[[[1.0, 5.0, 3.0]]]], &Device::flex());
/// let y = average_pool(x, PoolWindow { size: 3, stride: 1 });
/// assert_eq!(y.into_data().try_to_vec::<f32>().unwrap(), [3.0, 3.0, 4.0]);
/// ```
///
/// # Panics
///
/// If the size of the window is even, or larger than 15, or the stride zero.
#[must_use]
pub fn average_pool(x: Tensor<4>, window: PoolWindow) -> Tensor<4> {
    assert!(window.size % 2 == 1, "{window:?}");
    by_kernel(&x, window, true).unwrap_or_else(|| {
        let config = AvgPool2dConfig::new([window.size; 2]).with_strides([window.stride; 2]);
        let config = config.with_padding(window.padding());
        config.with_count_include_pad(false).init().forward(x)
    })
}

fn by_kernel(x: &Tensor<4>, window: PoolWindow, averages: bool) -> Option<Tensor<4>> {
    let fits = (1..16).contains(&window.size) && window.stride > 0;
    assert!(fits, "{window:?}");
    if x.shape().num_elements() == 0 {
        return None;
    }
    let (output, _) = PoolKernel { window, averages }.run([Operand::of(x)?])?;
    Some(output.into_tensor())
}

#[derive(Clone, Debug)]
struct PoolKernel {
    window: PoolWindow,
    averages: bool,
}

impl PoolKernel {
    /// Pools runs of maps, and how many values of the map lie in each window if it averages.
    fn windows(&self, shape: Dims) -> (Windows, Option<Vec<f32>>) {
        let windows = Windows::new(self.window, shape);
        let counts = self.averages.then(|| windows.counts());
        (windows, counts)
    }
}

impl Kernel<1> for PoolKernel {
    /// The shape of the input; for maxima the input, too: finding them again is faster than keeping
    /// their places.
    type Saved = (Dims, Option<FlexTensor>);

    fn forward(&self, [x]: [FlexTensor; 1]) -> (FlexTensor, Self::Saved) {
        let x = contiguous(x);
        let shape @ [samples, channels, ..] = dims(&x);
        let (windows, counts) = self.windows(shape);
        let [rows, columns] = windows.pooled();
        let [run, pooled] = windows.run();
        let output = windows.pool(samples * channels, pooled, |index, output| {
            let maps = part(values(&x), index, run);
            if let Some(counts) = &counts {
                let begin = output.len();
                windows.keep(&windows.sums(maps), output);
                let sums = output[begin..].iter_mut().zip(counts);
                sums.for_each(|(sum, count)| *sum /= count);
            } else {
                windows.keep(&windows.maxima(maps)[1], output);
            }
        });
        let output = tensor(output, [samples, channels, rows, columns]);
        (output, (shape, (!self.averages).then_some(x)))
    }

    /// From a window's maximum the gradient goes to the first of its rows with that maximum, and from
    /// there to the first value that equals it.
    fn backward(
        &self,
        (shape, x): Self::Saved,
        gradient: FlexTensor,
        _: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let gradient = contiguous(gradient);
        let [samples, channels, height, width] = shape;
        let (windows, counts) = self.windows(shape);
        let counts = counts.unwrap_or_default();
        let [run, pooled] = windows.run();
        let of_x = windows.pool(samples * channels, run, |index, of_x| {
            let gradients = part(values(&gradient), index, pooled).iter();
            let maps = windows.maps.min(samples * channels - index * windows.maps);
            let length = maps * height * width;
            let begin = of_x.len();
            of_x.resize(begin + length, 0.0);
            let (of_maps, mut of_rows) = (&mut of_x[begin..], vec![0.0; length]);
            let in_column = windows.taps.in_column(length);
            let in_row = windows.taps.in_row(length);
            if let Some(x) = &x {
                let maps = part(values(x), index, run);
                let [rows, maxima] = windows.maxima(maps);
                let of_windows = windows.spread(gradients.copied(), length);
                give_back(in_column, &rows, &maxima, of_windows, &mut of_rows);
                give_back(in_row, maps, &rows, of_rows, of_maps);
            } else {
                let shares = gradients.zip(&counts).map(|(slope, count)| slope / count);
                let of_windows = windows.spread(shares, length);
                share(in_column, &of_windows, &mut of_rows);
                share(in_row, &of_rows, of_maps);
            }
        });
        [Some(tensor(of_x, shape))]
    }
}

/// Values that are pooled at once: several maps, if they are small. A run fits into the innermost
/// cache.
const RUN: usize = 1024;

/// The windows over runs of maps of one size.
#[derive(Clone, Debug)]
struct Windows {
    stride: usize,
    map: [usize; 2],
    maps: usize,
    taps: Taps,
}

impl Windows {
    fn new(PoolWindow { size, stride }: PoolWindow, [_, _, height, width]: Dims) -> Self {
        let maps = (RUN / (height * width)).max(1);
        let map = [height, width];
        let taps = Taps::new(map, [size; 2], [(size - 1) / 2; 2], maps, size);
        Self {
            stride,
            map,
            maps,
            taps,
        }
    }

    /// The rows and columns of a pooled map.
    fn pooled(&self) -> [usize; 2] {
        self.map.map(|length| length.div_ceil(self.stride))
    }

    /// The number of values in a run, before and after pooling.
    fn run(&self) -> [usize; 2] {
        [self.map, self.pooled()].map(|[height, width]| height * width * self.maps)
    }

    /// The values that `work` appends for each run of `maps` maps, up to `length` a run.
    fn pool(
        &self,
        maps: usize,
        length: usize,
        work: impl Fn(usize, &mut Vec<f32>) + Sync,
    ) -> Vec<f32> {
        in_parts(maps.div_ceil(self.maps), length, |run, values| {
            vectorised!(|| work(run, values));
        })
    }

    /// How many values of its map lie in each window that is kept of a run.
    fn counts(&self) -> Vec<f32> {
        let mut counts = Vec::new();
        self.keep(&self.sums(&vec![1.0; self.run()[0]]), &mut counts);
        counts
    }

    #[inline(always)]
    fn sums(&self, maps: &[f32]) -> Vec<f32> {
        let [_, sums] = self.fold(maps, 0.0, |a, b| a + b);
        sums
    }

    /// The largest value of each window's middle row, and of each window; NaN is the largest.
    #[inline(always)]
    fn maxima(&self, maps: &[f32]) -> [Vec<f32>; 2] {
        self.fold(maps, f32::NEG_INFINITY, |most, other| {
            if other > most || other.is_nan() {
                other
            } else {
                most
            }
        })
    }

    /// Folds each window's middle row, then these rows to windows, starting with `neutral`.
    #[inline(always)]
    fn fold(
        &self,
        maps: &[f32],
        neutral: f32,
        fold: impl Fn(f32, f32) -> f32 + Copy,
    ) -> [Vec<f32>; 2] {
        let rows = folded(self.taps.in_row(maps.len()), maps, neutral, fold);
        let windows = folded(self.taps.in_column(maps.len()), &rows, neutral, fold);
        [rows, windows]
    }

    #[inline(always)]
    fn keep(&self, windows: &[f32], output: &mut Vec<f32>) {
        let [height, width] = self.map;
        if self.stride == 1 {
            return output.extend_from_slice(windows);
        }
        for map in windows.chunks(height * width) {
            for row in map.chunks(self.stride * width) {
                output.extend(row[..width].chunks(self.stride).map(|chunk| chunk[0]));
            }
        }
    }

    /// Maps of `length` values in all: the given values at the windows that are kept, zeros elsewhere.
    #[inline(always)]
    fn spread(&self, mut values: impl Iterator<Item = f32>, length: usize) -> Vec<f32> {
        let [height, width] = self.map;
        if self.stride == 1 {
            return values.collect();
        }
        let mut maps = vec![0.0; length];
        for map in maps.chunks_mut(height * width) {
            for row in map.chunks_mut(self.stride * width) {
                let places = row[..width].chunks_mut(self.stride);
                (places.zip(&mut values)).for_each(|(chunk, value)| chunk[0] = value);
            }
        }
        maps
    }
}

/// Folds the values that the taps meet at each center, starting with `neutral`.
#[inline(always)]
fn folded<'a>(
    taps: impl Iterator<Item = Tap<'a>>,
    values: &[f32],
    neutral: f32,
    fold: impl Fn(f32, f32) -> f32,
) -> Vec<f32> {
    let mut folded = vec![neutral; values.len()];
    for tap in taps {
        let met = values[tap.met].iter().zip(tap.mask);
        for (sum, (&value, &mask)) in folded[tap.centers].iter_mut().zip(met) {
            *sum = fold(*sum, masked(value, mask, neutral));
        }
    }
    folded
}

fn part(values: &[f32], run: usize, length: usize) -> &[f32] {
    let begin = run * length;
    &values[begin..values.len().min(begin + length)]
}

/// Moves the gradients of maxima to the values that equal them.
///
/// Tap by tap, for all centers at once: where the value that the tap meets is the maximum, it gets
/// what is left of the gradient. In three loops, none of which has more slices than the compiler can
/// prove separate.
#[inline(always)]
fn give_back<'a>(
    taps: impl Iterator<Item = Tap<'a>>,
    values: &[f32],
    maxima: &[f32],
    mut left: Vec<f32>,
    of_values: &mut [f32],
) {
    let mut moved = vec![0.0; left.len()];
    for tap in taps {
        let moved = &mut moved[..tap.mask.len()];
        let left = &mut left[tap.centers.clone()];
        let pairs = values[tap.met.clone()].iter().zip(&maxima[tap.centers]);
        let given = left.iter().zip(tap.mask);
        for (moved, ((value, maximum), (&left, &mask))) in moved.iter_mut().zip(pairs.zip(given)) {
            *moved = masked(if value == maximum { left } else { 0.0 }, mask, 0.0);
        }
        let both = left.iter_mut().zip(&*moved);
        both.for_each(|(left, moved)| *left -= moved);
        let targets = of_values[tap.met].iter_mut().zip(moved);
        targets.for_each(|(target, moved)| *target += *moved);
    }
}

/// Adds the gradients of sums to those of the values that taps met.
#[inline(always)]
fn share<'a>(taps: impl Iterator<Item = Tap<'a>>, of_sums: &[f32], of_values: &mut [f32]) {
    for tap in taps {
        let centers = of_sums[tap.centers].iter().zip(tap.mask);
        for (sum, (&of_sum, &mask)) in of_values[tap.met].iter_mut().zip(centers) {
            *sum += masked(of_sum, mask, 0.0);
        }
    }
}
