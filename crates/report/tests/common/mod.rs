//! What several tests need: a run's folder, made as a training makes it, and a page taken apart.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

pub mod chromium;
pub mod digits;
pub mod dom;
pub mod folder;
