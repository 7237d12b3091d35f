//! Which numbers dropout keeps.

use std::ops::Range;

use burn::tensor::{Device, FloatDType, Int, Tensor};

use super::{
    bits::Bits,
    draw::{Draw, Kind},
    threefry::{self, Key},
};

/// Factors of dropout: a value with a probability, otherwise 0. They are drawn when they are used. For a backward pass,
/// the CPU keeps a bit of each in f32, for each sample a multiple of 512. What computes with other types, and other
/// devices, draw them again.
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    draw: Draw,
    /// Words below it are kept, and all if it is the largest.
    bound: u32,
    value: f32,
}

impl Mask {
    /// `value` with probability `keep`, otherwise 0.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use stovepipe_kernels::random::{Draw, Mask};
    ///
    /// let draw = Draw { key: [3, 4], first: 0, samples: 2, each: 10_000 };
    /// let factors = Mask::new(draw, 0.75, 2.0).factors(&Device::flex());
    /// assert!(factors.to_data().iter::<f32>().all(|factor| factor == 0.0 || factor == 2.0));
    /// assert!((factors.mean().into_scalar::<f32>() - 1.5).abs() < 0.02);
    /// ```
    #[must_use]
    pub fn new(draw: Draw, keep: f64, value: f64) -> Self {
        Self {
            draw,
            bound: (keep * 2f64.powi(32)) as u32,
            value: value as f32,
        }
    }

    pub(crate) fn samples(&self) -> usize {
        self.draw.samples
    }

    /// How many numbers there are.
    pub(crate) fn count(&self) -> usize {
        self.draw.samples * self.draw.each
    }

    /// The factors, `[samples, each]`.
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
        Bits::new(self.draw, self.value, |word| self.keeps(word))
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
                let mask = Mask::new(draw, keep, value);
                let factors = mask.factors(&Device::flex()).into_data();
                let factors: Vec<f32> = factors.try_to_vec().unwrap();
                let bits = mask.bits();
                let all = factors.len();
                for begin in [0, 1, each / 3, each / 2, each - 1, all / 2, all - 1] {
                    for end in [begin, begin + 40, begin + each, all] {
                        let end = end.min(all);
                        let mut numbers = vec![1.0; end - begin];
                        bits.multiply(begin, &mut numbers);
                        assert_eq!(numbers, factors[begin..end], "{begin} of {each}");
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
        let mask = Mask::new(draw, 0.5, 2.0);
        let all = mask.factors(&Device::flex()).narrow(0, 1, 2).into_data();
        assert_eq!(mask.of(&(1..3)).factors(&Device::flex()).into_data(), all);
    }
}
