//! What layers and devices cost, measured, and where to cut a model by it.

pub(crate) mod balance;
pub(crate) mod checksum;
pub(crate) mod device;
mod fingerprint;
mod layer_bench;
pub(crate) mod link;
pub(crate) mod lost;
pub(crate) mod measured;
pub(crate) mod out_of_memory;
pub(crate) mod probe;
pub(crate) mod profile;
mod side_by_side;

pub use checksum::Checksum;
pub use measured::Measured;
pub use profile::Profiler;
pub use stovepipe_plan::{Forecast, LayerProfile, Machine, OptimizerState, Profile};
