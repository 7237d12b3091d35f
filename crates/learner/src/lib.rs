//! Stovepipe pipelines in the training loop of burn-train.
mod bars;
mod staged;

pub use bars::Bars;
pub use staged::Staged;
