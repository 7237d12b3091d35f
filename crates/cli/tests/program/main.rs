//! The program, as a user runs it.
#![allow(clippy::expect_used, clippy::unwrap_used, missing_docs)]

#[cfg(feature = "wgpu")]
mod adapters;
mod cifar;
mod cli;
mod comparing;
mod data;
mod devices;
mod docs;
mod export;
mod finetune;
#[path = "../../../../datasets/cifar/tests/folder/mod.rs"]
mod folder;
mod guide;
mod input;
mod language;
mod looping;
#[cfg(feature = "wgpu")]
mod lost;
mod memory;
mod new;
mod pictures;
mod planning;
#[cfg(target_os = "linux")]
mod processes;
mod recipes;
#[cfg(unix)]
mod replicas;
mod resume;
mod running;
#[cfg(target_os = "linux")]
mod streams;
mod transfer;
