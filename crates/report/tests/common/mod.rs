//! Shared by several tests: folders of sample runs, and a parser for pages.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

pub mod chromium;
pub mod digits;
pub mod dom;
pub mod folder;
