//! Cuts, partitions and plans, compared with all others, and readers of files.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod chain;
mod common;
mod graph;
mod levels;
mod machine;
mod partition;
mod partition_chain;
mod placement;
mod planner;
mod profile;
mod published;
mod seeds;
mod unequal;
