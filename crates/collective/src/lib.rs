//! Sums over the ranks of a job: ring all-reduce, as in
//! [baidu-allreduce](https://github.com/baidu-research/baidu-allreduce), its two halves, and broadcast.
//!
//! * [`Group`]: ranks that do this together, all of a job or some of them.
//! * [`Reduction`]: sum or mean. [`Number`]: f32, f64, bf16 and f16.
//! * [`slice()`]: which part of a tensor belongs to which rank.
//!
//! # The order of addition
//!
//! A *bucket* is a list of tensors. Of N ranks, each tensor is cut into N slices of its own, whose
//! lengths differ by at most one. Slice c is added up along the ring from rank c + 1 to rank c:
//!
//! ```text
//! sum = ((x[c + 1] + x[c + 2]) + …) + x[c]        ranks modulo N
//! ```
//!
//! So the bits of a sum depend on a number's place in its tensor and on N, and not on other tensors of
//! the bucket, on time, or on what carries the messages. bf16 and f16 are added in f32, and each sum
//! is rounded to their type before it travels on. A mean is the sum divided by N; the last addition is
//! divided before it is rounded.
//!
//! # What travels
//!
//! Chunk c of a bucket is slice c of all its tensors. In the first half of an all-reduce each rank
//! passes N − 1 chunks on to the next rank, which adds its own; in the second half N − 1 chunks
//! that are complete. So a rank sends 2K(N − 1)/N of a bucket's K bytes, whatever N is. A chunk
//! travels in pieces, so that all ranks work at the same time. A rank hands the buffer that it received on
//! to the next: between threads nothing is copied on the way.
//!
//! Each call also sends a header, which says what the rank does: ranks that do different things get an
//! error that names one of them, not a wrong sum.

//! # MPI's own all-reduce
//!
//! With [`AllReduce::Mpi`], `MPI_Iallreduce` adds up f32 and f64, in an order of its own. The bits then
//! depend on the MPI library, on the number of ranks and on the bucket.

// Tests run ranks under the model checker.
#[cfg(test)]
extern crate stovepipe_comm_shuttle as stovepipe_comm;

mod call;
mod chunks;
mod error;
mod group;
mod header;
mod inbox;
mod mpi;
mod number;
mod ring;
mod sync;
mod tag;

#[cfg(test)]
mod checks;

pub use chunks::slice;
pub use error::CollectiveError;
pub use group::{AllReduce, Group, GroupCancel};
pub use number::{Number, Reduction};
