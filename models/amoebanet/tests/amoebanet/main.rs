//! AmoebaNets.
#![allow(clippy::expect_used, clippy::unwrap_used, missing_docs)]

mod common;
mod drop_path;
mod golden;
mod memory;
mod parameters;
mod schedules;
mod shapes;
mod weights;
