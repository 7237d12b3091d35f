//! Pages of sample runs.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod browser;
mod common;
mod escaping;
mod limits;
mod reading;
mod seeds;
mod structure;
