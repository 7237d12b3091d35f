//! Products of matrices that lie in slices, row by row.

use std::ops::Range;

use faer::{Accum, MatMut, MatRef, Par, linalg::matmul::matmul};

/// All of a slice as a matrix.
pub(crate) fn matrix(numbers: &[f32], rows: usize, columns: usize) -> MatRef<'_, f32> {
    MatRef::from_row_major_slice(numbers, rows, columns)
}

/// All of a slice as a matrix to write to.
pub(crate) fn matrix_mut(numbers: &mut [f32], rows: usize, columns: usize) -> MatMut<'_, f32> {
    MatMut::from_row_major_slice_mut(numbers, rows, columns)
}

/// Some columns of a matrix whose rows have `width` numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns {
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) width: usize,
}

impl Columns {
    /// Those columns of some rows.
    pub(crate) fn of<'a>(&self, numbers: &'a [f32], rows: Range<usize>) -> MatRef<'a, f32> {
        let begin = rows.start * self.width + self.first;
        let (count, width) = (self.count, self.width);
        MatRef::from_row_major_slice_with_stride(&numbers[begin..], rows.len(), count, width)
    }

    pub(crate) fn of_mut<'a>(&self, numbers: &'a mut [f32], rows: Range<usize>) -> MatMut<'a, f32> {
        let begin = rows.start * self.width + self.first;
        let (count, width) = (self.count, self.width);
        // faer's constructor for rows with a stride, of its version 0.24, writes beyond them.
        let numbers = &mut numbers[begin..];
        MatMut::from_column_major_slice_with_stride_mut(numbers, count, rows.len(), width)
            .transpose_mut()
    }
}

/// target = factor · a · b
pub(crate) fn multiply(
    target: MatMut<'_, f32>,
    a: MatRef<'_, f32>,
    b: MatRef<'_, f32>,
    factor: f32,
) {
    matmul(target, Accum::Replace, a, b, factor, Par::Seq);
}

/// target += a · b
pub(crate) fn multiply_and_add(target: MatMut<'_, f32>, a: MatRef<'_, f32>, b: MatRef<'_, f32>) {
    matmul(target, Accum::Add, a, b, 1.0, Par::Seq);
}
