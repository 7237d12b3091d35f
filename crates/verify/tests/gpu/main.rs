//! Pipelines on wgpu, next to the same ones on the CPU.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod amoebanet;
mod beside_cpu;
mod engine;
#[allow(dead_code, unused_imports)]
#[path = "../../../pipeline/tests/engine/models.rs"]
mod models;
mod one_channel;
mod precision;
mod transformer;
