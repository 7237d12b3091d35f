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
    taps::{Tap, Taps, masked},
};

/// Windows of `size`×`size`, `stride` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Rows and columns of a window: 2, or an odd number up to 15.
    pub size: usize,
    /// Rows and columns from a window to the next: at least 1.
    pub stride: usize,
}

/// Numbers that are pooled at once: several maps, if they are small. Few enough for the innermost
/// cache.
const RUN: usize = 1024;

/// The windows over runs of maps of one size.
#[derive(Clone, Debug)]
struct Windows {
    stride: usize,
    map: [usize; 2],
    /// Maps in a run.
    maps: usize,
    taps: Taps,
}

impl Windows {
    fn new(Window { size, stride }: Window, [_, _, height, width]: Dims) -> Self {
        let maps = (RUN / (height * width)).max(1);
        let map = [height, width];
        let taps = Taps::over_maps(map, [size; 2], [(size - 1) / 2; 2], maps);
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

    /// The numbers of a run of maps, and those of the maps when they are pooled.
    fn run(&self) -> [usize; 2] {
        [self.map, self.pooled()].map(|[height, width]| height * width * self.maps)
    }

    /// Numbers that `work` makes of each run of `maps` maps and appends, up to `length` of them.
    fn pool(
        &self,
        maps: usize,
        length: usize,
        work: impl Fn(usize, &mut Vec<f32>) + Sync,
    ) -> Vec<f32> {
        in_parts(maps.div_ceil(self.maps), length, |run, numbers| {
            vectorised(|| work(run, numbers));
        })
    }

    /// Folds each window's row, beginning with `neutral`.
    #[inline(always)]
    fn fold_rows(&self, maps: &[f32], neutral: f32, fold: impl Fn(f32, f32) -> f32) -> Vec<f32> {
        folded(self.taps.in_row(maps.len()), maps, neutral, fold)
    }

    /// Folds the rows of each window.
    #[inline(always)]
    fn fold_columns(&self, rows: &[f32], neutral: f32, fold: impl Fn(f32, f32) -> f32) -> Vec<f32> {
        folded(self.taps.in_column(rows.len()), rows, neutral, fold)
    }

    /// Appends the windows that are kept.
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

    /// Runs of `length` numbers with those given at the windows that are kept, and zeros else.
    #[inline(always)]
    fn spread(&self, mut numbers: impl Iterator<Item = f32>, length: usize) -> Vec<f32> {
        let [height, width] = self.map;
        if self.stride == 1 {
            return numbers.collect();
        }
        let mut maps = vec![0.0; length];
        for map in maps.chunks_mut(height * width) {
            for row in map.chunks_mut(self.stride * width) {
                let places = row[..width].chunks_mut(self.stride);
                (places.zip(&mut numbers)).for_each(|(chunk, number)| chunk[0] = number);
            }
        }
        maps
    }
}

/// What the taps meet, folded at each center, beginning with `neutral`.
#[inline(always)]
fn folded<'a>(
    taps: impl Iterator<Item = Tap<'a>>,
    numbers: &[f32],
    neutral: f32,
    fold: impl Fn(f32, f32) -> f32,
) -> Vec<f32> {
    let mut folded = vec![neutral; numbers.len()];
    for tap in taps {
        let met = numbers[tap.met].iter().zip(tap.mask);
        for (sum, (&number, &mask)) in folded[tap.centers].iter_mut().zip(met) {
            *sum = fold(*sum, masked(number, mask, neutral));
        }
    }
    folded
}

/// The part of a list that belongs to a run.
fn part(numbers: &[f32], run: usize, length: usize) -> &[f32] {
    let begin = run * length;
    &numbers[begin..numbers.len().min(begin + length)]
}

/// The largest number of each window of `x` `[n, c, h, w]`: `[n, c, ⌈h/stride⌉, ⌈w/stride⌉]`. NaN
/// counts as the largest, and is given no gradient. Else the gradient goes to the first of several
/// that are equal, row by row.
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
/// If the size of the window is neither 2 nor odd, or larger than 15, or the stride zero.
#[must_use]
pub fn max_pool(x: Tensor<4>, window: Window) -> Tensor<4> {
    // Burn puts larger windows of even size elsewhere.
    assert!(window.size == 2 || window.size % 2 == 1, "{window:?}");
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

    fn forward(&self, [x]: [FlexTensor; 1]) -> (FlexTensor, FlexTensor) {
        let x = in_order(x);
        let shape @ [samples, channels, ..] = dims(&x);
        let windows = Windows::new(self.0, shape);
        let [rows, columns] = windows.pooled();
        let [run, pooled] = windows.run();
        let output = windows.pool(samples * channels, pooled, |index, output| {
            let maps = part(numbers(&x), index, run);
            let rows = windows.fold_rows(maps, f32::NEG_INFINITY, larger);
            windows.keep(
                &windows.fold_columns(&rows, f32::NEG_INFINITY, larger),
                output,
            );
        });
        (tensor(output, [samples, channels, rows, columns]), x)
    }

    /// From a window's largest number the gradient goes to the first of its rows that has it, and
    /// from there to the first number that is it.
    fn backward(
        &self,
        x: FlexTensor,
        gradient: FlexTensor,
        _: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let gradient = in_order(gradient);
        let shape @ [samples, channels, ..] = dims(&x);
        let windows = Windows::new(self.0, shape);
        let [run, pooled] = windows.run();
        let of_x = windows.pool(samples * channels, run, |index, output| {
            let maps = part(numbers(&x), index, run);
            let length = maps.len();
            let rows = windows.fold_rows(maps, f32::NEG_INFINITY, larger);
            let largest = windows.fold_columns(&rows, f32::NEG_INFINITY, larger);
            let gradients = part(numbers(&gradient), index, pooled).iter().copied();
            let of_windows = windows.spread(gradients, length);
            let mut of_rows = vec![0.0; length];
            give_back(
                windows.taps.in_column(length),
                &rows,
                &largest,
                of_windows,
                &mut of_rows,
            );
            let begin = output.len();
            output.resize(begin + length, 0.0);
            let of_maps = &mut output[begin..];
            give_back(windows.taps.in_row(length), maps, &rows, of_rows, of_maps);
        });
        [Some(tensor(of_x, shape))]
    }
}

/// Adds the gradients of the largest numbers that taps met to those of these numbers.
///
/// Tap by tap, for all centers at once: where the number there is the largest, what is left of its
/// gradient goes there. In three loops, none of which has more slices than the compiler can tell
/// apart.
#[inline(always)]
fn give_back<'a>(
    taps: impl Iterator<Item = Tap<'a>>,
    numbers: &[f32],
    largest: &[f32],
    mut left: Vec<f32>,
    of_numbers: &mut [f32],
) {
    let mut moved = vec![0.0; left.len()];
    for tap in taps {
        let moved = &mut moved[..tap.mask.len()];
        let left = &mut left[tap.centers.clone()];
        let pairs = numbers[tap.met.clone()].iter().zip(&largest[tap.centers]);
        let given = left.iter().zip(tap.mask);
        for (moved, ((number, largest), (&left, &mask))) in moved.iter_mut().zip(pairs.zip(given)) {
            *moved = masked(if number == largest { left } else { 0.0 }, mask, 0.0);
        }
        left.iter_mut()
            .zip(&*moved)
            .for_each(|(left, moved)| *left -= moved);
        let targets = of_numbers[tap.met].iter_mut();
        targets
            .zip(moved)
            .for_each(|(target, moved)| *target += *moved);
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

    fn forward(&self, [x]: [FlexTensor; 1]) -> (FlexTensor, Dims) {
        let x = in_order(x);
        let shape @ [samples, channels, ..] = dims(&x);
        let windows = Windows::new(self.0, shape);
        let [rows, columns] = windows.pooled();
        let [run, pooled] = windows.run();
        let counts = windows.counts();
        let output = windows.pool(samples * channels, pooled, |index, output| {
            let maps = part(numbers(&x), index, run);
            let begin = output.len();
            let rows = windows.fold_rows(maps, 0.0, plus);
            windows.keep(&windows.fold_columns(&rows, 0.0, plus), output);
            let sums = output[begin..].iter_mut().zip(&counts);
            sums.for_each(|(sum, count)| *sum /= count);
        });
        (tensor(output, [samples, channels, rows, columns]), shape)
    }

    fn backward(&self, shape: Dims, gradient: FlexTensor, _: [bool; 1]) -> [Option<FlexTensor>; 1] {
        let gradient = in_order(gradient);
        let [samples, channels, height, width] = shape;
        let windows = Windows::new(self.0, shape);
        let [run, pooled] = windows.run();
        let counts = windows.counts();
        let of_x = windows.pool(samples * channels, run, |index, output| {
            let gradients = part(numbers(&gradient), index, pooled);
            let maps = windows.maps.min(samples * channels - index * windows.maps);
            let length = maps * height * width;
            let means = gradients.iter().zip(&counts);
            let of_windows = windows.spread(means.map(|(slope, count)| slope / count), length);
            let mut of_rows = vec![0.0; length];
            share(windows.taps.in_column(length), &of_windows, &mut of_rows);
            let begin = output.len();
            output.resize(begin + length, 0.0);
            share(windows.taps.in_row(length), &of_rows, &mut output[begin..]);
        });
        [Some(tensor(of_x, shape))]
    }
}

/// Adds the gradients of sums to those of the numbers that taps met.
#[inline(always)]
fn share<'a>(taps: impl Iterator<Item = Tap<'a>>, of_sums: &[f32], of_numbers: &mut [f32]) {
    for tap in taps {
        let centers = of_sums[tap.centers].iter().zip(tap.mask);
        for (sum, (&of_sum, &mask)) in of_numbers[tap.met].iter_mut().zip(centers) {
            *sum += masked(of_sum, mask, 0.0);
        }
    }
}

#[inline(always)]
fn plus(a: f32, b: f32) -> f32 {
    a + b
}

impl Windows {
    /// How many numbers of its map lie in each window that is kept of a run.
    fn counts(&self) -> Vec<f32> {
        let ones = vec![1.0; self.run()[0]];
        let mut counts = Vec::new();
        self.keep(
            &self.fold_columns(&self.fold_rows(&ones, 0.0, plus), 0.0, plus),
            &mut counts,
        );
        counts
    }
}
