//! Random numbers that a layer can draw again.
//!
//! Each number is a function of a key: the seed, the step, the layer, the index of the layer's draw, and the
//! sample. So a recomputed layer draws the same numbers again, and a pipeline draws what the whole mini-batch
//! would draw in one piece, whatever the threads, the micro-batches and the cut. They are drawn where they are
//! used: on a GPU by tensor operations, with the same bits for all but normal numbers.

use std::ops::Range;

use burn::tensor::{Device, Tensor};
use stovepipe_kernels::random::{self, Draw, Mask};

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
        self.draw(shape, device, |draw, device| draw.uniform(device))
    }

    /// Normal numbers with mean 0 and variance 1; zeros in evaluation. Shapes as in
    /// [`uniform`](Self::uniform).
    #[must_use]
    pub fn normal<const D: usize>(&mut self, shape: [usize; D], device: &Device) -> Tensor<D> {
        self.draw(shape, device, |draw, device| draw.normal(device))
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
        self.draw(shape, device, |draw, device| {
            Mask::new(draw, keep, 1.0).factors(device)
        })
    }

    /// Which numbers of this shape dropout keeps, each with probability `keep` and then multiplied by `value`. `None`
    /// if nothing is drawn. Shapes as in [`uniform`](Self::uniform).
    pub(crate) fn mask(&mut self, (keep, value): (f64, f64), shape: &[usize]) -> Option<Mask> {
        Some(Mask::new(self.next(shape)?, keep, value))
    }

    /// A tensor of drawn numbers.
    fn draw<const D: usize>(
        &mut self,
        shape: [usize; D],
        device: &Device,
        numbers: impl FnOnce(Draw, &Device) -> Tensor<2>,
    ) -> Tensor<D> {
        match self.next(&shape) {
            Some(draw) => numbers(draw, device).reshape(shape),
            None => Tensor::zeros(shape, device),
        }
    }

    /// The next draw, of a tensor with this shape.
    fn next(&mut self, shape: &[usize]) -> Option<Draw> {
        let total: usize = shape.iter().product();
        let key = self.key.as_ref().filter(|_| total > 0)?;
        let samples = key.samples.len();
        let of_samples = samples > 0 && shape.first()?.is_multiple_of(samples);
        let samples = if of_samples { samples } else { 1 };
        let draw = Draw {
            key: key.of_draw(self.count),
            first: key.samples.start as u32,
            samples,
            each: total / samples,
        };
        self.count += 1;
        Some(draw)
    }
}

impl Key {
    fn of_draw(&self, count: u32) -> random::Key {
        let halves = |number: u64| [number as u32, (number >> 32) as u32];
        let of_step = random::words(halves(self.step.seed), halves(self.step.step));
        random::words(of_step, [self.layer as u32, count])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(mut rng: KeyedRng, shape: [usize; 2]) -> Vec<f32> {
        let tensor = rng.uniform(shape, &Device::flex());
        tensor.into_data().try_to_vec().unwrap_or_default()
    }

    /// Numbers that another program made of the published generator. Trainings that resume depend on them.
    #[test]
    fn numbers_stay_what_they_are() {
        let (mut rng, device) = (KeyedRng::new(1, (1 << 32) + 7, 3, 2..4), Device::flex());
        let of_24_bits = rng.uniform([2, 5], &device).mul_scalar(1 << 24);
        let expected = [
            4_627_541, 13_732_323, 7_921_304, 1_927_814, 13_949_624, 15_775_269, 2_540_997,
            1_609_799, 14_145_901, 6_887_600,
        ];
        assert!(
            of_24_bits
                .into_data()
                .iter::<f64>()
                .eq(expected.map(f64::from))
        );
        let kept = rng.keep(0.75, [2, 5], &device).into_data();
        let expected = [1, 1, 1, 0, 1, 1, 0, 1, 1, 0];
        assert!(kept.iter::<f64>().eq(expected.map(f64::from)));
        let factors = rng
            .mask((0.5, 2.0), &[2, 5])
            .map(|mask| mask.factors(&device).into_data());
        let expected = [0, 0, 0, 2, 2, 2, 2, 0, 2, 2];
        assert!(factors.is_some_and(|factors| factors.iter::<f64>().eq(expected.map(f64::from))));
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
