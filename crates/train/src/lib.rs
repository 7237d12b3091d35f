//! A training run of a Stovepipe pipeline: it loads ahead, trains, tests, shows how far it is, and
//! leaves files that one can open.

mod adam_w;
mod allocator;
mod average;
mod checkpoint;
mod error;
mod fetched;
mod folder;
mod freeze;
mod gradients;
mod labels;
mod learning_rate;
mod loader;
mod memory;
mod model_file;
mod optimizer;
mod other_tensors;
mod progress;
mod schedule_setting;
mod scores;
mod settings;
mod source;
mod summary;
mod tensor_file;
mod trainer;
mod weights;

pub use allocator::keep_freed_memory;
pub use average::WeightAverage;
pub use checkpoint::{Checkpoint, Checkpoints, Damaged};
pub use error::TrainError;
pub use folder::RunFolder;
pub use freeze::FreezeSetting;
pub use learning_rate::LearningRate;
pub use loader::{Loader, shuffled};
pub use memory::{DeviceMemory, free_memory};
pub use model_file::{load_model, save_model};
pub use optimizer::StagedOptimizer;
pub use other_tensors::OtherTensors;
pub use progress::{Progress, StepReport, show_count, show_layers};
pub use schedule_setting::ScheduleSetting;
pub use scores::{Metrics, Scores, score};
pub use settings::{
    BalanceSetting, DecaySetting, OptimizerSetting, PipelineSettings, SaveErrorSetting,
    TrainSettings,
};
pub use source::{Batches, Data, PADDING, Pass, Source, Task};
pub use summary::{LossScale, StageSummary, Summary, stage_summaries};
pub use trainer::{Resumed, Trainer};
pub use weights::{Convention, Weights};
