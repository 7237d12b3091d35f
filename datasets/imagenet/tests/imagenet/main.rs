//! Tests of folders of images.
#![allow(clippy::expect_used, clippy::unwrap_used, missing_docs)]

#[path = "../folder/mod.rs"]
mod folder;
mod layouts;
mod loading;
mod seeds;
