//! Tests of the CIFAR data sets.
#![allow(clippy::expect_used, clippy::unwrap_used, missing_docs)]

#[path = "../folder/mod.rs"]
mod folder;
mod reading;
mod seeds;
mod showing;
