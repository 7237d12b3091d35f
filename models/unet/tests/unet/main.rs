//! U-Net.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;
mod golden;
mod pipeline;
mod shapes;
