//! Where to cut a model into the stages of a pipeline. Knows nothing of tensors.

mod chain;
mod placement;

pub use chain::{CutError, cut_chain, cut_chain_by};
pub use placement::{Placement, place_chain};
