//! The processes that train together, each with its own part of the pipeline.
//!
//! All make the same calls. The first, of rank 0, has the run's folder; it reads and writes files, and asks
//! the others for their tensors.

mod exchange;
mod group;

pub(crate) use exchange::Exchange;
pub use group::Processes;
