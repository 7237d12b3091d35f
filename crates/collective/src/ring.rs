//! The way of pieces around a ring.
//!
//! A piece travels with the number of ranks that it has passed, its *step*. Each rank begins the pieces of
//! one chunk, takes what the rank before it sends, and passes it on, in the order in which it arrives.
//! A rank has only a few of its pieces under way, so that buffers stay in the processor's cache.

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};

use crate::{
    chunks::{Chunk, slice},
    header::Operation,
    number::{Number, add, finish},
};

/// Which chunks go how far.
pub(crate) struct Route {
    operation: Operation,
    place: usize,
    ranks: usize,
    chunks: Vec<Chunk>,
    /// Each chunk is cut into so many.
    pub(crate) pieces: usize,
}

impl Route {
    /// For tensors of these lengths; a piece has no more than `largest` numbers.
    pub(crate) fn new(
        operation: Operation,
        (place, ranks): (usize, usize),
        lengths: &[usize],
        largest: usize,
    ) -> Self {
        let count = match operation {
            Operation::Broadcast(_) => 1,
            _ => ranks,
        };
        let ranges = |chunk| {
            lengths
                .iter()
                .map(move |length| slice(*length, chunk, count))
        };
        let chunks: Vec<_> = (0..count).map(|chunk| Chunk::new(ranges(chunk))).collect();
        // Chunk 0 is the longest.
        let pieces = chunks[0].len().div_ceil(largest);
        Self {
            operation,
            place,
            ranks,
            chunks,
            pieces,
        }
    }

    /// The step of this rank's own pieces when they leave it; `None` if it begins none.
    pub(crate) fn first(&self) -> Option<usize> {
        match self.operation {
            Operation::AllReduce(_) | Operation::ReduceScatter(_) => Some(0),
            Operation::AllGather => Some(self.ranks - 1),
            Operation::Broadcast(root) => (root == self.place).then_some(0),
        }
    }

    /// The steps of what arrives at this rank: in the first half of an all-reduce the first N − 1.
    pub(crate) fn steps(&self) -> Range<usize> {
        let half = self.ranks - 1;
        match self.operation {
            Operation::AllReduce(_) => 0..2 * half,
            Operation::ReduceScatter(_) => 0..half,
            Operation::AllGather => half..2 * half,
            Operation::Broadcast(root) => {
                let step = (self.place + half - root) % self.ranks;
                step..step + 1
            }
        }
    }

    /// The chunk of a piece that leaves a place with this step: chunk c begins at rank c + 1.
    fn chunk(&self, place: usize, step: usize) -> &Chunk {
        let chunk = (place + 2 * self.ranks - 1 - step) % self.ranks;
        &self.chunks[chunk % self.chunks.len()]
    }

    /// Copies one of this rank's own pieces into a buffer.
    pub(crate) fn begin<T: Number>(
        &self,
        (step, piece): (usize, usize),
        mut buffer: Vec<u8>,
        tensors: &[&mut [T]],
    ) -> Vec<u8> {
        buffer.clear();
        for run in self.chunk(self.place, step).runs(piece, self.pieces) {
            buffer.extend_from_slice(cast_slice(&tensors[run.tensor][run.in_tensor]));
        }
        buffer
    }

    /// The bytes of a piece that arrives.
    pub(crate) fn arriving<T: Number>(&self, (step, piece): (usize, usize)) -> usize {
        match self.operation {
            Operation::Broadcast(_) if step == self.ranks - 1 => 0,
            _ => {
                self.chunk(self.before(), step)
                    .piece_len(piece, self.pieces)
                    * size_of::<T>()
            }
        }
    }

    /// Takes a piece that has arrived and makes of it what the next rank is to get. Returns whether it is
    /// to get anything.
    pub(crate) fn take<T: Number>(
        &self,
        (step, piece): (usize, usize),
        buffer: &mut Vec<u8>,
        tensors: &mut [&mut [T]],
    ) -> bool {
        let half = self.ranks - 1;
        let mut each = |change: &dyn Fn(&mut [u8], &mut [T])| {
            for run in self.chunk(self.before(), step).runs(piece, self.pieces) {
                let Range { start, end } = run.in_piece;
                let own = &mut tensors[run.tensor][run.in_tensor];
                change(
                    &mut buffer[start * size_of::<T>()..end * size_of::<T>()],
                    own,
                );
            }
        };
        let copy = |bytes: &mut [u8], own: &mut [T]| cast_slice_mut(own).copy_from_slice(bytes);
        match self.operation {
            // The root only gets to know that a piece has been everywhere.
            Operation::Broadcast(_) if step == half => false,
            Operation::Broadcast(_) => {
                each(&copy);
                if step + 1 == half {
                    buffer.clear();
                }
                true
            }
            Operation::AllReduce(_) | Operation::ReduceScatter(_) if step + 1 < half => {
                each(&|sum, own| add(sum, own));
                true
            }
            Operation::AllReduce(reduction) | Operation::ReduceScatter(reduction)
                if step < half =>
            {
                each(&|sum, own| finish(sum, own, reduction, self.ranks));
                matches!(self.operation, Operation::AllReduce(_))
            }
            _ => {
                each(&copy);
                step + 1 < 2 * half
            }
        }
    }

    fn before(&self) -> usize {
        (self.place + self.ranks - 1) % self.ranks
    }
}
