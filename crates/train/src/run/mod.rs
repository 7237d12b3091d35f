//! A run: from the first batch to the files.

mod allocator;
mod checksums;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod crashes;
mod drift;
mod epoch;
mod folder;
mod memory;
mod memory_sampler;
mod output;
mod progress;
mod saving;
mod summary;
mod trainer;
mod windows;

pub use allocator::keep_freed_memory;
pub use folder::RunFolder;
pub use progress::{Progress, show_count, show_layers};
pub use summary::{BestEpoch, LossScale, StageSummary, Summary, stage_summaries};
pub use trainer::{Resumed, Trainer, check_resume};
