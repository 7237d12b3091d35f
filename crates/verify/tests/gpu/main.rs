//! Pipelines on a GPU, next to the same ones on the CPU.
//!
//! `STOVEPIPE_GPU` names the backend, `wgpu` or `cuda`, and makes it a failure that there is no such GPU.
#![cfg(any(feature = "cuda", feature = "wgpu"))]
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod amoebanet;
mod beside_cpu;
mod cross_entropy;
#[cfg(all(feature = "tracing", feature = "wgpu"))]
mod device_calls;
mod devices;
mod engine;
mod memory;
#[allow(dead_code, unused_imports)]
#[path = "../engine/models.rs"]
mod models;
mod one_channel;
mod precision;
mod transformer;
