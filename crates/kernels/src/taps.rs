//! A map and the same map shifted, number by number.
//!
//! Rows of a small map are too short for vectors, so a map is treated as one run of numbers: its
//! neighbours to the side are a shift by one, those above and below a shift by its width. A shift
//! to the side brings numbers in from the next row at the edges; masks leave them out.

use std::ops::Range;

/// The shifts that a window makes over a map of its own size.
#[derive(Clone, Debug)]
pub(crate) struct Taps {
    map: [usize; 2],
    /// The window's rows and columns, and where its center is.
    size: [usize; 2],
    center: [usize; 2],
    /// For each column of the window, all ones where it meets the map and zero else.
    masks: Vec<Vec<u32>>,
}

/// A shift: what it meets, and where.
#[derive(Clone, Debug)]
pub(crate) struct Tap<'a> {
    /// Places of the window's center.
    pub(crate) centers: Range<usize>,
    /// The places that the tap meets from there; but only where the mask is.
    pub(crate) met: Range<usize>,
    pub(crate) mask: &'a [u32],
}

impl Taps {
    pub(crate) fn new(map: [usize; 2], size: [usize; 2], center: [usize; 2]) -> Self {
        let [height, width] = map;
        let mask = |column: usize| {
            let meets = |center_at: usize| {
                let met = (center_at + column).checked_sub(center[1]);
                met.is_some_and(|met| met < width)
            };
            let row: Vec<_> = (0..width)
                .map(|at| if meets(at) { u32::MAX } else { 0 })
                .collect();
            row.repeat(height)
        };
        Self {
            map,
            size,
            center,
            masks: (0..size[1]).map(mask).collect(),
        }
    }

    /// All taps, row by row.
    #[inline(always)]
    pub(crate) fn all(&self) -> impl Iterator<Item = Tap<'_>> {
        let [rows, columns] = self.size;
        (0..rows).flat_map(move |row| (0..columns).map(move |column| self.at(row, column)))
    }

    /// The taps of the window's middle row.
    #[inline(always)]
    pub(crate) fn in_row(&self) -> impl Iterator<Item = Tap<'_>> {
        (0..self.size[1]).map(|column| self.at(self.center[0], column))
    }

    /// The taps of the window's middle column.
    #[inline(always)]
    pub(crate) fn in_column(&self) -> impl Iterator<Item = Tap<'_>> {
        (0..self.size[0]).map(|row| self.at(row, self.center[1]))
    }

    #[inline(always)]
    fn at(&self, row: usize, column: usize) -> Tap<'_> {
        let [height, width] = self.map;
        let above = self.center[0].saturating_sub(row);
        let below = row.saturating_sub(self.center[0]);
        let (left, right) = (
            self.center[1].saturating_sub(column),
            column.saturating_sub(self.center[1]),
        );
        // Centers whose row meets the map, but for those at the very ends whose column does not.
        let first = above * width + left;
        let last = (height * width).saturating_sub(below * width + right);
        let centers = match first < last {
            true => first..last,
            false => return self.nowhere(column),
        };
        let met = |center: usize| center + below * width + right - (above * width + left);
        Tap {
            met: met(centers.start)..met(centers.end),
            mask: &self.masks[column][centers.clone()],
            centers,
        }
    }

    /// A tap beyond the map.
    fn nowhere(&self, column: usize) -> Tap<'_> {
        Tap {
            centers: 0..0,
            met: 0..0,
            mask: &self.masks[column][0..0],
        }
    }
}

/// The number where the mask is, else `other`.
#[inline(always)]
pub(crate) fn masked(number: f32, mask: u32, other: f32) -> f32 {
    f32::from_bits((number.to_bits() & mask) | (other.to_bits() & !mask))
}
