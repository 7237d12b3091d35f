use std::error::Error;

use crate::{communicator::Communicator, error::CommError};

/// Why processes that make the same calls do not get on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// Another process failed.
    #[error("rank {rank} on {host} failed: {reason}")]
    Failed {
        /// Its rank.
        rank: usize,
        /// Its host.
        host: String,
        /// Its error.
        reason: String,
    },
    /// A setting or a batch is another one than that of another process.
    #[error(
        "{what} is {ours} here, but {theirs} for rank {rank} on {host}: all processes need the same"
    )]
    Differs {
        /// What differs.
        what: String,
        /// The rank of the other process.
        rank: usize,
        /// Its host.
        host: String,
        /// Its value.
        theirs: String,
        /// The value of this process.
        ours: String,
    },
    /// The communicator failed.
    #[error(transparent)]
    Communication(#[from] CommError),
    /// What another process sent cannot be read.
    #[error("what another process sent cannot be read: {0}")]
    Unreadable(#[source] Box<dyn Error + Send + Sync>),
}

impl ProcessError {
    /// Another process failed, for this reason.
    #[must_use]
    pub fn failed(comm: &Communicator, rank: usize, reason: String) -> Self {
        let host = comm.host(rank).unwrap_or_default();
        Self::Failed { rank, host, reason }
    }
}
