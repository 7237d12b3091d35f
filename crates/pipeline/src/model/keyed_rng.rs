//! Random numbers that a layer can draw again.
//!
//! Each number is a function of a key: the seed, the step, the layer, the index of the layer's draw, and the
//! sample. So a recomputed layer draws the same numbers again, and a pipeline draws what the whole mini-batch
//! would draw in one piece, whatever the threads, the micro-batches and the cut. They are drawn where they are
//! used: on a GPU by tensor operations, with the same bits for all but normal numbers.

use std::ops::Range;

use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use rayon::prelude::*;

use crate::model::threefry;

/// Numbers that one thread draws at least.
const SHARE: usize = 1 << 15;

/// The part of the key that all layers of a step share.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StepKey {
    pub(crate) seed: u64,
    pub(crate) step: u64,
    /// The finished share of the training. Not part of the key, but layers use it.
    pub(crate) progress: f64,
}

impl StepKey {
    /// A step outside of a training.
    pub(crate) const APART: Self = Self {
        seed: 0,
        step: 0,
        progress: 1.0,
    };
}

/// The random numbers of a layer for a micro-batch; see [`Context::rng`](crate::Context::rng).
///
/// The layers in [`nn`](crate::nn) draw from it. Custom layers can too:
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_pipeline::KeyedRng;
///
/// let device = Device::flex();
/// // Seed 1, step 7, layer 3. Samples 0 to 4 of a mini-batch at once, and the last two by themselves:
/// let whole = KeyedRng::new(1, 7, 3, 0..4).uniform([4, 5], &device);
/// let part = KeyedRng::new(1, 7, 3, 2..4).uniform([2, 5], &device);
/// assert_eq!(whole.slice([2..4]).to_data(), part.to_data());
///
/// let mut rng = KeyedRng::new(0, 0, 0, 0..1000);
/// assert_eq!((rng.is_training(), rng.progress()), (true, 1.0));
/// let normal = rng.normal([1000, 10], &device);
/// assert!(normal.clone().mean().into_scalar::<f32>().abs() < 0.05);
/// assert!((normal.var(0).mean().into_scalar::<f32>() - 1.0).abs() < 0.05);
/// let kept = rng.keep(0.75, [1000, 10], &device).mean();
/// assert!((kept.into_scalar::<f32>() - 0.75).abs() < 0.02);
/// assert_eq!(rng.at_progress(0.25).progress(), 0.25);
/// assert!(!KeyedRng::none().is_training());
/// ```
#[derive(Clone, Debug)]
pub struct KeyedRng {
    /// `None` in evaluation, where nothing is random.
    key: Option<Key>,
    /// The number of draws so far.
    count: u32,
}

#[derive(Clone, Debug)]
struct Key {
    step: StepKey,
    layer: usize,
    /// The micro-batch's samples, by their index in the mini-batch.
    samples: Range<usize>,
}

impl KeyedRng {
    /// For a layer in a training step and some samples of a mini-batch, at the end of a training.
    #[must_use]
    pub fn new(seed: u64, step: u64, layer: usize, samples: Range<usize>) -> Self {
        let apart = StepKey::APART;
        let step = StepKey {
            seed,
            step,
            ..apart
        };
        Self::of_step(step, layer, samples)
    }

    /// Sets the finished share of the training, from 0 to 1.
    #[must_use]
    pub fn at_progress(mut self, progress: f64) -> Self {
        if let Some(key) = &mut self.key {
            key.step.progress = progress;
        }
        self
    }

    /// The finished share of the training, from 0 to 1, as [set](crate::Pipeline::set_progress) on the
    /// pipeline, for layers that change while a model trains; 1 by default.
    #[must_use]
    pub fn progress(&self) -> f64 {
        self.key.as_ref().map_or(1.0, |key| key.step.progress)
    }

    pub(crate) fn of_step(step: StepKey, layer: usize, samples: Range<usize>) -> Self {
        let key = Some(Key {
            step,
            layer,
            samples,
        });
        Self { key, count: 0 }
    }

    /// For evaluation, where layers draw nothing.
    #[must_use]
    pub fn none() -> Self {
        let key = None;
        Self { key, count: 0 }
    }

    /// Whether the step trains, so layers draw.
    #[must_use]
    pub fn is_training(&self) -> bool {
        self.key.is_some()
    }

    /// Uniform numbers from 0 to 1; zeros in evaluation.
    ///
    /// The first dimension must be the samples, or consecutive rows with the same number for each sample:
    /// then each sample has its own numbers. With the batch in another dimension, numbers also depend on
    /// the number of micro-batches.
    #[must_use]
    pub fn uniform<const D: usize>(&mut self, shape: [usize; D], device: &Device) -> Tensor<D> {
        self.draw(shape, device, &Uniform)
    }

    /// Normal numbers with mean 0 and variance 1; zeros in evaluation. Shapes as in
    /// [`uniform`](Self::uniform).
    #[must_use]
    pub fn normal<const D: usize>(&mut self, shape: [usize; D], device: &Device) -> Tensor<D> {
        self.draw(shape, device, &Normal)
    }

    /// 1 with probability `keep`, otherwise 0; ones in evaluation. Shapes as in [`uniform`](Self::uniform).
    #[must_use]
    pub fn keep<const D: usize>(
        &mut self,
        keep: f64,
        shape: [usize; D],
        device: &Device,
    ) -> Tensor<D> {
        if !self.is_training() {
            return Tensor::ones(shape, device);
        }
        self.factors((keep, 1.0), shape, device)
    }

    /// A value with a probability, otherwise 0; zeros in evaluation.
    pub(crate) fn factors<const D: usize>(
        &mut self,
        (keep, value): (f64, f64),
        shape: [usize; D],
        device: &Device,
    ) -> Tensor<D> {
        // Words below the bound are kept; with the largest bound, all.
        let bound = (keep * 2f64.powi(32)) as u32;
        let value = value as f32;
        self.draw(shape, device, &Factors { bound, value })
    }

    /// A tensor of drawn numbers, sample by sample.
    fn draw<const D: usize>(
        &mut self,
        shape: [usize; D],
        device: &Device,
        kind: &dyn Draw,
    ) -> Tensor<D> {
        let total: usize = shape.iter().product();
        let Some(key) = self.key.as_ref().filter(|_| total > 0) else {
            return Tensor::zeros(shape, device);
        };
        let samples = key.samples.len();
        let of_samples = samples > 0 && shape[0].is_multiple_of(samples);
        let parts = if of_samples { samples } else { 1 };
        let (first, each) = (key.samples.start as u32, total / parts);
        let key = key.of_draw(self.count);
        self.count += 1;
        if device.clone().inner() == Device::flex() {
            let mut numbers = vec![0.0; total];
            let samples = numbers.par_chunks_mut(each).enumerate();
            samples
                .with_min_len(SHARE.div_ceil(each))
                .for_each(|(sample, numbers)| {
                    let first = first.wrapping_add(sample as u32);
                    kind.fill(key, first, numbers);
                });
            return Tensor::from_data(TensorData::new(numbers, shape), device);
        }
        let words = threefry::tensors(key, (first, parts), each.div_ceil(2), device);
        let halves = kind.tensors(words).to_vec();
        Tensor::cat(halves, 1).narrow(1, 0, each).reshape(shape)
    }
}

/// How two random words become two numbers.
trait Draw: Sync {
    /// Numbers of `[first, 0]`, `[first, 1]` and so on. It has no type parameters, so that it is built with this crate:
    /// a model's crate may be built without optimization.
    fn fill(&self, key: threefry::Key, first: u32, numbers: &mut [f32]);

    fn tensors(&self, words: [Tensor<2, Int>; 2]) -> [Tensor<2>; 2];
}

/// 24 bits are all that an `f32` below 1 can have.
const STEP: f32 = 1.0 / (1 << 24) as f32;

struct Uniform;

impl Draw for Uniform {
    fn fill(&self, key: threefry::Key, first: u32, numbers: &mut [f32]) {
        let number = |word: u32| (word >> 8) as f32 * STEP;
        threefry::fill(key, first, numbers, |words| words.map(number));
    }

    fn tensors(&self, words: [Tensor<2, Int>; 2]) -> [Tensor<2>; 2] {
        words.map(|words| {
            let bits = words.bitwise_right_shift_scalar(8);
            bits.float().cast(FloatDType::F32).mul_scalar(STEP)
        })
    }
}

/// The quantiles of uniform numbers, by Wichura's AS 241 ("The Percentage Points of the Normal Distribution",
/// 1988), to about 7 digits. Little depends on how a device computes logarithms.
struct Normal;

/// The middle: this far from 1/2, a quotient of polynomials in 0.425² − (p − 1/2)².
const MIDDLE: f32 = 0.425;
const MIDDLE_SQUARED: f32 = 0.180_625;
const MIDDLE_ABOVE: [f32; 4] = [59.109_375, 159.291_13, 50.434_27, 3.387_132_7];
const MIDDLE_BELOW: [f32; 4] = [67.187_56, 78.757_76, 17.895_17, 1.0];
/// The tails: one in √(−ln p) − 1.6. With 23 bits, p is large enough for these alone.
const TAIL: f32 = 1.6;
const TAIL_ABOVE: [f32; 4] = [0.170_238_21, 1.306_728_5, 2.756_815_4, 1.423_437_3];
const TAIL_BELOW: [f32; 3] = [0.120_211_33, 0.737_001_64, 1.0];

#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let [first, rest @ ..] = &coefficients[..] else {
        return 0.0;
    };
    rest.iter().fold(*first, |sum, next| sum * x + next)
}

fn polynomial_of<const N: usize>(x: &Tensor<2>, coefficients: [f32; N]) -> Tensor<2> {
    let [first, rest @ ..] = &coefficients[..] else {
        return x.zeros_like();
    };
    let first = x.zeros_like().add_scalar(*first);
    let add = |sum: Tensor<2>, next: &f32| (sum * x.clone()).add_scalar(*next);
    rest.iter().fold(first, add)
}

/// (word + 1/2) · 2⁻²³ − 1/2 for 23 bits: exact, and never ±1/2.
const HALF_STEP: f32 = 1.0 / (1 << 24) as f32;
const TWICE: f32 = 2.0 * STEP;

#[inline(always)]
fn quantile(word: u32) -> f32 {
    let from_middle = (word >> 9) as f32 * TWICE + (HALF_STEP - 0.5);
    let squared = MIDDLE_SQUARED - from_middle * from_middle;
    let middle =
        from_middle * polynomial(squared, MIDDLE_ABOVE) / polynomial(squared, MIDDLE_BELOW);
    let tail = (-(0.5 - from_middle.abs()).ln()).sqrt() - TAIL;
    let tail = polynomial(tail, TAIL_ABOVE) / polynomial(tail, TAIL_BELOW);
    if from_middle.abs() <= MIDDLE {
        middle
    } else {
        tail.copysign(from_middle)
    }
}

impl Draw for Normal {
    fn fill(&self, key: threefry::Key, first: u32, numbers: &mut [f32]) {
        threefry::fill(key, first, numbers, |words| words.map(quantile));
    }

    fn tensors(&self, words: [Tensor<2, Int>; 2]) -> [Tensor<2>; 2] {
        words.map(|words| {
            let bits = words.bitwise_right_shift_scalar(9);
            let bits = bits.float().cast(FloatDType::F32);
            let from_middle = bits.mul_scalar(TWICE).add_scalar(HALF_STEP - 0.5);
            let squared = from_middle
                .clone()
                .square()
                .neg()
                .add_scalar(MIDDLE_SQUARED);
            let middle = from_middle.clone() * polynomial_of(&squared, MIDDLE_ABOVE)
                / polynomial_of(&squared, MIDDLE_BELOW);
            let distance = from_middle.clone().abs();
            let tail = distance.clone().neg().add_scalar(0.5).log().neg().sqrt();
            let tail = tail.sub_scalar(TAIL);
            let tail = polynomial_of(&tail, TAIL_ABOVE) / polynomial_of(&tail, TAIL_BELOW);
            let tail = tail * from_middle.sign();
            middle.mask_where(distance.greater_elem(MIDDLE), tail)
        })
    }
}

struct Factors {
    bound: u32,
    value: f32,
}

impl Draw for Factors {
    fn fill(&self, key: threefry::Key, first: u32, numbers: &mut [f32]) {
        let is_kept = |word| (word < self.bound) | (self.bound == u32::MAX);
        let factor = |word| if is_kept(word) { self.value } else { 0.0 };
        threefry::fill(key, first, numbers, |words| words.map(factor));
    }

    fn tensors(&self, words: [Tensor<2, Int>; 2]) -> [Tensor<2>; 2] {
        words.map(|words| {
            if self.bound == u32::MAX {
                return Tensor::ones(words.dims(), &words.device()).mul_scalar(self.value);
            }
            let kept = words.lower_elem(self.bound).float();
            kept.cast(FloatDType::F32).mul_scalar(self.value)
        })
    }
}

impl Key {
    fn of_draw(&self, count: u32) -> threefry::Key {
        let halves = |number: u64| [number as u32, (number >> 32) as u32];
        let of_step = threefry::words(halves(self.step.seed), halves(self.step.step));
        threefry::words(of_step, [self.layer as u32, count])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(mut rng: KeyedRng, shape: [usize; 2]) -> Vec<f32> {
        let tensor = rng.uniform(shape, &Device::flex());
        tensor.into_data().try_to_vec().unwrap_or_default()
    }

    /// 1/4, 0.001 and 0.975 to 23 bits; the first two are in Wichura's paper.
    #[test]
    fn normal_numbers_are_quantiles() {
        for (p, expected) in [
            (0.25, -0.674_489_75),
            (0.001, -3.090_232_3),
            (0.975, 1.959_964),
            (0.5 + 0.43, 1.475_791),
            (0.5f64.powi(24), -5.294_704),
        ] {
            let word = ((p * 2f64.powi(23) - 0.5).round() as u32) << 9;
            let found = f64::from(quantile(word));
            assert!(
                (found - expected).abs() < 2e-4 * f64::abs(expected),
                "{p}: {found}"
            );
            let mirrored = f64::from(quantile(!word));
            assert!(
                (mirrored + found).abs() < 1e-6,
                "{p}: {found} and {mirrored}"
            );
        }
    }

    /// Seed, step, layer, sample and the index of the draw all make a difference.
    #[test]
    fn every_part_of_the_key_counts() {
        let device = Device::flex();
        let mut twice = KeyedRng::new(1, 2, 3, 4..6);
        let _ = twice.uniform([2, 8], &device);
        let all = [
            numbers(KeyedRng::new(1, 2, 3, 4..6), [2, 8]),
            numbers(KeyedRng::new(0, 2, 3, 4..6), [2, 8]),
            numbers(KeyedRng::new(1, 0, 3, 4..6), [2, 8]),
            numbers(KeyedRng::new(1, 2, 0, 4..6), [2, 8]),
            numbers(KeyedRng::new(1, 2, 3, 0..2), [2, 8]),
            numbers(twice, [2, 8]),
        ];
        for (index, some) in all.iter().enumerate() {
            assert_eq!(some.len(), 16);
            assert!(some.iter().all(|number| (0.0..1.0).contains(number)));
            assert_ne!(some[..8], some[8..], "samples draw alike");
            for other in &all[..index] {
                assert_ne!(some, other);
            }
        }
    }

    #[test]
    fn the_same_key_draws_the_same_numbers_however_the_batch_is_cut() {
        let whole = numbers(KeyedRng::new(1, 2, 3, 0..6), [12, 2]);
        let parts = [0..1, 1..4, 4..6]
            .map(|part| numbers(KeyedRng::new(1, 2, 3, part.clone()), [2 * part.len(), 2]));
        assert_eq!(whole, parts.concat());
        // No batch in the first dimension: drawn as a whole.
        assert_eq!(numbers(KeyedRng::new(1, 2, 3, 0..6), [5, 2]).len(), 10);
    }
}
