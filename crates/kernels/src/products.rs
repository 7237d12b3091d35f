//! Products of row-major matrices in slices.

use std::ops::Range;

use faer::{Accum, MatMut, MatRef, Par, linalg::matmul::matmul};

pub(crate) fn matrix(values: &[f32], rows: usize, columns: usize) -> MatRef<'_, f32> {
    MatRef::from_row_major_slice(values, rows, columns)
}

pub(crate) fn matrix_mut(values: &mut [f32], rows: usize, columns: usize) -> MatMut<'_, f32> {
    MatMut::from_row_major_slice_mut(values, rows, columns)
}

/// Some columns of a matrix whose rows have `width` values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns {
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) width: usize,
}

impl Columns {
    /// The n-th `count` of `width`.
    pub(crate) fn nth(n: usize, count: usize, width: usize) -> Self {
        let first = n * count;
        Self {
            first,
            count,
            width,
        }
    }

    pub(crate) fn of<'a>(&self, values: &'a [f32], rows: Range<usize>) -> MatRef<'a, f32> {
        let values = &values[rows.start * self.width + self.first..];
        MatRef::from_row_major_slice_with_stride(values, rows.len(), self.count, self.width)
    }

    pub(crate) fn of_mut<'a>(&self, values: &'a mut [f32], rows: Range<usize>) -> MatMut<'a, f32> {
        // The constructor for rows with a stride of faer 0.24 writes beyond them.
        let values = &mut values[rows.start * self.width + self.first..];
        MatMut::from_column_major_slice_with_stride_mut(values, self.count, rows.len(), self.width)
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
