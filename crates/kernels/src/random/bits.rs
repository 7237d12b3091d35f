//! A mask on the CPU, in bits.

use std::sync::Arc;

use rayon::prelude::*;

use super::{
    draw::{Draw, SHARE},
    threefry::{self, BLOCK},
};
use crate::planes::vectorised;

/// Bits of numbers that follow each other lie in so many words, so that a vector has all of them at once.
const LANES: usize = BLOCK / 32;

/// A mask, drawn: a bit for each number.
#[derive(Clone, Debug)]
pub(crate) struct Bits {
    /// Of each sample, those of the first words, then those of the second ones.
    words: Arc<Vec<u32>>,
    /// Numbers of a sample.
    each: usize,
    /// Words for a half of a sample.
    stride: usize,
    /// What kept numbers are multiplied by.
    value: f32,
}

impl Bits {
    /// Draws at least one number, and keeps those whose words `keeps` wants.
    pub(super) fn new(draw: Draw, value: f32, keeps: impl Fn(u32) -> bool + Sync) -> Self {
        let stride = draw.each.div_ceil(2).div_ceil(BLOCK) * LANES;
        let mut words = vec![0; 2 * stride * draw.samples];
        draw.for_samples(&mut words, &|first, words| {
            let (one, other) = words.split_at_mut(stride);
            let parts = one.par_chunks_mut(SHARE / 32);
            let parts = parts.zip(other.par_chunks_mut(SHARE / 32)).enumerate();
            parts.for_each(|(part, (one, other))| {
                let mut drawn = [[0; BLOCK]; 2];
                let blocks = one.chunks_mut(LANES).zip(other.chunks_mut(LANES));
                for (block, halves) in blocks.enumerate() {
                    let second = (part * SHARE + block * BLOCK) as u32;
                    threefry::block(draw.key, [first, second], &mut drawn);
                    vectorised!(|| {
                        for (bits, drawn) in <[_; 2]>::from(halves).into_iter().zip(&drawn) {
                            bits.copy_from_slice(&packed(drawn, &keeps));
                        }
                    });
                }
            });
        });
        Self {
            words: Arc::new(words),
            each: draw.each,
            stride,
            value,
        }
    }

    /// Multiplies numbers, from the n-th of all samples on, by their factors.
    #[inline(always)]
    pub(crate) fn multiply(&self, begin: usize, mut numbers: &mut [f32]) {
        let (mut sample, mut begin) = (begin / self.each, begin % self.each);
        while !numbers.is_empty() {
            let length = numbers.len().min(self.each - begin);
            let (own, rest) = numbers.split_at_mut(length);
            self.multiply_sample(sample, begin, own);
            (sample, begin, numbers) = (sample + 1, 0, rest);
        }
    }

    #[inline(always)]
    fn multiply_sample(&self, sample: usize, begin: usize, numbers: &mut [f32]) {
        let own = &self.words[2 * self.stride * sample..][..2 * self.stride];
        let (one, other) = own.split_at(self.stride);
        let half = self.each.div_ceil(2);
        let (firsts, seconds) = numbers.split_at_mut(numbers.len().min(half.saturating_sub(begin)));
        self.multiply_half(one, begin, firsts);
        self.multiply_half(other, begin.saturating_sub(half), seconds);
    }

    #[inline(always)]
    fn multiply_half(&self, words: &[u32], begin: usize, numbers: &mut [f32]) {
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

#[inline(always)]
fn packed(drawn: &[u32; BLOCK], keeps: &impl Fn(u32) -> bool) -> [u32; LANES] {
    let (drawn, _) = drawn.as_chunks::<LANES>();
    let mut bits = [0; LANES];
    for (bit, drawn) in drawn.iter().enumerate() {
        for (bits, &word) in bits.iter_mut().zip(drawn) {
            *bits |= u32::from(keeps(word)) << bit;
        }
    }
    bits
}
