//! Why a training cannot start or fails.

use std::{
    error::Error,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use stovepipe_pipeline::{BuildError, StepError, device::DeviceError, error::ProcessError};
use stovepipe_schedule::{count, format_bytes};
use thiserror::Error;

use crate::{optimizer::OffloadError, weights::other_tensors::OtherTensors};

/// Why a training cannot start or fails.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum TrainError {
    // Settings.
    /// A setting is out of its range.
    #[error("{setting} is {value}, but must be {range}")]
    Setting {
        setting: &'static str,
        value: String,
        range: &'static str,
    },
    /// All layers are frozen.
    #[error(
        "freeze is {frozen}, but the model has {}: leave at least one to train",
        count(*layers, "layer")
    )]
    AllFrozen { frozen: usize, layers: usize },
    /// No parameter has a name with a learning rate of its own.
    #[error("lr-of: no parameter matches {names}: the first is {first}, the last is {last}")]
    NoParameter {
        names: String,
        first: String,
        last: String,
    },
    /// What a CPU computes would lie in the memory where it is already.
    #[error(
        "offload-to is host, but {0} computes in the memory of the host: name a folder, such as \
         --offload-to states"
    )]
    OffloadToHost(String),
    /// What should lie in the memory of the host has no room there.
    #[error(
        "what --offload optimizer keeps takes {} of the memory of the host, but only {} are free: name a \
         folder, such as --offload-to states",
        format_bytes(*needs),
        format_bytes(*has)
    )]
    HostTooSmall { needs: u64, has: u64 },
    /// The optimizer's state cannot lie off its device.
    #[error(transparent)]
    Offload(#[from] OffloadError),
    /// There are neither one device for all workers nor one for each.
    #[error(
        "{} given for {}: give one for all, or one for each",
        count(*devices, "device"), count(*workers, "worker")
    )]
    Devices { devices: usize, workers: usize },
    /// There are neither replicas of the whole pipeline nor of each stage.
    #[error(
        "replicas are given for {}, but there are {stages}: give one number for the whole pipeline, or \
         one for each stage",
        count(*given, "stage")
    )]
    Replicas { given: usize, stages: usize },
    /// There is not one share for each replica of the whole pipeline.
    #[error(
        "{} given for --replicas {}: give one for each replica of the whole pipeline, as in \
         --replicas 2 --shares 3,1",
        count(*given, "share"), replicas.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    )]
    Shares { given: usize, replicas: Vec<usize> },
    /// A replica's share is too small.
    #[error(
        "replica {replica} has none of the {} of a mini-batch: give it a larger share, or set more \
         --micro-batches",
        count(*micro_batches, "micro-batch")
    )]
    IdleReplica {
        replica: usize,
        micro_batches: usize,
    },
    /// Some replicas would have no micro-batch.
    #[error(
        "{replicas} replicas are more than the {} of a mini-batch: set --micro-batches {replicas} or \
         more",
        count(*micro_batches, "micro-batch")
    )]
    ManyReplicas {
        replicas: usize,
        micro_batches: usize,
    },
    /// The schedule has no replicas of single stages, or none at all.
    #[error(
        "the schedule {0} has no such replicas: give one number for the whole pipeline (not with a \
         schedule from a file), or use --schedule 1f1b"
    )]
    NoReplicas(String),
    /// A setting that has no effect without an asynchronous schedule.
    #[error("{0} has no effect: it is for --schedule pipedream")]
    OnlyAsynchronous(&'static str),
    /// A setting that an asynchronous schedule does not allow.
    #[error("{0} does not work with --schedule pipedream, which does not wait for updates")]
    OnlySynchronous(&'static str),
    /// Windows are made by a rule.
    #[error(
        "{}: the schedule changes weights before its end (U): use --schedule pipedream, which makes \
         such schedules for windows of any length",
        .0.display()
    )]
    AsynchronousFile(PathBuf),
    /// A window is longer than an epoch.
    #[error("window is {window}, but an epoch has {}", count(*batches, "mini-batch"))]
    LongWindow { window: usize, batches: usize },
    /// Each process needs a stage.
    #[error(
        "{} for {processes} processes: each needs at least one: set --stages {processes}",
        count(*stages, "stage")
    )]
    FewStages { stages: usize, processes: usize },
    /// A file has a schedule for other numbers.
    #[error(
        "{}: the schedule is for {} and {}: \
         set --stages {workers} and --micro-batches {micro_batches}",
        path.display(),
        count(*workers, "worker"),
        count(*micro_batches, "micro-batch")
    )]
    ScheduleNumbers {
        path: PathBuf,
        workers: usize,
        micro_batches: usize,
    },
    /// There are neither one memory size for all devices nor one for each.
    #[error(
        "device-memory has {given} numbers for {}: give one for all, or one for each",
        count(*devices, "device")
    )]
    DeviceMemories { given: usize, devices: usize },
    /// A device has too little memory for the run. Both are bytes.
    #[error(
        "the run needs about {} on {device}, which has {}: recompute more, use more micro-batches, \
         more devices or a smaller batch, or set --device-memory if the device has more",
        format_bytes(*needs),
        format_bytes(*has)
    )]
    TooLarge {
        device: String,
        needs: u64,
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
        path: PathBuf,
        source: Box<toml::de::Error>,
    },

    // The run.
    /// A set has no samples.
    #[error("the {0} set is empty")]
    EmptySet(&'static str),
    /// A mini-batch is larger than the training set.
    #[error(
        "batch-size is {batch_size}, but the training set has {}: \
         choose a --batch-size of at most {samples}",
        count(*samples, "sample")
    )]
    BatchTooLarge { batch_size: usize, samples: usize },
    /// There is no schedule for the last mini-batch of an epoch.
    #[error(
        "the last mini-batch of an epoch has {}: {source}; \
         choose another --batch-size",
        count(*samples, "sample")
    )]
    LastBatch { samples: usize, source: StepError },
    /// A batch cannot be loaded.
    #[error("loading data: {0}")]
    Data(#[source] Box<dyn Error + Send + Sync>),
    /// An objective has more or fewer scores than its task names.
    #[error(
        "the objective returned {found} scores, but the task names {named}: name them with \
         Task::with_scores"
    )]
    Scores { named: usize, found: usize },
    /// A step failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// Processes read other data.
    #[error("the data differ from those of rank {rank} on {host}: {changes}")]
    DataOfProcesses {
        rank: usize,
        host: String,
        changes: String,
    },
    /// Another process failed.
    #[error(transparent)]
    Processes(#[from] ProcessError),
    /// The loss or a gradient is NaN or infinite. Epochs and batches are counted from 1.
    #[error(
        "the training diverged in epoch {epoch}, batch {batch}: \
         try a smaller --lr, a longer --warmup-epochs, or --clip: {source}"
    )]
    Diverged {
        epoch: usize,
        batch: usize,
        source: StepError,
    },
    /// The loss has become huge.
    #[error(
        "the training diverged in epoch {epoch}: its mean loss is {loss:.3e}, but the run began with \
         {first:.3e}: try a smaller --lr, a longer --warmup-epochs, or --clip"
    )]
    LossExploded { epoch: usize, loss: f64, first: f64 },

    // Resuming.
    /// A checkpoint's files are incomplete or have changed.
    #[error("{}: the checkpoint is damaged: {reason}", path.display())]
    DamagedCheckpoint { path: PathBuf, reason: String },
    /// The training set has changed its samples since the checkpoint.
    #[error(
        "the training set had {} when the checkpoint was made, and has {now}: use the same data, \
         or start another run",
        count(*then, "sample")
    )]
    OtherSamples { then: usize, now: usize },
    /// Other data than those of the checkpoint.
    #[error(
        "the data have changed since the checkpoint was made: {0}\n\
         use the same data, or start another run"
    )]
    OtherData(String),
    /// A setting that must stay the same has changed since the checkpoint.
    #[error(
        "the checkpoint was made with {setting} {then}, not {now}: use {then} again, or start \
         another run"
    )]
    OtherSetting {
        setting: &'static str,
        then: String,
        now: String,
    },
    /// A checkpoint is of a task with other scores.
    #[error("the checkpoint is of another task: start another run")]
    OtherTask,
    /// A checkpoint has another format version.
    #[error(
        "the checkpoint has format version {version}, but this program reads version {own}: resume it \
         with the version of Stovepipe that made it, or start another run --from its model"
    )]
    CheckpointVersion { version: u32, own: u32 },

    // Files.
    /// The folder is in use.
    #[error("{} holds another run or other files: choose another --out", .0.display())]
    FolderInUse(PathBuf),
    /// Another program is writing to this folder.
    #[error("another run is using {}: choose another --out", .0.display())]
    RunUnderWay(PathBuf),
    /// The empty folder for a run cannot be renamed.
    #[error(
        "{} cannot be renamed at the end of the run, as where a disk is mounted: choose a folder \
         within it, such as {}",
        .0.display(),
        .0.join("train-1").display()
    )]
    FolderFixed(PathBuf),
    /// The path of a folder is a link to nothing.
    #[error("{} is a link to nothing: make the folder that it names, or choose another --out", .0.display())]
    LinkToNothing(PathBuf),
    /// A complete run cannot have its path.
    #[error(
        "the run is complete, but its folder cannot become {} ({source}): it is {}",
        path.display(),
        place.display()
    )]
    NotInPlace {
        path: PathBuf,
        place: PathBuf,
        source: io::Error,
    },
    /// The folder is of a run that was killed.
    #[error(
        "{} is of a run that was killed: resume it with --resume, choose another --out, or remove it",
        .0.display()
    )]
    RunKilled(PathBuf),
    /// The same, or another program is writing to it: the file system has no locks that tell.
    #[error(
        "{} is of a run that was killed or is under way (this file system has no locks): if it was killed, resume it \
         with --resume, or remove it; else choose another --out",
        .0.display()
    )]
    RunUnfinished(PathBuf),
    /// Somebody removed the folder of a run, or its lock, while it was training.
    #[error("{}: the folder of the run, or the lock in it, was removed: the training ends", .0.display())]
    FolderGone(PathBuf),
    /// A checkpoint cannot be written, and the settings say to stop then.
    #[error("the checkpoint cannot be written, the previous one is unchanged: {0}")]
    NotSaved(#[source] Box<Self>),
    /// An old checkpoint cannot be removed.
    #[error("the checkpoint is written, but an old one cannot be removed: {0}")]
    NotRemoved(#[source] Box<Self>),
    /// A device does not return the tensors to save.
    #[error(
        "{}: a device does not return the tensors to save ({cause}): use --resume to continue from \
         the last checkpoint",
        path.display()
    )]
    NotFetched { path: PathBuf, cause: String },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// A file has the tensors of another model.
    #[error("{} is of another model: {tensors}", path.display())]
    OtherModel {
        path: PathBuf,
        tensors: Box<OtherTensors>,
    },
    /// A file has what was trained above other weights than those of now. Both are named by their SHA-256, which
    /// is empty if there are none.
    #[error(
        "{}: {}",
        path.display(),
        match (then.as_str(), now.as_str()) {
            ("", _) => "it has all weights, not only what was trained above others: load it as a whole"
                .to_owned(),
            (then, "") => format!(
                "it has only what was trained above weights with the SHA-256 {then}: load these first"
            ),
            (then, now) => format!(
                "it was trained above weights with the SHA-256 {then}, but those of now have {now}: \
                 use the ones from then"
            ),
        }
    )]
    OtherBase {
        path: PathBuf,
        then: String,
        now: String,
    },
    /// A file is not in its format or not valid, or a value cannot be written in the format.
    #[error("{}: {source}", path.display())]
    Format {
        path: PathBuf,
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

    /// A file has another format, or is damaged.
    pub fn format(path: &Path, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let (path, source) = (path.to_owned(), source.into());
        Self::Format { path, source }
    }
}

/// Whether an error says that a disk is full.
pub(crate) fn is_disk_full(error: &(dyn Error + 'static)) -> bool {
    let kind = error.downcast_ref().map(io::Error::kind);
    match kind {
        Some(kind) => matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded),
        None => error.source().is_some_and(is_disk_full),
    }
}
