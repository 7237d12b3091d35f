//! AmoebaNets.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;
mod drop_path;
mod golden;
mod parameters;
mod schedules;
mod shapes;
mod weights;
