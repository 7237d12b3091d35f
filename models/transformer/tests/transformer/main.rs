//! Transformers.
#![allow(clippy::unwrap_used, missing_docs)]

mod golden;
mod parameters;
mod shapes;
mod weights;
