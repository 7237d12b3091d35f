//! Updates: optimizers, gradients, learning rates and averages.

mod accumulator;
mod adam_w;
mod average;
mod averages;
mod gradients;
mod groups;
mod learning_rate;
mod offload;
mod staged;
mod states;
mod sums;
mod value;

pub(crate) use accumulator::{Counts, GradientAccumulator};
pub use average::WeightAverage;
pub(crate) use averages::{Averages, List};
pub(crate) use groups::names;
pub use learning_rate::LearningRate;
pub use offload::{HostMemory, OffloadError, Storage, store_rate};
pub use staged::StagedOptimizer;
pub(crate) use sums::LayerSums;
