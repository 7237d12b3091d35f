//! Compares the engine with plain computations.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod balance;
mod building;
mod devices;
mod equivalence;
mod evaluation;
mod failures;
mod faults;
mod finite;
mod flows;
mod frozen;
mod held;
mod keyed_rng;
mod losses;
mod models;
mod module;
mod precision;
mod short_models;
mod skips;
mod statistics;
mod ties;
mod transfers;
