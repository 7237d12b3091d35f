//! What lies off its device between updates: an optimizer's states, and gradients.

mod error;
mod gradients;
mod mover;
mod placed;
mod shelf;
mod states;
mod storage;

pub use error::OffloadError;
pub(super) use gradients::OffloadedGradients;
pub(super) use mover::Mover;
pub(super) use shelf::Kept;
pub(super) use states::OffloadedStates;
pub use storage::{HostMemory, Storage};
