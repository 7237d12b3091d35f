//! The engine of Stovepipe: trains a [Burn](https://burn.dev) model in stages, each on a device of
//! its own, while micro-batches stream through them forward and backward.
//!
//! A model is a list of [`Layer`]s. A [`Pipeline`] cuts the list into stages, gives them to
//! workers, each with a device and a thread, and runs mini-batches through them by a schedule from
//! [`stovepipe_schedule`]. The result is the one that a single device would have computed for the
//! same micro-batches: on the CPU with one thread a stage bit for bit, whatever the number of
//! stages, the schedule and what is recomputed. (Of schedules by hand, those that
//! [ascend](stovepipe_schedule::Schedule::is_ascending).)
//!
//! What passes between layers is a [`Flow`]; what training makes small is an [`Objective`].

// Lets the derive name this crate in the same way from inside and from outside.
extern crate self as stovepipe_pipeline;

mod balance;
mod batch;
mod builder;
mod context;
mod control;
mod cross_entropy;
mod device;
mod engine;
mod error;
mod fingerprint;
mod flow;
mod initialise;
mod keyed_rng;
mod layer;
mod link;
mod measured;
mod module;
pub mod nn;
mod objective;
mod out_of_memory;
mod parameters;
mod pipeline;
mod plain;
mod precision;
mod probe;
mod profile;
mod ties;
mod unkeyed;
mod wiring;

pub use balance::Balance;
pub use batch::{Batch, Evaluation, Outputs, Step};
pub use builder::PipelineBuilder;
pub use context::Context;
pub use control::{Progress, StopHandle};
pub use cross_entropy::CrossEntropy;
pub use device::{DeviceError, NamedDevice};
#[doc(hidden)]
pub use engine::guard::caught;
pub use engine::{check_schedule, stage::Held};
pub use error::{
    BuildError, FlightRecord, ProfileError, StageFailure, StepError, Transfer, TransferKind,
    WorkerRecord, WorkerState, WrongSchedule,
};
pub use flow::{Flow, FlowMapper, Replicated};
pub use keyed_rng::KeyedRng;
pub use layer::{Layer, LayerError};
pub use link::measure_link;
pub use measured::Measured;
pub use objective::{MeanOf, Objective};
pub use out_of_memory::is_out_of_memory;
pub use parameters::count_parameters;
pub use pipeline::{Pipeline, Stage};
pub use plain::{Plain, run_plain};
pub use precision::{LossScaler, Precision, PrecisionError};
pub use probe::{DeviceFacts, DeviceRates, ProductRate, device_facts, measure_rates};
pub use profile::Profiler;
pub use stovepipe_plan::{Forecast, LayerProfile, Machine, OptimizerState, Profile};
pub use stovepipe_schedule::{Link, Recompute, UnknownRecompute};
pub use unkeyed::Unkeyed;
pub use wiring::{LayerName, SkipUse, WiringError};
/// The trait without the derive of its name, for the facade, which has a derive of its own.
#[doc(hidden)]
pub mod facade {
    pub use crate::flow::Flow;
}
/// Derives [`Flow`](trait@Flow) for a struct or an enum of flows.
pub use stovepipe_derive::Flow;
