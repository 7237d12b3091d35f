//! Where to cut a model into the stages of a pipeline. Knows nothing of tensors.
//!
//! What is cut: a [`Profile`], layers in a chain, or a [`LayerGraph`] as PipeDream's profiler writes
//! it. What for: a [`Machine`], devices and the links between them. Who cuts:
//!
//! | function | each device has | chooses |
//! |---|---|---|
//! | [`cut_chain`], [`cut_chain_by`] | its own stage | the cut, for devices in a given order |
//! | [`place_chain`] | its own stage | the cut, and the order of devices of unequal speed |
//! | [`partition`] | a stage, or a copy of one | the cut and the number of copies, with the cost of links |

mod chain;
mod graph;
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
pub use planner::{Candidate, Forecast, Plan, PlanError, PlanRequest, RunnerUp, Setup, Verdict};
pub use profile::{LayerProfile, Profile, ProfileError};
pub use states::States;
