//! Finds the nearest small number in a long list.

use std::ops::Range;

/// Large enough to skip much, small enough to be searched at once.
const BLOCK: usize = 64;

#[derive(Default)]
pub(super) struct BlockMinima {
    numbers: Vec<f64>,
    /// The least of each block of numbers.
    least: Vec<f64>,
}

impl BlockMinima {
    pub fn push(&mut self, number: f64) {
        match self.least.last_mut() {
            Some(least) if !self.numbers.len().is_multiple_of(BLOCK) => *least = least.min(number),
            _ => self.least.push(number),
        }
        self.numbers.push(number);
    }

    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    pub fn get(&self, place: usize) -> f64 {
        self.numbers[place]
    }

    /// The first place in the range with a small number. If a number is `small`, so must be all lesser ones.
    pub fn first(&self, range: &Range<usize>, small: impl Fn(f64) -> bool) -> Option<usize> {
        let mut blocks = self.blocks(range).filter(|&block| small(self.least[block]));
        blocks.find_map(|block| part(range, block).find(|&place| small(self.numbers[place])))
    }

    /// The last such place.
    pub fn last(&self, range: &Range<usize>, small: impl Fn(f64) -> bool) -> Option<usize> {
        let blocks = self.blocks(range).rev();
        let mut blocks = blocks.filter(|&block| small(self.least[block]));
        blocks.find_map(|block| part(range, block).rfind(|&place| small(self.numbers[place])))
    }

    fn blocks(&self, range: &Range<usize>) -> Range<usize> {
        range.start / BLOCK..range.end.div_ceil(BLOCK)
    }
}

/// The part of a range that is in a block.
fn part(range: &Range<usize>, block: usize) -> Range<usize> {
    range.start.max(block * BLOCK)..range.end.min((block + 1) * BLOCK)
}
