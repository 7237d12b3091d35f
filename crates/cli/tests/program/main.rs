//! The program, as a user runs it.
#![allow(clippy::expect_used, clippy::unwrap_used, missing_docs)]

#[cfg(feature = "wgpu")]
mod adapters;
mod cifar;
mod cli;
mod devices;
mod docs;
#[path = "../../../../datasets/cifar/tests/folder/mod.rs"]
mod folder;
mod guide;
mod language;
mod pictures;
mod planning;
mod recipes;
#[cfg(unix)]
mod resume;
mod running;
mod transfer;
