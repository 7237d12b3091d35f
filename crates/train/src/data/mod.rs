//! Where the batches of a training come from.

mod loader;
mod shared;
mod source;

pub use loader::{Loader, shuffled};
pub use shared::shared;
pub use source::{
    Batches, Data, EpochPass, Fingerprint, FirstBatches, Source, changes, check, check_batch,
};
