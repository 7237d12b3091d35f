//! Where the batches of a training come from.

mod loader;
mod source;

pub use loader::{Loader, shuffled};
pub(crate) use source::check;
pub use source::{Batches, Data, EpochPass, Source};
