//! Where to cut a model into the stages of a pipeline. Knows nothing of tensors.

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
