//! What lies off its device between updates: an optimizer's states, gradients, and averages of weights.

mod average;
mod error;
mod gradients;
mod mover;
mod placed;
mod rate;
mod shelf;
mod states;
mod storage;
mod visits;

pub(super) use average::OffloadedAverage;
pub use error::OffloadError;
pub(super) use gradients::OffloadedGradients;
pub(super) use mover::Mover;
pub use rate::store_rate;
pub(super) use shelf::Kept;
pub(super) use states::OffloadedStates;
pub use storage::{HostMemory, Storage};
