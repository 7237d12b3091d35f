//! Saves the state of a training, and resumes from it.
//!
//! A checkpoint is a folder of files in open formats: safetensors with the model and the optimizer's
//! state, TOML with the rest of the state, and checksums of all. It is written under another name,
//! synced to the disk and then renamed: a checkpoint under its own name is complete whenever the
//! program is killed. The checksums show whether the disk has damaged it.

mod contents;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod crashes;
mod list;
mod state;
mod sums;

pub(crate) use contents::{Contents, model_file, models};
pub use list::{Checkpoint, Checkpoints, Damaged};
pub(crate) use list::{FOLDER, Keep};
pub(crate) use state::{Sums, TrainerState};
