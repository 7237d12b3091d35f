//! Kernels.
#![allow(clippy::unwrap_used, missing_docs)]

mod adam_w;
mod common;
mod defer;
mod images;
mod sequences;
mod threads;
