//! What can end a training run.

use std::path::PathBuf;

use stovepipe_pipeline::{BuildError, StepError, device::DeviceError, error::WrongSchedule};
use stovepipe_schedule::{ScheduleError, format_bytes};
use thiserror::Error;

use crate::other_tensors::OtherTensors;

/// A training run that cannot start, or did not end well.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrainError {
    // Settings.
    /// A setting is out of its range.
    #[error("{setting} is {value}, but must be {range}")]
    Setting {
        /// The setting, as flags and configurations call it.
        setting: &'static str,
        /// What it was set to.
        value: String,
        /// What it may be.
        range: &'static str,
    },
    /// A checkpoint that is not as it was made.
    #[error("{}: the checkpoint is damaged: {reason}", path.display())]
    DamagedCheckpoint {
        /// Its folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A training that goes on with other data.
    #[error(
        "the training set had {then} samples when the checkpoint was made, and has {now}: go on with the same data, or \
         begin another run"
    )]
    OtherSamples {
        /// Samples that there were.
        then: usize,
        /// Samples that there are.
        now: usize,
    },
    /// All layers are frozen.
    #[error("freeze is {frozen}, but the model has {layers} layers: leave one to train, or more")]
    AllFrozen {
        /// Layers that would not be trained.
        frozen: usize,
        /// Layers there are.
        layers: usize,
    },
    /// The number of devices fits neither one for all workers nor one for each.
    #[error("{devices} devices were given for {stages} stages: give one for all, or one for each")]
    Devices {
        /// Devices named.
        devices: usize,
        /// Workers asked for: what the flag calls stages.
        stages: usize,
    },
    /// A file that holds no schedule.
    #[error("{}: {source}", path.display())]
    Schedule {
        /// The file.
        path: PathBuf,
        /// What is wrong, and on which line.
        source: ScheduleError,
    },
    /// A file that holds a schedule for other numbers.
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
    /// A file that holds a schedule that cannot be run.
    #[error("{}: {source}", path.display())]
    WrongSchedule {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: WrongSchedule,
    },
    /// There is not a memory for each device.
    #[error(
        "device-memory has {given} numbers for {devices} devices: give one for all, or one for each"
    )]
    DeviceMemories {
        /// Numbers given.
        given: usize,
        /// Devices there are.
        devices: usize,
    },
    /// A device is too small for the run.
    #[error(
        "the run needs about {} on {device}, which has {}: recompute more, take more micro-batches, more \
         devices or a smaller batch, or say what there is with --device-memory",
        format_bytes(*needs),
        format_bytes(*has)
    )]
    TooLarge {
        /// The device.
        device: String,
        /// Bytes that all its workers need.
        needs: u64,
        /// Bytes there are.
        has: u64,
    },
    /// A device that is not to be had.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A pipeline that cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A configuration that cannot be read.
    #[error("{}: {source}", path.display())]
    Configuration {
        /// The file.
        path: PathBuf,
        /// What is wrong, and on which line.
        source: Box<toml::de::Error>,
    },

    // The run.
    /// There is nothing to train on, or nothing to test with.
    #[error("the {0} set is empty")]
    EmptySet(&'static str),
    /// A mini-batch would be larger than the set that it is of.
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
    /// There is no schedule for the samples that are left at the end of an epoch.
    #[error(
        "the last mini-batch of an epoch has {samples} samples: {source}; \
         choose another --batch-size"
    )]
    LastBatch {
        /// Its samples.
        samples: usize,
        /// What the pipeline said.
        source: StepError,
    },
    /// An item could not be loaded.
    #[error("loading data: {0}")]
    Data(String),
    /// A step failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The loss or a gradient is no longer a number.
    #[error(
        "the training diverged in epoch {epoch}, batch {batch}: \
         try a smaller --lr, a longer --warmup-epochs, or --clip\n{source}"
    )]
    Diverged {
        /// The epoch, counted from 1.
        epoch: usize,
        /// The batch within the epoch, counted from 1.
        batch: usize,
        /// What is not finite, and where that began.
        source: StepError,
    },

    /// The loss over the test set is no number.
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

    // Files.
    /// The folder is in use.
    #[error("{} holds another run or other files: choose another --out", .0.display())]
    FolderInUse(PathBuf),
    /// Another run writes to this folder.
    #[error("another run is under way in {}: choose another --out", .0.display())]
    RunUnderWay(PathBuf),
    /// A run that was ended from outside wrote to this folder.
    #[error(
        "{} is of a run that was killed: go on with --resume, choose another --out, or remove it",
        .0.display()
    )]
    RunKilled(PathBuf),
    /// A checkpoint was made with a setting without which it is of no use.
    #[error(
        "the checkpoint was made with {setting} {then}, not {now}: go on with that, or begin another run"
    )]
    OtherSetting {
        /// The setting, as flags and configurations call it.
        setting: &'static str,
        /// What it was when the checkpoint was made.
        then: String,
        /// What it is now.
        now: String,
    },
    /// A checkpoint of another version of this library.
    #[error(
        "the checkpoint's files are of version {version}, but this program knows version {own}"
    )]
    CheckpointVersion {
        /// Of the checkpoint.
        version: u32,
        /// Of this library.
        own: u32,
    },
    /// A checkpoint could not be made, and the training was to end then.
    #[error("no checkpoint could be made, the one before is as it was: {0}")]
    NotSaved(Box<Self>),
    /// A device does not hand over what is to be saved.
    #[error(
        "{}: a device does not hand over what is to be saved ({cause}): a run goes on from its last checkpoint by --resume",
        path.display()
    )]
    NotFetched {
        /// The file or folder that was to hold it.
        path: PathBuf,
        /// What the device said.
        cause: String,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file with the tensors of another model.
    #[error("{} is of another model: {tensors}", path.display())]
    OtherModel {
        /// The file.
        path: PathBuf,
        /// How its tensors differ from the model's.
        tensors: Box<OtherTensors>,
    },
    /// Something could not be put into its format.
    #[error("{}: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What the serializer said.
        reason: String,
    },
}

impl TrainError {
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }

    pub(crate) fn format(path: impl Into<PathBuf>, reason: impl ToString) -> Self {
        let (path, reason) = (path.into(), reason.to_string());
        Self::Format { path, reason }
    }
}
