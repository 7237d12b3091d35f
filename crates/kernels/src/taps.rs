//! A map and the same map shifted, number by number.
//!
//! Rows of a small map are too short for vectors, so a map is treated as one run of numbers: its
//! neighbours to the side are a shift by one, those above and below a shift by its width. A shift
//! to the side brings numbers in from the next row at the edges, and one up or down from the next
//! map where several lie in a run; masks leave them out.

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
    /// For [`all`](Self::all) over one map, which needs no masks of rows.
    pub(crate) fn over_a_map(map: [usize; 2], size: [usize; 2], center: [usize; 2]) -> Self {
        Self::new(map, size, center, 1, 0)
    }

    /// For runs of up to `maps` maps.
    pub(crate) fn over_maps(
        map: [usize; 2],
        size: [usize; 2],
        center: [usize; 2],
        maps: usize,
    ) -> Self {
        Self::new(map, size, center, maps, size[0])
    }

    /// With masks of the first `rows` rows of the window.
    fn new(
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
            (0..height)
                .flat_map(of_row)
                .collect::<Vec<_>>()
                .repeat(maps)
        };
        let column_mask = |tap: usize| {
            let of_column = |column: usize| mask((column + tap).checked_sub(center[1]), width);
            (0..width)
                .map(of_column)
                .collect::<Vec<_>>()
                .repeat(height * maps)
        };
        Self {
            map,
            size,
            center,
            rows: (0..rows).map(row_mask).collect(),
            columns: (0..size[1]).map(column_mask).collect(),
        }
    }

    /// All taps over one map, row by row.
    #[inline(always)]
    pub(crate) fn all(&self) -> impl Iterator<Item = Tap<'_>> {
        let [height, width] = self.map;
        let [rows, columns] = self.size;
        (0..rows).flat_map(move |row| {
            // The centers whose row meets the map are one run: only columns need a mask.
            let above = self.center[0].saturating_sub(row).min(height) * width;
            let below = row.saturating_sub(self.center[0]).min(height) * width;
            let end = (height * width - below).max(above);
            (0..columns).map(move |column| {
                self.tap(
                    [row, column],
                    above..end,
                    height * width,
                    &self.columns[column],
                )
            })
        })
    }

    /// The taps of the window's middle row over a run of `length` numbers.
    #[inline(always)]
    pub(crate) fn in_row(&self, length: usize) -> impl Iterator<Item = Tap<'_>> {
        let masks = self.columns.iter().enumerate();
        masks.map(move |(column, mask)| self.tap([self.center[0], column], 0..length, length, mask))
    }

    /// The taps of the window's middle column over a run of `length` numbers.
    #[inline(always)]
    pub(crate) fn in_column(&self, length: usize) -> impl Iterator<Item = Tap<'_>> {
        let masks = self.rows.iter().enumerate();
        masks.map(move |(row, mask)| self.tap([row, self.center[1]], 0..length, length, mask))
    }

    /// A tap from those of `centers` from which it does not leave a run of `length` numbers.
    #[inline(always)]
    fn tap<'a>(
        &self,
        [row, column]: [usize; 2],
        centers: Range<usize>,
        length: usize,
        mask: &'a [u32],
    ) -> Tap<'a> {
        let width = self.map[1];
        let (to, from) = (
            row * width + column,
            self.center[0] * width + self.center[1],
        );
        let (forth, back) = (to.saturating_sub(from), from.saturating_sub(to));
        let first = centers.start.max(back);
        let end = centers.end.min(length.saturating_sub(forth));
        if first >= end {
            return Tap {
                centers: 0..0,
                met: 0..0,
                mask: &[],
            };
        }
        Tap {
            centers: first..end,
            met: first + forth - back..end + forth - back,
            mask: &mask[first..end],
        }
    }
}

/// The number where the mask is, else `other`.
#[inline(always)]
pub(crate) fn masked(number: f32, mask: u32, other: f32) -> f32 {
    f32::from_bits((number.to_bits() & mask) | (other.to_bits() & !mask))
}
