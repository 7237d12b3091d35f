//! Windows over a map as shifts of the whole map.
//!
//! Rows of a small map are too short for vectors, so a map is treated as one run of values: a
//! neighbour to the side is a shift by one, one above or below a shift by the map's width. A shift
//! to the side also brings in values of the next row, and one up or down values of the next map of
//! the run; masks hide them.

use std::ops::Range;

/// The shifts that a window makes over maps of its own size, of which several may lie in a run.
#[derive(Clone, Debug)]
pub(crate) struct Taps {
    map: [usize; 2],
    /// The window's rows and columns, and where its center is.
    size: [usize; 2],
    center: [usize; 2],
    /// For each row of the window, all ones where it meets the map and zero else.
    rows: Vec<Vec<u32>>,
    /// The same for each column.
    columns: Vec<Vec<u32>>,
}

/// A shift: the places it starts from, and those it meets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tap<'a> {
    /// Places of the window's center.
    pub(crate) centers: Range<usize>,
    /// The places that the tap meets from there, valid where the mask is set.
    pub(crate) met: Range<usize>,
    pub(crate) mask: &'a [u32],
}

impl Taps {
    /// For runs of up to `maps` maps, with masks of the first `rows` rows of the window;
    /// [`all`](Self::all) needs none.
    pub(crate) fn new(
        map: [usize; 2],
        size: [usize; 2],
        center: [usize; 2],
        maps: usize,
        rows: usize,
    ) -> Self {
        let [height, width] = map;
        let mask = |met: Option<usize>, length| match met {
            Some(met) if met < length => u32::MAX,
            _ => 0,
        };
        let row_mask = |tap: usize| {
            let of_row = |row: usize| vec![mask((row + tap).checked_sub(center[0]), height); width];
            let of_map: Vec<_> = (0..height).flat_map(of_row).collect();
            of_map.repeat(maps)
        };
        let column_mask = |tap: usize| {
            let of_column = |column: usize| mask((column + tap).checked_sub(center[1]), width);
            let of_row: Vec<_> = (0..width).map(of_column).collect();
            of_row.repeat(height * maps)
        };
        Self {
            map,
            size,
            center,
            rows: (0..rows).map(row_mask).collect(),
            columns: (0..size[1]).map(column_mask).collect(),
        }
    }

    #[inline(always)]
    pub(crate) fn all(&self) -> impl Iterator<Item = Tap<'_>> {
        let [height, width] = self.map;
        (0..self.size[0]).flat_map(move |row| {
            // The centers whose row meets the map are one run: only columns need a mask.
            let above = self.center[0].saturating_sub(row).min(height) * width;
            let below = row.saturating_sub(self.center[0]).min(height) * width;
            let end = (height * width - below).max(above);
            let masks = self.columns.iter().enumerate();
            masks.map(move |(column, mask)| {
                self.tap([row, column], above..end, height * width, mask)
            })
        })
    }

    /// The taps of the window's middle row over a run of `length` values.
    #[inline(always)]
    pub(crate) fn in_row(&self, length: usize) -> impl Iterator<Item = Tap<'_>> {
        let masks = self.columns.iter().enumerate();
        masks.map(move |(column, mask)| self.tap([self.center[0], column], 0..length, length, mask))
    }

    /// The taps of the window's middle column over a run of `length` values.
    #[inline(always)]
    pub(crate) fn in_column(&self, length: usize) -> impl Iterator<Item = Tap<'_>> {
        let masks = self.rows.iter().enumerate();
        masks.map(move |(row, mask)| self.tap([row, self.center[1]], 0..length, length, mask))
    }

    /// A tap from those `centers` from which it stays within a run of `length` values.
    #[inline(always)]
    fn tap<'a>(
        &self,
        [row, column]: [usize; 2],
        centers: Range<usize>,
        length: usize,
        mask: &'a [u32],
    ) -> Tap<'a> {
        let width = self.map[1];
        let to = row * width + column;
        let from = self.center[0] * width + self.center[1];
        let (forth, back) = (to.saturating_sub(from), from.saturating_sub(to));
        let first = centers.start.max(back);
        let end = centers.end.min(length.saturating_sub(forth));
        if first >= end {
            return Tap::default();
        }
        Tap {
            centers: first..end,
            met: first + forth - back..end + forth - back,
            mask: &mask[first..end],
        }
    }
}

/// The value where the mask is set, else `other`.
#[inline(always)]
pub(crate) fn masked(value: f32, mask: u32, other: f32) -> f32 {
    f32::from_bits((value.to_bits() & mask) | (other.to_bits() & !mask))
}
