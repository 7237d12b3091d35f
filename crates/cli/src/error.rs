//! Why the program fails.

use std::{
    error::Error as StdError,
    io,
    path::{Path, PathBuf},
};

use stovepipe::{
    pipeline::{BuildError, StepError, device::DeviceError, error::ProcessError},
    plan::{PartitionError, PlanError},
    schedule::{CostError, ScheduleError},
    train::TrainError,
    verify::VerifyError,
};
use stovepipe_amoebanet::AmoebaNetError;
use stovepipe_chat::ChatError;
use stovepipe_cifar::CifarError;
use stovepipe_decoder::DecoderError;
use stovepipe_digits::DigitsError;
use stovepipe_imagenet::ImagenetError;
use stovepipe_report::ReportError;
use stovepipe_text::TextError;
use stovepipe_transformer::TransformerError;
use stovepipe_unet::UNetError;
use thiserror::Error;

pub type Source = Box<dyn StdError + Send + Sync>;

/// Why the program fails. The source of an error is not part of its text: `main` prints both.
#[derive(Debug, Error)]
pub enum CliError {
    #[error(transparent)]
    Arguments(#[from] clap::Error),
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Model(#[from] AmoebaNetError),
    #[error(transparent)]
    Digits(#[from] DigitsError),
    #[error(transparent)]
    Cifar(#[from] CifarError),
    #[error(transparent)]
    Images(#[from] ImagenetError),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    Transformer(#[from] TransformerError),
    #[error(transparent)]
    Decoder(#[from] DecoderError),
    #[error(transparent)]
    Chat(#[from] ChatError),
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Verify(#[from] VerifyError),
    #[error(transparent)]
    Report(#[from] ReportError),
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    #[error(transparent)]
    Cost(#[from] CostError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Partition(#[from] PartitionError),
    #[error(transparent)]
    Generate(#[from] stovepipe_transformer::GenerationError),
    #[error(transparent)]
    UNet(#[from] UNetError),
    #[error(transparent)]
    Processes(#[from] ProcessError),
    #[cfg(feature = "mpi")]
    #[error(transparent)]
    Mpi(#[from] stovepipe_comm_mpi::InitError),

    /// What is wrong with flags or files, and what to do.
    #[error("{0}")]
    Usage(String),
    #[error("{source}{tip}")]
    Device { source: DeviceError, tip: String },
    #[error("a language model is of no use here: name a model of images with --model")]
    NotOfText,
    #[error("a model of images is of no use here: name a language model with --model")]
    NotOfImages,
    #[error("this model can be verified, but not trained here")]
    NotTrained,

    /// A file that cannot be read or written.
    #[error("{}", path.display())]
    File { path: PathBuf, source: Source },

    /// A run that does not fit, and a command for one that does, or the layer that never does.
    #[error("{error}\n{advice}")]
    DoesNotFit {
        error: Box<TrainError>,
        advice: String,
    },

    /// An error of a run that can resume.
    #[error(
        "{}\nthe checkpoint {checkpoint} is kept; to go on from it: {command}",
        with_sources(error)
    )]
    Unfinished {
        error: Box<CliError>,
        checkpoint: String,
        command: String,
    },
    #[error("standard output cannot be written")]
    Output(#[source] io::Error),
    #[error("could not watch for Ctrl-C")]
    Signal(#[source] io::Error),
}

impl CliError {
    pub fn file<E: Into<Source>>(path: &Path) -> impl FnOnce(E) -> Self {
        let path = path.to_owned();
        move |source| Self::File {
            path,
            source: source.into(),
        }
    }
}

/// An error and those that caused it. Some already say what caused them.
pub fn with_sources(error: &CliError) -> String {
    let (mut text, mut source) = (error.to_string(), StdError::source(error));
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // An error of TOML draws the place above its text.
        let is_said = (cause_text.lines().last()).is_some_and(|last| text.contains(last.trim()));
        if !is_said {
            text = format!("{text}: {}", cause_text.trim());
        }
        source = cause.source();
    }
    text
}

/// A [`CliError::Usage`] with this text.
macro_rules! usage {
    ($($text:tt)*) => {
        $crate::error::CliError::Usage(format!($($text)*))
    };
}
pub(crate) use usage;
