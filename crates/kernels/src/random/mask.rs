//! Which numbers dropout keeps.

use std::{ops::Range, sync::Arc};

use burn::tensor::{Device, FloatDType, Int, Tensor};
use rayon::prelude::*;

use super::{
    numbers::{Draw, Kind, SHARE},
    threefry::{self, BLOCK, Key},
};
use crate::planes::vectorised;

/// Bits of numbers that follow each other lie in so many words, so that a vector has all of them at once.
const LANES: usize = BLOCK / 32;

/// Factors of dropout: a value with a probability, otherwise 0. They are drawn when they are used. What a backward pass
/// needs of them is a bit each on the CPU, and elsewhere drawn again.
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    draw: Draw,
    /// Words below it are kept, and all if it is the largest.
    bound: u32,
    value: f32,
}

impl Mask {
    pub(super) fn new(draw: Draw, keep: f64, value: f64) -> Self {
        Self {
            draw,
            bound: (keep * 2f64.powi(32)) as u32,
            value: value as f32,
        }
    }

    /// Samples, and numbers of each.
    #[must_use]
    pub fn dims(&self) -> [usize; 2] {
        [self.draw.samples, self.draw.each]
    }

    /// The factors, `[samples, each]`.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use stovepipe_kernels::random::Draw;
    ///
    /// let mask = Draw { key: [3, 4], first: 0, samples: 2, each: 100 }.mask(0.5, 2.0);
    /// assert_eq!(mask.dims(), [2, 100]);
    /// let factors = mask.factors(&Device::flex()).to_data();
    /// assert!(factors.iter::<f32>().all(|factor| factor == 0.0 || factor == 2.0));
    /// ```
    #[must_use]
    pub fn factors(&self, device: &Device) -> Tensor<2> {
        self.draw.numbers(self, device)
    }

    /// Those of some samples.
    pub(crate) fn of(&self, samples: &Range<usize>) -> Self {
        let draw = Draw {
            first: self.draw.first.wrapping_add(samples.start as u32),
            samples: samples.len(),
            ..self.draw
        };
        Self { draw, ..*self }
    }

    /// All of them, on the CPU.
    pub(crate) fn bits(&self) -> Bits {
        let half = self.draw.each.div_ceil(2);
        let stride = half.div_ceil(BLOCK) * LANES;
        let mut words = vec![0; 2 * stride * self.draw.samples];
        let samples = words.par_chunks_mut((2 * stride).max(1)).enumerate();
        samples.for_each(|(sample, words)| {
            let first = self.draw.first.wrapping_add(sample as u32);
            let (one, other) = words.split_at_mut(stride);
            let parts = one.par_chunks_mut(SHARE / 32);
            let parts = parts.zip(other.par_chunks_mut(SHARE / 32)).enumerate();
            parts.for_each(|(part, halves)| {
                let counter = [first, (part * SHARE) as u32];
                self.draw_bits(counter, halves.into());
            });
        });
        Bits {
            words: Arc::new(words),
            half,
            stride,
            value: self.value,
        }
    }

    /// Those of the counters from this one on.
    fn draw_bits(&self, [first, second]: [u32; 2], halves: [&mut [u32]; 2]) {
        let mut drawn = [[0; BLOCK]; 2];
        let [one, other] = halves.map(|words| words.chunks_mut(LANES));
        for (index, halves) in one.zip(other).enumerate() {
            let counter = [first, second.wrapping_add((index * BLOCK) as u32)];
            threefry::block(self.draw.key, counter, &mut drawn);
            vectorised!(
                || for (bits, drawn) in <[_; 2]>::from(halves).into_iter().zip(&drawn) {
                    bits.copy_from_slice(&self.packed(drawn));
                }
            );
        }
    }

    #[inline(always)]
    fn packed(&self, drawn: &[u32; BLOCK]) -> [u32; LANES] {
        let (drawn, _) = drawn.as_chunks::<LANES>();
        let mut bits = [0; LANES];
        for (bit, drawn) in drawn.iter().enumerate() {
            for (bits, &word) in bits.iter_mut().zip(drawn) {
                *bits |= u32::from(self.keeps(word)) << bit;
            }
        }
        bits
    }

    #[inline(always)]
    fn keeps(&self, word: u32) -> bool {
        (word < self.bound) | (self.bound == u32::MAX)
    }
}

impl Kind for Mask {
    fn fill(&self, key: Key, first: u32, numbers: &mut [f32]) {
        let factor = |word| if self.keeps(word) { self.value } else { 0.0 };
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

/// A mask, drawn: a bit for each number.
#[derive(Clone, Debug)]
pub(crate) struct Bits {
    /// Of each sample, those of the first words, then those of the second ones.
    words: Arc<Vec<u32>>,
    /// Numbers of a sample that are made of first words.
    half: usize,
    /// Words for a half.
    stride: usize,
    value: f32,
}

impl Bits {
    /// Multiplies numbers of a sample, from its n-th on, by their factors.
    #[inline(always)]
    pub(crate) fn multiply(&self, sample: usize, begin: usize, numbers: &mut [f32]) {
        let (one, other) =
            self.words[2 * self.stride * sample..][..2 * self.stride].split_at(self.stride);
        let of_one = numbers.len().min(self.half.saturating_sub(begin));
        let (firsts, seconds) = numbers.split_at_mut(of_one);
        self.multiply_by(one, begin, firsts);
        self.multiply_by(other, (begin + of_one).saturating_sub(self.half), seconds);
    }

    #[inline(always)]
    fn multiply_by(&self, words: &[u32], begin: usize, numbers: &mut [f32]) {
        let (words, _) = words.as_chunks::<LANES>();
        let before = begin.next_multiple_of(LANES) - begin;
        let (first, rest) = numbers.split_at_mut(before.min(numbers.len()));
        let (whole, last) = rest.as_chunks_mut::<LANES>();
        let mut place = begin / LANES;
        if !first.is_empty() {
            let factors = self.factors(&words[place / 32], place % 32);
            multiply(first, &factors[begin % LANES..]);
            place += 1;
        }
        for numbers in whole {
            multiply(numbers, &self.factors(&words[place / 32], place % 32));
            place += 1;
        }
        if !last.is_empty() {
            multiply(last, &self.factors(&words[place / 32], place % 32));
        }
    }

    #[inline(always)]
    fn factors(&self, words: &[u32; LANES], bit: usize) -> [f32; LANES] {
        let mut factors = [0.0; LANES];
        for (factor, word) in factors.iter_mut().zip(words) {
            let is_kept = word >> bit & 1 == 1;
            *factor = if is_kept { self.value } else { 0.0 };
        }
        factors
    }
}

#[inline(always)]
fn multiply(numbers: &mut [f32], factors: &[f32]) {
    let pairs = numbers.iter_mut().zip(factors);
    pairs.for_each(|(number, factor)| *number *= factor);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Halves that begin within a word, and parts that begin and end anywhere.
    #[test]
    fn bits_are_those_of_the_factors() {
        for (samples, each) in [
            (1, 1),
            (3, 2),
            (2, 63),
            (2, 64),
            (3, 515),
            (2, 1201),
            (1, 150_000),
        ] {
            for (keep, value) in [(0.3, 2.5), (1.0, 1.0), (0.0, 1.0)] {
                let draw = Draw {
                    key: [7, 9],
                    first: u32::MAX,
                    samples,
                    each,
                };
                let mask = draw.mask(keep, value);
                let factors = mask.factors(&Device::flex()).into_data();
                let factors: Vec<f32> = factors.try_to_vec().unwrap();
                let bits = mask.bits();
                for sample in 0..samples {
                    let expected = &factors[sample * each..][..each];
                    for begin in [0, 1, each / 3, each / 2, each - 1] {
                        for end in [begin, (begin + 40).min(each), each] {
                            let mut numbers = vec![1.0; end.max(begin) - begin];
                            bits.multiply(sample, begin, &mut numbers);
                            assert_eq!(
                                numbers,
                                expected[begin..end.max(begin)],
                                "{begin} of {each}"
                            );
                        }
                    }
                }
                let kept = factors.iter().filter(|&&factor| factor != 0.0).count() as f64;
                let share = kept / factors.len() as f64;
                assert!(
                    (share - keep).abs() < 2.0 / (factors.len() as f64).sqrt(),
                    "{share}"
                );
            }
        }
    }

    #[test]
    fn some_samples_have_their_own_factors() {
        let draw = Draw {
            key: [1, 2],
            first: 5,
            samples: 4,
            each: 33,
        };
        let mask = draw.mask(0.5, 2.0);
        let all = mask.factors(&Device::flex()).narrow(0, 1, 2).into_data();
        assert_eq!(mask.of(&(1..3)).factors(&Device::flex()).into_data(), all);
    }
}
