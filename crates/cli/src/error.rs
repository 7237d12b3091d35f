//! What ends the program with an error.

use stovepipe::{pipeline::BuildError, train::TrainError};
use stovepipe_amoebanet::AmoebaNetError;
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
    #[error("could not watch for Ctrl-C: {0}")]
    Signal(#[from] ctrlc::Error),
}
