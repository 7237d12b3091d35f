//! Trains a Stovepipe pipeline: loads data, runs and tests epochs, shows progress, and writes
//! checkpoints, metrics and the model to a folder.
//!
//! [`Trainer`] trains a pipeline on the batches of a [`Source`], for any [`Task`]: an objective and
//! its metrics. [`Data`] makes a source of two of Burn's datasets.

#![deny(clippy::print_stderr, clippy::print_stdout)] // They panic if the text cannot be written.

pub mod checkpoint;
pub mod data;
mod disk;
mod error;
#[doc(hidden)]
pub mod example;
pub mod optimizer;
mod processes;
pub mod run;
pub mod settings;
mod task;
pub mod weights;

pub use data::{Batches, Data, EpochPass, Source};
pub use error::TrainError;
pub use processes::Processes;
pub use run::{Progress, RunFolder, Summary, Trainer, keep_freed_memory};
pub use settings::{PipelineSettings, TrainSettings};
pub use task::{Metric, Metrics, PADDING, Task, Totals, evaluate};
pub use weights::{Weights, load_model, save_model};
