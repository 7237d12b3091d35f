//! A training run of a Stovepipe pipeline: it loads ahead, trains, tests, shows how far it is, and
//! leaves files that one can open.

mod error;
mod learning_rate;
mod loader;
mod optimizer;
mod settings;

pub use error::TrainError;
pub use learning_rate::LearningRate;
pub use loader::{Loader, shuffled};
pub use optimizer::StagedOptimizer;
pub use settings::{
    BalanceSetting, DecaySetting, OptimizerSetting, PipelineSettings, ScheduleSetting,
    TrainSettings,
};
