//! Compares the engine with plain computations.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

/// The types of a layer whose input, flow and output are of one type.
macro_rules! flow {
    ($flow:ty) => {
        flow!($flow, side: ());
    };
    ($flow:ty, side: $side:ty) => {
        type Input = $flow;
        type Flow = $flow;
        type Output = $flow;
        type Side = $side;

        fn enter(input: $flow) -> $flow {
            input
        }

        fn leave(flow: $flow) -> Result<$flow, stovepipe_pipeline::LayerError> {
            Ok(flow)
        }
    };
}
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
mod pass_sums;
mod precision;
mod processes;
mod ranks;
mod replicas;
mod short_models;
mod skips;
mod statistics;
mod stores;
mod ties;
mod transfers;
mod windows;
