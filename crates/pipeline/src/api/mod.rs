//! What a user calls: builds a pipeline, trains and evaluates it.

pub(crate) mod batch;
pub(crate) mod builder;
pub(crate) mod cross_entropy;
pub(crate) mod error;
mod evaluate;
pub(crate) mod gradient_store;
mod module;
pub(crate) mod objective;
pub(crate) mod pipeline;
pub(crate) mod precision;
mod recalibrate;
mod replicas;
mod tasks;
mod train;
mod update;
pub(crate) mod window;
