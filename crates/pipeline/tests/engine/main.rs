//! The engine against the plain way of computing the same.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod balance;
mod building;
mod equivalence;
mod failures;
mod faults;
mod flows;
mod held;
mod losses;
mod models;
mod module;
