//! Where the numbers of a bucket's chunks lie.

use std::ops::Range;

/// The part of a tensor that belongs to a rank: slice `rank` of `ranks`, whose lengths differ by at
/// most one, longer ones first. [`Group::reduce_scatter`](crate::Group::reduce_scatter) leaves its sum
/// there.
///
/// ```
/// use stovepipe_collective::slice;
///
/// let slices = [0, 1, 2].map(|rank| slice(7, rank, 3));
/// assert_eq!(slices, [0..3, 3..5, 5..7]);
/// assert_eq!(slice(1, 2, 3), 1..1);
/// ```
#[must_use]
pub fn slice(length: usize, rank: usize, ranks: usize) -> Range<usize> {
    let start = |rank: usize| length / ranks * rank + rank.min(length % ranks);
    start(rank)..start(rank + 1)
}

/// A list of ranges, in tensors, that travel as one.
pub(crate) struct Chunk {
    /// A range of each tensor.
    ranges: Vec<Range<usize>>,
    /// Where each range begins in the chunk; then the chunk's length.
    starts: Vec<usize>,
}

/// Numbers that are adjacent in their tensor and in their piece of a chunk.
pub(crate) struct Run {
    pub(crate) tensor: usize,
    pub(crate) in_tensor: Range<usize>,
    pub(crate) in_piece: Range<usize>,
}

impl Chunk {
    pub(crate) fn new(ranges: impl Iterator<Item = Range<usize>>) -> Self {
        let ranges: Vec<_> = ranges.collect();
        let mut starts = vec![0];
        for range in &ranges {
            starts.push(starts[starts.len() - 1] + range.len());
        }
        Self { ranges, starts }
    }

    pub(crate) fn len(&self) -> usize {
        self.starts[self.ranges.len()]
    }

    /// How many numbers piece `piece` of `pieces` has.
    pub(crate) fn piece_len(&self, piece: usize, pieces: usize) -> usize {
        slice(self.len(), piece, pieces).len()
    }

    /// The runs of a piece, in order.
    pub(crate) fn runs(&self, piece: usize, pieces: usize) -> impl Iterator<Item = Run> {
        let piece = slice(self.len(), piece, pieces);
        let first = self.starts.partition_point(|start| *start <= piece.start) - 1;
        let last = self.starts.partition_point(|start| *start < piece.end);
        (first..last.min(self.ranges.len())).map(move |tensor| {
            let (start, range) = (self.starts[tensor], &self.ranges[tensor]);
            let from = piece.start.max(start);
            let to = piece.end.min(start + range.len()).max(from);
            Run {
                tensor,
                in_tensor: range.start + from - start..range.start + to - start,
                in_piece: from - piece.start..to - piece.start,
            }
        })
    }
}
