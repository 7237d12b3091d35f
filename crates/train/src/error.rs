//! Why a training cannot start or fails.

use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
};

use stovepipe_pipeline::{BuildError, StepError, device::DeviceError};
use stovepipe_schedule::format_bytes;
use thiserror::Error;

use crate::weights::other_tensors::OtherTensors;

/// Why a training cannot start or fails.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrainError {
    // Settings.
    /// A setting is out of its range.
    #[error("{setting} is {value}, but must be {range}")]
    Setting {
        /// The setting, as flags and configuration files name it.
        setting: &'static str,
        /// Its value.
        value: String,
        /// The values that it accepts.
        range: &'static str,
    },
    /// All layers are frozen.
    #[error("freeze is {frozen}, but the model has {layers} layers: leave at least one to train")]
    AllFrozen {
        /// Layers that would not be trained.
        frozen: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// There are neither one device for all stages nor one for each.
    #[error("{devices} devices were given for {stages} stages: give one for all, or one for each")]
    Devices {
        /// Number of devices.
        devices: usize,
        /// Number of workers, which the flag calls stages.
        stages: usize,
    },
    /// A file has a schedule for other numbers.
    #[error(
        "{}: the schedule is for {workers} workers and {micro_batches} micro-batches: \
         set --stages {workers} and --micro-batches {micro_batches}",
        path.display()
    )]
    ScheduleNumbers {
        /// The file.
        path: PathBuf,
        /// Workers of the schedule.
        workers: usize,
        /// Its micro-batches.
        micro_batches: usize,
    },
    /// There are neither one memory size for all devices nor one for each.
    #[error(
        "device-memory has {given} numbers for {devices} devices: give one for all, or one for each"
    )]
    DeviceMemories {
        /// Number of sizes.
        given: usize,
        /// Number of devices.
        devices: usize,
    },
    /// A device has too little memory for the run.
    #[error(
        "the run needs about {} on {device}, which has {}: recompute more, use more micro-batches, \
         more devices or a smaller batch, or set --device-memory if the device has more",
        format_bytes(*needs),
        format_bytes(*has)
    )]
    TooLarge {
        /// The device.
        device: String,
        /// Bytes that all its workers need.
        needs: u64,
        /// Bytes that it has.
        has: u64,
    },
    /// A device is not available.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A pipeline cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A configuration file cannot be parsed.
    #[error("{}: {source}", path.display())]
    Configuration {
        /// The file.
        path: PathBuf,
        /// What is wrong, and on which line.
        source: Box<toml::de::Error>,
    },

    // The run.
    /// A set has no samples.
    #[error("the {0} set is empty")]
    EmptySet(&'static str),
    /// A mini-batch is larger than the training set.
    #[error(
        "batch-size is {batch_size}, but the training set has {samples} samples: \
         choose a --batch-size of at most {samples}"
    )]
    BatchTooLarge {
        /// Samples in a mini-batch.
        batch_size: usize,
        /// Samples in the training set.
        samples: usize,
    },
    /// There is no schedule for the last mini-batch of an epoch.
    #[error(
        "the last mini-batch of an epoch has {samples} samples: {source}; \
         choose another --batch-size"
    )]
    LastBatch {
        /// Its samples.
        samples: usize,
        /// Why it cannot run.
        source: StepError,
    },
    /// A batch cannot be loaded.
    #[error("loading data: {0}")]
    Data(#[source] Box<dyn Error + Send + Sync>),
    /// An objective has more or fewer scores than its task names.
    #[error(
        "the objective returned {found} scores, but the task names {named}: name them with \
         Task::with_scores"
    )]
    Scores {
        /// Scores that the task names.
        named: usize,
        /// Scores of the objective.
        found: usize,
    },
    /// A step failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The loss or a gradient is NaN or infinite.
    #[error(
        "the training diverged in epoch {epoch}, batch {batch}: \
         try a smaller --lr, a longer --warmup-epochs, or --clip\n{source}"
    )]
    Diverged {
        /// The epoch, counted from 1.
        epoch: usize,
        /// The batch within the epoch, counted from 1.
        batch: usize,
        /// Which value is not finite, and where that started.
        source: StepError,
    },
    /// The loss on the test set is NaN or infinite.
    #[error(
        "the test loss is {loss} after epoch {epoch}: \
         try a smaller --lr, a longer --warmup-epochs, or --clip"
    )]
    TestLossNotFinite {
        /// Its value.
        loss: f64,
        /// The epoch, counted from 1.
        epoch: usize,
    },

    // Resuming.
    /// A checkpoint's files are incomplete or have changed.
    #[error("{}: the checkpoint is damaged: {reason}", path.display())]
    DamagedCheckpoint {
        /// Its folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The training set has changed since the checkpoint.
    #[error(
        "the training set had {then} samples when the checkpoint was made, and has {now}: use the \
         same data, or start another run"
    )]
    OtherSamples {
        /// Its samples then.
        then: usize,
        /// Its samples now.
        now: usize,
    },
    /// A setting that must stay the same has changed since the checkpoint.
    #[error(
        "the checkpoint was made with {setting} {then}, not {now}: use {then} again, or start \
         another run"
    )]
    OtherSetting {
        /// The setting, as flags and configuration files name it.
        setting: &'static str,
        /// Its value then.
        then: String,
        /// Its value now.
        now: String,
    },
    /// A checkpoint is of a task with other scores.
    #[error("the checkpoint is of another task: start another run")]
    OtherTask,
    /// A checkpoint has another format version.
    #[error("the checkpoint has format version {version}, but this program reads version {own}")]
    CheckpointVersion {
        /// The checkpoint's version.
        version: u32,
        /// This program's version.
        own: u32,
    },

    // Files.
    /// The folder is in use.
    #[error("{} holds another run or other files: choose another --out", .0.display())]
    FolderInUse(PathBuf),
    /// Another program is writing to this folder.
    #[error("another run is using {}: choose another --out", .0.display())]
    RunUnderWay(PathBuf),
    /// The folder is of a run that was killed.
    #[error(
        "{} is of a run that was killed: resume it with --resume, choose another --out, or remove it",
        .0.display()
    )]
    RunKilled(PathBuf),
    /// A checkpoint cannot be written, and the settings say to stop then.
    #[error("the checkpoint cannot be written, the previous one is unchanged: {0}")]
    NotSaved(#[source] Box<Self>),
    /// A device does not return the tensors to save.
    #[error(
        "{}: a device does not return the tensors to save ({cause}): use --resume to continue from \
         the last checkpoint",
        path.display()
    )]
    NotFetched {
        /// The file or folder to write.
        path: PathBuf,
        /// What the device reported.
        cause: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file has the tensors of another model.
    #[error("{} is of another model: {tensors}", path.display())]
    OtherModel {
        /// The file.
        path: PathBuf,
        /// How its tensors differ from the model's.
        tensors: Box<OtherTensors>,
    },
    /// A file is not in its format or not valid, or a value cannot be written in the format.
    #[error("{}: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl TrainError {
    /// A batch cannot be loaded.
    pub fn data(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Data(source.into())
    }

    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }

    pub(crate) fn format(path: &Path, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let (path, source) = (path.to_owned(), source.into());
        Self::Format { path, source }
    }
}
