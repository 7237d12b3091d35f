//! Schedules, simulations and pictures, compared with published figures and with naive counts.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
mod files;
mod paper;
mod program;
mod schedule;
mod schedulers;
mod seeds;
mod simulation;
mod timeline;
mod validation;
mod versions;
