//! What ends the program with an error.

use stovepipe::{pipeline::BuildError, train::TrainError};
use stovepipe_amoebanet::AmoebaNetError;
use stovepipe_cifar::CifarError;
use stovepipe_digits::DigitsError;
use thiserror::Error;

/// What ends the program with an error.
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
    #[error(
        "{data} needs --data-dir: the folder that the archive unpacks to, \
         the binary version from https://www.cs.toronto.edu/~kriz/cifar.html"
    )]
    NoDataFolder { data: String },
    #[error("{setting} is for {of}, not for {data}: leave it out")]
    NotOfData {
        setting: &'static str,
        of: &'static str,
        data: String,
    },
    #[error("could not watch for Ctrl-C: {0}")]
    Signal(#[from] ctrlc::Error),
}
