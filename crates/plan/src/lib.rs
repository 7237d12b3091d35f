//! Cuts a model into the stages of a pipeline. This crate knows nothing of tensors.
//!
//! A model is a [`Profile`], a chain of layers, or a [`LayerGraph`] as PipeDream's profiler writes it. A
//! [`Machine`] has devices and the links between them.
//!
//! | function | each device has | chooses |
//! |---|---|---|
//! | [`cut_chain`], [`cut_chain_by`] | its own stage | the cut, for devices in a given order |
//! | [`place_chain`] | its own stage | the cut, and the order of devices of different speed |
//! | [`partition`] | a stage, or a copy of one | the cut and the number of copies, with the cost of links |
//! | [`Setup`] | one or more stages | the cut with the fastest step, for one schedule |
//! | [`PlanRequest::plan`] | one or more stages | the cut, the schedule and all its numbers |

mod chain;
mod graph;
mod levels;
mod machine;
mod memory;
mod partition;
mod placement;
mod planner;
mod profile;
mod states;
mod toml_text;

pub use chain::{CutError, cut_chain, cut_chain_by};
pub use graph::{GraphError, GraphNode, LayerGraph};
pub use machine::{DeviceSpec, LinkLevel, Machine, MachineError};
pub use memory::{MemoryUse, OptimizerState};
pub use partition::{Partition, PartitionError, ReplicatedStage, partition};
pub use placement::{Placement, place_chain};
pub use planner::{
    BUCKET, Candidate, Forecast, Plan, PlanError, PlanRequest, RunnerUp, Setup, Verdict,
};
pub use profile::{LayerProfile, Profile, ProfileError, SkipError, SkipProfile};
pub use states::States;
pub use toml_text::TomlError;
