use std::{fmt, time::Duration};

/// A rank and the name of its host, for errors: `rank 1 on node7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The rank.
    pub rank: usize,
    /// The name of its host.
    pub host: String,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} on {}", self.rank, self.host)
    }
}

/// Why a message or a value did not reach all ranks.
///
/// After an error other than [`NoSuchRank`](Self::NoSuchRank), the job cannot continue: all other
/// ranks are told to abort, and every later call returns the same error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// A rank ended, or dropped its [`Communicator`](crate::Communicator).
    #[error("{0} has left the job")]
    Gone(Peer),
    /// These ranks did not call [`all_gather`](crate::Communicator::all_gather) in time, or were stopped.
    #[error("{} did not answer within {limit:?}", listed(peers))]
    Missing {
        /// The ranks whose value did not come.
        peers: Vec<Peer>,
        /// How long this rank waited.
        limit: Duration,
    },
    /// Messages from or to a rank do not get on.
    #[error("{peer} has exchanged no data for {limit:?}")]
    Stalled {
        /// The rank that does not receive, or stopped while it sent.
        peer: Peer,
        /// How long this rank waited.
        limit: Duration,
    },
    /// A rank called [`abort`](crate::Communicator::abort) or failed.
    #[error("{peer} aborted the job: {reason}")]
    Aborted {
        /// The rank that ended the job.
        peer: Peer,
        /// What it said.
        reason: String,
    },
    /// What a rank sent cannot be read.
    #[error("{0} runs another program, or another version of it")]
    Unreadable(Peer),
    /// A message was sent to a rank that does not exist.
    #[error("there is no rank {rank}: the job has {size}")]
    NoSuchRank {
        /// The rank that was named.
        rank: usize,
        /// The number of ranks.
        size: usize,
    },
}

impl CommError {
    /// The ranks that this one heard nothing of for too long.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let ranks = stovepipe_comm::local(2, Some(Duration::from_millis(1)))?;
    /// let error = ranks[1].all_gather(Vec::new()).unwrap_err();
    /// assert_eq!(error.silent()[0].rank, 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn silent(&self) -> &[Peer] {
        match self {
            Self::Missing { peers, .. } => peers,
            Self::Stalled { peer, .. } => std::slice::from_ref(peer),
            _ => &[],
        }
    }
}

fn listed(peers: &[Peer]) -> String {
    let names: Vec<_> = peers.iter().map(Peer::to_string).collect();
    names.join(", ")
}
