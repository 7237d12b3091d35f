//! What a model is to the engine: layers, the values between them, and their parameters.

pub(crate) mod flow;
pub mod flows;
pub(crate) mod initialise;
pub(crate) mod keyed_rng;
pub(crate) mod layer;
pub(crate) mod moved;
pub mod nn;
pub(crate) mod packed;
pub(crate) mod parameters;
pub(crate) mod plain;
pub(crate) mod ties;
pub(crate) mod unkeyed;
pub(crate) mod wiring;
